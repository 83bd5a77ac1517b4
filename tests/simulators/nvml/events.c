/* Event sets. `event.N = gpu:type:data[:gpu instance[:compute instance]]` arrives once, if its N is above all that
 * were there when the set was created. A waiting call sleeps until the state file is replaced. */
#define _GNU_SOURCE
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define SETS 16
#define SET_MARK 0x4553u

static struct set {
    bool open;
    uint16_t generation;
    int watched; /* inotify(7) on the folder of the state file, from the first wait on */
    uint64_t seen;
    uint64_t wanted[SLOTS]; /* event types by GPU */
} sets[SETS];

static handle handle_of_set(size_t at) {
    return (handle)(uintptr_t)((uint64_t)SET_MARK << 48 | (uint64_t)sets[at].generation << 16 | at);
}

/* NULL for a freed set, even if its slot is in use again. */
static struct set *set_of(handle token) {
    size_t at = (uintptr_t)token & 0xFFFF;
    return at < SETS && sets[at].open && handle_of_set(at) == token ? &sets[at] : NULL;
}

static int create(handle *token) {
    const struct event *events;
    size_t count = state_events(&events), at = 0;
    if (!token)
        return INVALID_ARGUMENT;
    while (at < SETS && sets[at].open)
        at++;
    if (at == SETS)
        refuse("too many event sets", "nvmlEventSetCreate");
    sets[at] = (struct set){.open = true, .generation = (uint16_t)(sets[at].generation + 1), .watched = -1};
    sets[at].seen = count ? events[count - 1].sequence : 0;
    *token = handle_of_set(at);
    return SUCCESS;
}

static int discard(handle token) {
    struct set *set = set_of(token);
    if (!set)
        return INVALID_ARGUMENT;
    set->open = false;
    if (set->watched >= 0)
        close(set->watched);
    return SUCCESS;
}

static int subscribe(const struct call *call, uint64_t kinds, handle token) {
    struct set *set = set_of(token);
    uint64_t supported = 0;
    state_number(call->scope, "events.supported", &supported);
    if (!set)
        return INVALID_ARGUMENT;
    if (call->mig >= 0 || !supported || kinds & ~supported)
        return NOT_SUPPORTED;
    set->wanted[call->gpu] |= kinds;
    return SUCCESS;
}

struct parsed {
    uint64_t gpu, type, data, gpu_instance, compute_instance;
};

static struct parsed parse(const char *record) {
    struct parsed event = {.gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
    uint64_t *const parts[] = {&event.gpu, &event.type, &event.data, &event.gpu_instance, &event.compute_instance};
    char *end = (char *)record;
    size_t at = 0;
    for (; at < 5 && (!at || *end == ':'); at++)
        *parts[at] = number_in(end + (at > 0), &end, "an event");
    if (at < 3 || *end || event.gpu >= SLOTS)
        refuse("not an event", record);
    return event;
}

static bool take(struct set *set, struct event_data *out) {
    const struct event *events;
    size_t count = state_events(&events);
    for (size_t at = 0; at < count; at++) {
        if (events[at].sequence <= set->seen)
            continue;
        struct parsed event = parse(events[at].record);
        set->seen = events[at].sequence;
        if (!(set->wanted[event.gpu] & event.type))
            continue;
        *out = (struct event_data){handle_of((int)event.gpu, -1), event.type, event.data,
                                   (uint32_t)event.gpu_instance, (uint32_t)event.compute_instance};
        return true;
    }
    return false;
}

static bool is_lost(const struct set *set) {
    char scope[24];
    uint64_t answer;
    for (int gpu = 0; gpu < SLOTS; gpu++) {
        snprintf(scope, sizeof scope, "gpu.%d.", gpu);
        if (set->wanted[gpu] && state_number(scope, "down", &answer) && answer == GPU_IS_LOST)
            return true;
    }
    return false;
}

/* Watches the folder of the state file, which is replaced by rename. */
static int watch(void) {
    char folder[PATH_MAX];
    const char *path = getenv("NVML_SIM_STATE"), *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int file = inotify_init1(IN_CLOEXEC);
    if (file < 0 || inotify_add_watch(file, folder, IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE) < 0)
        refuse("cannot be watched", folder);
    return file;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Sleeps without the lock, then reads the newest state. False after the deadline. */
static bool sleep_until_change(int watched, int64_t until) {
    char changes[4096];
    int64_t left = until - now_ms();
    if (left <= 0)
        return false;
    pause_call();
    struct pollfd pollfd = {watched, POLLIN, 0};
    bool changed = poll(&pollfd, 1, (int)left) > 0 && read(watched, changes, sizeof changes) > 0;
    resume_call();
    return changed;
}

/* Returns the result of a wait now: TIMEOUT if there is no event. */
static int outcome(handle token, struct event_data *out) {
    struct set *set = set_of(token);
    if (!initialized())
        return UNINITIALIZED;
    if (!set || !out)
        return INVALID_ARGUMENT;
    if (!state_refresh())
        return UNKNOWN;
    if (take(set, out))
        return SUCCESS;
    return is_lost(set) ? GPU_IS_LOST : TIMEOUT;
}

static int wait_for_event(handle token, struct event_data *out, unsigned timeout_ms) {
    int64_t until = now_ms() + timeout_ms;
    struct set *set = set_of(token);
    /* Kept, because to close an inotify descriptor waits in the kernel: a wake-up that no driver causes. */
    if (set && set->watched < 0)
        set->watched = watch();
    int watched = set ? set->watched : -1;
    int answer = outcome(token, out);
    while (answer == TIMEOUT && sleep_until_change(watched, until))
        answer = outcome(token, out);
    return answer;
}

EXPORT int nvmlEventSetCreate(handle *token) {
    ON_MACHINE(create(token))
}

EXPORT int nvmlEventSetFree(handle token) {
    ON_MACHINE(discard(token))
}

EXPORT int nvmlDeviceGetSupportedEventTypes(handle device, uint64_t *kinds) {
    ON_DEVICE(device, put_u64(&call, "events.supported", kinds))
}

EXPORT int nvmlDeviceRegisterEvents(handle device, uint64_t kinds, handle token) {
    ON_DEVICE(device, subscribe(&call, kinds, token))
}

EXPORT int nvmlEventSetWait_v2(handle token, struct event_data *out, unsigned timeout_ms) {
    ON_MACHINE(wait_for_event(token, out, timeout_ms))
}
