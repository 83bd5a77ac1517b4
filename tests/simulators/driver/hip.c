/* libamdhip64.so: the functions that tests/hardware calls, with HIP's types and error codes. */
#include <stdio.h>

#include "kernel.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, HIP_OUT_OF_MEMORY = 2, NO_DEVICE = 100 };

static int initialized, selected = -1;

static int code_of(long answer) {
    return answer == 0 ? SUCCESS : answer == OUT_OF_MEMORY ? HIP_OUT_OF_MEMORY : INVALID_VALUE;
}

static int allocate(const char *kind, void **address, size_t size) {
    uint64_t found = 0;
    int code = selected == 0 ? code_of(kernel_allocate(kind, size, &found)) : NO_DEVICE;
    *address = (void *)(uintptr_t)found;
    return code;
}

EXPORT int hipInit(unsigned flags) {
    char name[100];
    initialized = flags == 0 && kernel_ask(name, sizeof name, "name") == 0;
    return initialized ? SUCCESS : NO_DEVICE;
}

EXPORT const char *hipGetErrorString(int code) {
    return code == NO_DEVICE ? "no ROCm-capable device is detected" : "another error";
}

EXPORT int hipGetDeviceCount(int *count) {
    *count = initialized;
    return initialized ? SUCCESS : NO_DEVICE;
}

EXPORT int hipSetDevice(int device) {
    selected = device == 0 && kernel_ask(NULL, 0, "context") == 0 ? 0 : -1;
    return selected == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int hipDriverGetVersion(int *version) {
    *version = 70051831;
    return SUCCESS;
}

EXPORT int hipDeviceGetName(char *name, int length, int device) {
    return device == 0 ? code_of(kernel_ask(name, (size_t)length, "name")) : INVALID_VALUE;
}

EXPORT int hipDeviceGetPCIBusId(char *address, int length, int device) {
    return device == 0 ? code_of(kernel_ask(address, (size_t)length, "pci")) : INVALID_VALUE;
}

EXPORT int hipMemGetInfo(size_t *free_bytes, size_t *total) {
    char text[100];
    int code = code_of(kernel_ask(text, sizeof text, "info"));
    return code == SUCCESS && sscanf(text, "%zu %zu", free_bytes, total) == 2 ? SUCCESS : INVALID_VALUE;
}

EXPORT int hipMalloc(void **address, size_t size) {
    return allocate("device", address, size);
}

EXPORT int hipHostMalloc(void **address, size_t size, unsigned flags) {
    return flags == 0 ? allocate("pinned", address, size) : INVALID_VALUE;
}

EXPORT int hipFree(void *address) {
    return code_of(kernel_free((uint64_t)(uintptr_t)address));
}

EXPORT int hipHostFree(void *address) {
    return code_of(kernel_free((uint64_t)(uintptr_t)address));
}
