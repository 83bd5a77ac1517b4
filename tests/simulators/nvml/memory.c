/* Device memory. A MIG device has the memory of its GPU instance, which other MIG devices may share. */
#include <stdio.h>

#include "sim.h"

static int owner_of(const struct call *call, struct call *owner) {
    uint64_t instance;
    *owner = *call;
    if (call->mig < 0)
        return SUCCESS;
    if (!state_number(call->scope, "gi", &instance))
        return NOT_FOUND;
    snprintf(owner->scope, sizeof owner->scope, "gpu.%d.gi.%u.", call->gpu, (unsigned)instance);
    return SUCCESS;
}

/* `partition` is the cgroup that the caller runs in. Its limit is the total there, and only its use is seen. */
static void see_from_partition(const struct call *call, struct memory_v2 *memory) {
    struct memory_limits_v1 limits = {0};
    const char *own = call->mig < 0 ? state_text(call->scope, "partition") : NULL;
    if (!own || !limits_of(call, own, &limits) || limits.hard >= memory->total)
        return;
    memory->total = limits.hard;
    memory->used = limits.used;
    memory->reserved = 0;
    memory->free = limits.hard - limits.used;
}

static int memory_v2(const struct call *call, struct memory_v2 *memory) {
    struct call owner;
    if (!memory)
        return INVALID_ARGUMENT;
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    int answer = owner_of(call, &owner);
    if (answer == SUCCESS)
        answer = put_u64(&owner, "memory.total", &memory->total);
    if (answer != SUCCESS)
        return answer;
    memory->reserved = memory->used = memory->free = 0;
    put_u64(&owner, "memory.reserved", &memory->reserved);
    put_u64(&owner, "memory.used", &memory->used);
    put_u64(&owner, "memory.free", &memory->free);
    see_from_partition(&owner, memory);
    return SUCCESS;
}

/* Version 1 counts reserved memory as used, unless the state has separate figures for version 1. */
static int memory_v1(const struct call *call, struct memory_v1 *memory) {
    struct call owner;
    struct memory_v2 v2 = {.version = MEMORY_V2};
    int answer = owner_of(call, &owner);
    if (!memory)
        return INVALID_ARGUMENT;
    if (answer == SUCCESS)
        answer = memory_v2(call, &v2);
    if (answer == SUCCESS)
        *memory = (struct memory_v1){v2.total, v2.free, v2.used + v2.reserved};
    else if (answer != NOT_SUPPORTED || put_u64(&owner, "memory.v1.total", &memory->total) != SUCCESS)
        return answer;
    put_u64(&owner, "memory.v1.total", &memory->total);
    put_u64(&owner, "memory.v1.free", &memory->free);
    put_u64(&owner, "memory.v1.used", &memory->used);
    return SUCCESS;
}

static int bar1(const struct call *call, struct bar1 *window) {
    struct call owner;
    int answer = owner_of(call, &owner);
    if (!window)
        return INVALID_ARGUMENT;
    if (answer == SUCCESS)
        answer = put_u64(&owner, "bar1.total", &window->total);
    if (answer != SUCCESS)
        return answer;
    put_u64(&owner, "bar1.used", &window->used);
    window->free = window->total - window->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(handle device, struct memory_v1 *memory) {
    ON_DEVICE(device, memory_v1(&call, memory))
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *memory) {
    ON_DEVICE(device, memory_v2(&call, memory))
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(handle device, struct bar1 *window) {
    ON_DEVICE(device, bar1(&call, window))
}
