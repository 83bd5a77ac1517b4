/* Initialization, versions and error strings. */
#include <stddef.h>

#include "sim.h"

#define NO_ATTACH 2u

static int initialize(const char *function, unsigned flags) {
    struct call call;
    uint64_t error;
    int answer = enter_unready(&call, function);
    if (answer == SUCCESS && state_number("", "init.error", &error))
        answer = (int)error;
    if (answer == SUCCESS)
        set_initialized(+1);
    if (answer == SUCCESS && !(flags & NO_ATTACH))
        power_attach_all();
    return leave(answer);
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    return initialize(__func__, flags);
}

EXPORT int nvmlInit_v2(void) {
    return initialize(__func__, 0);
}

EXPORT int nvmlInit(void) {
    return initialize(__func__, 0);
}

EXPORT int nvmlShutdown(void) {
    struct call call;
    int answer = enter_unready(&call, __func__);
    if (!initialized())
        return leave(UNINITIALIZED);
    if (answer == DRIVER_NOT_LOADED)
        answer = SUCCESS;
    if (answer == SUCCESS)
        set_initialized(-1);
    if (answer == SUCCESS && !initialized())
        power_detach_all();
    return leave(answer);
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ON_MACHINE(put_text(&call, "version.driver", version, length))
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ON_MACHINE(put_text(&call, "version.nvml", version, length))
}

EXPORT int nvmlSystemGetCudaDriverVersion(uint32_t *version) {
    ON_MACHINE(put_unsigned(&call, "version.cuda", version))
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(uint32_t *version) {
    ON_MACHINE(put_unsigned(&call, "version.cuda", version))
}

/* Like the real function, it also works before initialization; the binding does not call it then. */
EXPORT const char *nvmlErrorString(int answer) {
    static const char *const words[] = {
        "no error",
        "not initialized",
        "invalid argument",
        "not supported",
        "no permission",
        "already initialized",
        "not found",
        "buffer too small",
        "power cable missing",
        "driver not loaded",
        "timeout",
        "interrupt trouble",
        "library not found",
        "function not found",
        "inforom is corrupted",
        "GPU is lost",
        "reset required",
        "blocked by the operating system",
        "library and driver differ in version",
        "in use",
        "out of memory",
        "no data",
        "no ECC in a vGPU",
        "out of resources",
        "clock not supported",
        "version of an argument not known",
        "deprecated",
        "not ready",
        "GPU not found",
        "invalid state",
        "kind of reset not supported",
    };
    return answer >= 0 && (size_t)answer < sizeof words / sizeof *words ? words[answer] : "unknown error";
}
