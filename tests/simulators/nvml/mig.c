/* MIG devices. `mig.M` is the MIG device at index M; an index without one is a gap. */
#include <stddef.h>

#include "sim.h"

static int modes(const struct call *call, uint32_t *current, uint32_t *pending) {
    int answer = put_unsigned(call, "mig.current", current);
    return answer == SUCCESS ? put_unsigned(call, "mig.pending", pending) : answer;
}

static int most_devices(const struct call *call, uint32_t *count) {
    if (!count)
        return INVALID_ARGUMENT;
    if (put_unsigned(call, "mig.max", count) != SUCCESS)
        *count = 0;
    return SUCCESS;
}

static int by_index(struct call *call, unsigned index, handle *device) {
    uint64_t enabled = 0, most = 0, ignored;
    state_number(call->scope, "mig.current", &enabled);
    state_number(call->scope, "mig.max", &most);
    if (!enabled)
        return NOT_SUPPORTED;
    if (!device || index >= most)
        return INVALID_ARGUMENT;
    int answer = narrow(call, call->gpu, (int)index);
    if (answer == SUCCESS && !state_number(call->scope, "gi", &ignored))
        answer = NOT_FOUND;
    if (answer == SUCCESS)
        *device = handle_of(call->gpu, (int)index);
    return answer;
}

static int parent(const struct call *call, handle *device) {
    if (call->mig < 0 || !device)
        return INVALID_ARGUMENT;
    *device = handle_of(call->gpu, -1);
    return SUCCESS;
}

static int is_mig(const struct call *call, uint32_t *answered) {
    if (!answered)
        return INVALID_ARGUMENT;
    *answered = call->mig >= 0;
    return SUCCESS;
}

static int attributes(const struct call *call, struct mig_attributes *found) {
    int answer = found ? put_u64(call, "attributes.memory_mib", &found->memory_mib) : INVALID_ARGUMENT;
    if (answer != SUCCESS)
        return answer;
    const struct {
        const char *name;
        uint32_t *out;
    } rest[] = {
        {"attributes.multiprocessors", &found->multiprocessors},
        {"attributes.copy_engines", &found->copy_engines},
        {"attributes.decoders", &found->decoders},
        {"attributes.encoders", &found->encoders},
        {"attributes.jpeg", &found->jpeg},
        {"attributes.ofa", &found->ofa},
        {"attributes.gpu_slices", &found->gpu_slices},
        {"attributes.compute_slices", &found->compute_slices},
    };
    for (size_t at = 0; at < sizeof rest / sizeof *rest; at++)
        if (put_unsigned(call, rest[at].name, rest[at].out) != SUCCESS)
            *rest[at].out = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(handle device, uint32_t *current, uint32_t *pending) {
    ON_DEVICE(device, modes(&call, current, pending))
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(handle device, uint32_t *count) {
    ON_DEVICE(device, most_devices(&call, count))
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *mig) {
    ON_DEVICE(device, by_index(&call, index, mig))
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *gpu) {
    ON_DEVICE(device, parent(&call, gpu))
}

EXPORT int nvmlDeviceIsMigDeviceHandle(handle device, uint32_t *answered) {
    ON_DEVICE(device, is_mig(&call, answered))
}

EXPORT int nvmlDeviceGetGpuInstanceId(handle device, uint32_t *instance) {
    ON_DEVICE(device, put_unsigned(&call, "gi", instance))
}

EXPORT int nvmlDeviceGetComputeInstanceId(handle device, uint32_t *instance) {
    ON_DEVICE(device, put_unsigned(&call, "ci", instance))
}

EXPORT int nvmlDeviceGetAttributes_v2(handle device, struct mig_attributes *found) {
    ON_DEVICE(device, attributes(&call, found))
}
