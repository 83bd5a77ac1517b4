/* libcuda.so.1: the functions that tests/hardware calls, with the driver's types and error codes. */
#include <stdio.h>

#include "kernel.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, NO_CONTEXT = 201 };

static int initialized, has_context;

static int code_of(long answer) {
    return answer == 0 ? SUCCESS : answer == OUT_OF_MEMORY ? CUDA_OUT_OF_MEMORY : INVALID_VALUE;
}

EXPORT int cuInit(unsigned flags) {
    char name[100];
    initialized = flags == 0 && kernel_ask(name, sizeof name, "name") == 0;
    return initialized ? SUCCESS : NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

EXPORT int cuGetErrorString(int code, const char **text) {
    *text = code == NO_DEVICE            ? "no CUDA-capable device is detected"
            : code == CUDA_OUT_OF_MEMORY ? "out of memory"
            : code == INVALID_VALUE      ? "invalid argument"
                                         : "another error";
    return SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count) {
    *count = initialized;
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    char text[100];
    int code = device == 0 && attribute == 18 ? code_of(kernel_ask(text, sizeof text, "integrated")) : INVALID_VALUE;
    return code == SUCCESS && sscanf(text, "%d", value) == 1 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceGetName(char *name, int length, int device) {
    return device == 0 ? code_of(kernel_ask(name, (size_t)length, "name")) : INVALID_VALUE;
}

EXPORT int cuDeviceGetPCIBusId(char *address, int length, int device) {
    return device == 0 ? code_of(kernel_ask(address, (size_t)length, "pci")) : INVALID_VALUE;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device != 0 || !initialized)
        return INVALID_VALUE;
    *context = &has_context;
    return code_of(kernel_ask(NULL, 0, "context"));
}

EXPORT int cuCtxSetCurrent(void *context) {
    has_context = context == &has_context;
    return has_context ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuCtxSynchronize(void) {
    return has_context ? SUCCESS : NO_CONTEXT;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    char text[100];
    if (!has_context)
        return NO_CONTEXT;
    int code = code_of(kernel_ask(text, sizeof text, "info"));
    return code == SUCCESS && sscanf(text, "%zu %zu", free_bytes, total) == 2 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    return has_context ? code_of(kernel_allocate("device", size, address)) : NO_CONTEXT;
}

EXPORT int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
    return has_context && flags == 1 ? code_of(kernel_allocate("managed", size, address)) : INVALID_VALUE;
}

EXPORT int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    uint64_t found;
    int code = has_context && flags == 0 ? code_of(kernel_allocate("pinned", size, &found)) : INVALID_VALUE;
    *address = (void *)(uintptr_t)found;
    return code;
}

EXPORT int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t count) {
    (void)value, (void)count;
    return code_of(kernel_touch(address));
}

EXPORT int cuMemFree_v2(uint64_t address) {
    return code_of(kernel_free(address));
}

EXPORT int cuMemFreeHost(void *address) {
    return code_of(kernel_free((uint64_t)(uintptr_t)address));
}
