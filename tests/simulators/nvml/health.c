/* Memory errors, remapped rows and retired pages. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sim.h"

#define DEVICE_MEMORY 2
#define UNSIGNED_INT 1

static int two(const struct call *call, const char *first_name, uint32_t *first, const char *name, uint32_t *out) {
    int answer = put_unsigned(call, first_name, first);
    return answer == SUCCESS ? put_unsigned(call, name, out) : answer;
}

static int ecc(const struct call *call, unsigned kind, unsigned counter, uint64_t *errors) {
    static const char *const names[2][2] = {
        {"ecc.volatile.corrected", "ecc.aggregate.corrected"},
        {"ecc.volatile.uncorrected", "ecc.aggregate.uncorrected"},
    };
    return kind > 1 || counter > 1 ? INVALID_ARGUMENT : put_u64(call, names[kind][counter], errors);
}

static int remapped(const struct call *call, struct remapped_rows_v2 *rows) {
    int answer = rows ? put_unsigned(call, "remapped.corrected", &rows->corrected) : INVALID_ARGUMENT;
    if (answer != SUCCESS)
        return answer;
    rows->corrected_inactive = rows->uncorrected_inactive = 0;
    put_unsigned(call, "remapped.uncorrected", &rows->uncorrected);
    put_unsigned(call, "remapped.pending", &rows->pending);
    put_unsigned(call, "remapped.failure", &rows->failure);
    return SUCCESS;
}

static int remapped_v1(const struct call *call, uint32_t *const out[4]) {
    struct remapped_rows_v2 rows;
    for (size_t at = 0; at < 4; at++)
        if (!out[at])
            return INVALID_ARGUMENT;
    int answer = remapped(call, &rows);
    if (answer != SUCCESS)
        return answer;
    *out[0] = rows.corrected;
    *out[1] = rows.uncorrected;
    *out[2] = rows.pending;
    *out[3] = rows.failure;
    return SUCCESS;
}

static int histogram(const struct call *call, struct row_histogram *banks) {
    int answer = banks ? put_unsigned(call, "remapped.banks.max", &banks->max) : INVALID_ARGUMENT;
    if (answer != SUCCESS)
        return answer;
    put_unsigned(call, "remapped.banks.high", &banks->high);
    put_unsigned(call, "remapped.banks.partial", &banks->partial);
    put_unsigned(call, "remapped.banks.low", &banks->low);
    put_unsigned(call, "remapped.banks.none", &banks->none);
    return SUCCESS;
}

/* Addresses separated by blanks; all have the same retirement time. */
static int retired(const struct call *call, unsigned cause, uint32_t *count, uint64_t *pages, uint64_t *times) {
    uint32_t found = 0;
    if (!count || cause > 1)
        return INVALID_ARGUMENT;
    const char *text = state_text(call->scope, cause ? "retired.uncorrected" : "retired.corrected");
    if (!text)
        return NOT_SUPPORTED;
    for (char *at = (char *)text; *at; at += strspn(at, " "), found++) {
        uint64_t page = number_in(at, &at, "a retired page");
        if (pages && found < *count)
            pages[found] = page;
        if (times && found < *count)
            times[found] = 1700000000000000;
    }
    uint32_t room = *count;
    *count = found;
    return found > room || (found && !pages) ? INSUFFICIENT_SIZE : SUCCESS;
}

/* `field.N = type:number`, or `field.N.error = code` for a failure of only that field. */
static void field(const struct call *call, struct field_value *wanted) {
    char name[32];
    char *end;
    uint64_t error = NOT_SUPPORTED;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    wanted->timestamp = now.tv_sec * 1000000 + now.tv_nsec / 1000;
    wanted->latency_usec = 1;
    snprintf(name, sizeof name, "field.%u.error", wanted->field);
    bool fails = state_number(call->scope, name, &error);
    *strrchr(name, '.') = '\0';
    const char *text = fails ? NULL : state_text(call->scope, name);
    wanted->answer = text ? SUCCESS : (uint32_t)error;
    if (!text)
        return;
    wanted->value_type = (uint32_t)number_in(text, &end, name);
    if (*end != ':')
        refuse(name, text);
    uint64_t number = number_in(end + 1, &end, name);
    wanted->value.as_u64 = wanted->value_type == UNSIGNED_INT ? (uint32_t)number : number;
}

static int fields(const struct call *call, int count, struct field_value *wanted) {
    if (count < 1 || !wanted)
        return INVALID_ARGUMENT;
    for (int at = 0; at < count; at++)
        field(call, &wanted[at]);
    return SUCCESS;
}

static int unrepairable(const struct call *call, struct unrepairable_memory *found) {
    if (!found)
        return INVALID_ARGUMENT;
    if (found->version != UNREPAIRABLE_MEMORY_V1)
        return ARGUMENT_VERSION_MISMATCH;
    return put_unsigned(call, "unrepairable", &found->flag);
}

EXPORT int nvmlDeviceGetEccMode(handle device, uint32_t *current, uint32_t *pending) {
    ON_DEVICE(device, two(&call, "ecc.current", current, "ecc.pending", pending))
}

EXPORT int nvmlDeviceGetTotalEccErrors(handle device, unsigned kind, unsigned counter, uint64_t *errors) {
    ON_DEVICE(device, ecc(&call, kind, counter, errors))
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(handle device, unsigned kind, unsigned counter, unsigned place,
                                           uint64_t *errors) {
    ON_DEVICE(device, place == DEVICE_MEMORY ? ecc(&call, kind, counter, errors) : NOT_SUPPORTED)
}

EXPORT int nvmlDeviceGetRemappedRows(handle device, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending,
                                     uint32_t *failure) {
    uint32_t *const out[] = {corrected, uncorrected, pending, failure};
    ON_DEVICE(device, remapped_v1(&call, out))
}

EXPORT int nvmlDeviceGetRemappedRows_v2(handle device, struct remapped_rows_v2 *rows) {
    ON_DEVICE(device, remapped(&call, rows))
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(handle device, struct row_histogram *banks) {
    ON_DEVICE(device, histogram(&call, banks))
}

EXPORT int nvmlDeviceGetRetiredPages(handle device, unsigned cause, uint32_t *count, uint64_t *pages) {
    ON_DEVICE(device, retired(&call, cause, count, pages, NULL))
}

EXPORT int nvmlDeviceGetRetiredPages_v2(handle device, unsigned cause, uint32_t *count, uint64_t *pages,
                                        uint64_t *times) {
    ON_DEVICE(device, retired(&call, cause, count, pages, times))
}

EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(handle device, uint32_t *pending) {
    ON_DEVICE(device, put_unsigned(&call, "retired.pending", pending))
}

EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(handle device, struct unrepairable_memory *found) {
    ON_DEVICE(device, unrepairable(&call, found))
}

EXPORT int nvmlDeviceGetFieldValues(handle device, int count, struct field_value *wanted) {
    ON_DEVICE(device, fields(&call, count, wanted))
}
