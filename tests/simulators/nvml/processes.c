/* Processes that use a device: records `pid:bytes[:gpu instance[:compute instance]]` separated by blanks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MOST 1024

struct list {
    size_t count;
    struct process records[MOST];
};

static struct process record_in(const char *text, char **end) {
    struct process found = {.used = 0, .gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
    found.protected_used = NOT_AVAILABLE;
    found.pid = (uint32_t)number_in(text, end, "process id");
    if (**end != ':')
        refuse("a process without memory", text);
    found.used = number_in(*end + 1, end, "memory of a process");
    if (**end == ':')
        found.gpu_instance = (uint32_t)number_in(*end + 1, end, "GPU instance");
    if (**end == ':')
        found.compute_instance = (uint32_t)number_in(*end + 1, end, "compute instance");
    if (**end && **end != ' ')
        refuse("not a process", text);
    return found;
}

/* True if this handle lists the process: a MIG device lists its own processes, a GPU lists all. */
static bool is_seen(const struct call *call, const struct process *process) {
    uint64_t gpu_instance = NO_INSTANCE, compute_instance = NO_INSTANCE;
    if (call->mig < 0)
        return true;
    state_number(call->scope, "gi", &gpu_instance);
    state_number(call->scope, "ci", &compute_instance);
    return process->gpu_instance == gpu_instance && process->compute_instance == compute_instance;
}

static int add_processes(const struct call *call, const char *name, struct list *list) {
    struct call gpu;
    scope_to(&gpu, call->gpu, -1);
    char *text = (char *)state_text(gpu.scope, name);
    if (!text)
        return NOT_SUPPORTED;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        struct process process = record_in(text, &text);
        if (list->count == MOST)
            refuse("too many processes", name);
        if (is_seen(call, &process))
            list->records[list->count++] = process;
    }
    return SUCCESS;
}

/* Returns the size for a call without a buffer: the number of processes, or an outdated one. */
static uint32_t announced(const struct call *call, const char *name, const struct list *list) {
    char key[64];
    uint64_t count = list->count;
    snprintf(key, sizeof key, "%s.announced", name);
    state_number(call->scope, key, &count);
    return (uint32_t)count;
}

static size_t size_of_record(const struct call *call, size_t size) {
    const char *layout = state_text(call->scope, "processes.layout");
    if (!layout || size != PROCESS_V3)
        return size;
    if (strcmp(layout, "r535") != 0)
        refuse("processes.layout", layout);
    return PROCESS_R535;
}

static void write_records(const struct list *list, void *records, size_t size, size_t room) {
    for (size_t at = 0; at < list->count && (at + 1) * size <= room; at++)
        memcpy((char *)records + at * size, &list->records[at], size);
}

static int fill(const struct call *call, const char *name, uint32_t *count, void *records, size_t size) {
    struct list list = {0};
    int answer = count ? add_processes(call, name, &list) : INVALID_ARGUMENT;
    if (answer != SUCCESS)
        return answer;
    uint32_t room = *count;
    *count = room ? (uint32_t)list.count : announced(call, name, &list);
    if (!*count)
        return SUCCESS;
    if (room < list.count || !records)
        return INSUFFICIENT_SIZE;
    write_records(&list, records, size_of_record(call, size), room * size);
    return SUCCESS;
}

static int fill_details(const struct call *call, struct process_detail_list *details) {
    static const char *const names[] = {"compute", "graphics", "mps"};
    struct list list = {0};
    if (!details || details->mode > 3)
        return INVALID_ARGUMENT;
    if (details->version != PROCESS_DETAIL_LIST_V1)
        return ARGUMENT_VERSION_MISMATCH;
    int answer = NOT_SUPPORTED;
    for (uint32_t mode = 0; mode < 3; mode++)
        if ((details->mode == mode || details->mode == 3) && add_processes(call, names[mode], &list) == SUCCESS)
            answer = SUCCESS;
    if (answer != SUCCESS)
        return answer;
    uint32_t room = details->count;
    details->count = (uint32_t)list.count;
    if (list.count && (room < list.count || !details->records))
        return INSUFFICIENT_SIZE;
    write_records(&list, details->records, sizeof *details->records, room * sizeof *details->records);
    return SUCCESS;
}

#define PROCESS_LIST(function, name, size)                                     \
    EXPORT int function(handle device, uint32_t *count, void *records);        \
    EXPORT int function(handle device, uint32_t *count, void *records) {       \
        ON_DEVICE(device, fill(&call, name, count, records, size))             \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, "compute", PROCESS_V1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, "compute", PROCESS_V3)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute", PROCESS_V3)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, "graphics", PROCESS_V1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", PROCESS_V3)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", PROCESS_V3)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, "mps", PROCESS_V1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", PROCESS_V3)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", PROCESS_V3)

EXPORT int nvmlDeviceGetRunningProcessDetailList(handle device, struct process_detail_list *details) {
    ON_DEVICE(device, fill_details(&call, details))
}
