/* libze_loader.so.1: the functions that tests/hardware calls, with Level Zero's types and result codes. */
#include <stdio.h>

#include "kernel.h"

enum { SUCCESS = 0, UNINITIALIZED = 0x78000001, INVALID_ARGUMENT = 0x78000004, OUT_OF_DEVICE_MEMORY = 0x70000003 };
enum { CONTEXT_DESC = 0xd, DEVICE_MEM_ALLOC_DESC = 0x15, PCI_EXT_PROPERTIES = 0x10008 };

struct desc {
    uint32_t stype;
    const void *next;
    uint32_t flags, ordinal;
};

struct pci_properties {
    uint32_t stype;
    void *next;
    uint32_t domain, bus, device, function;
    int32_t generation, width;
    int64_t bytes_per_second;
};

static int driver, device, context;

static int code_of(long answer) {
    return answer == 0 ? SUCCESS : answer == OUT_OF_MEMORY ? OUT_OF_DEVICE_MEMORY : INVALID_ARGUMENT;
}

/* With a count of 0 only the number of handles is returned. */
static int list(uint32_t *count, void **handles, void *only) {
    if (*count && handles)
        handles[0] = only;
    *count = 1;
    return SUCCESS;
}

EXPORT int zeInit(uint32_t flags) {
    return flags == 0 && kernel_ask(NULL, 0, "name") == 0 ? SUCCESS : UNINITIALIZED;
}

EXPORT int zeDriverGet(uint32_t *count, void **handles) {
    return list(count, handles, &driver);
}

EXPORT int zeDeviceGet(void *of, uint32_t *count, void **handles) {
    return of == &driver ? list(count, handles, &device) : INVALID_ARGUMENT;
}

EXPORT int zeContextCreate(void *of, const struct desc *desc, void **created) {
    *created = &context;
    return of == &driver && desc->stype == CONTEXT_DESC ? code_of(kernel_ask(NULL, 0, "context")) : INVALID_ARGUMENT;
}

EXPORT int zeDevicePciGetPropertiesExt(void *of, struct pci_properties *found) {
    char text[32];
    if (of != &device || found->stype != PCI_EXT_PROPERTIES || kernel_ask(text, sizeof text, "pci") != 0)
        return INVALID_ARGUMENT;
    int parts = sscanf(text, "%x:%x:%x.%x", &found->domain, &found->bus, &found->device, &found->function);
    return parts == 4 ? SUCCESS : INVALID_ARGUMENT;
}

/* Like the real one it allocates an address; pages come when the memory is made resident or used. */
EXPORT int zeMemAllocDevice(void *in, const struct desc *desc, size_t size, size_t alignment, void *of, void **address) {
    uint64_t found = 0;
    if (in != &context || of != &device || desc->stype != DEVICE_MEM_ALLOC_DESC || alignment & (alignment - 1))
        return INVALID_ARGUMENT;
    int code = code_of(kernel_allocate("managed", size, &found));
    *address = (void *)(uintptr_t)found;
    return code;
}

EXPORT int zeContextMakeMemoryResident(void *in, void *of, void *address, size_t size) {
    (void)size;
    return in == &context && of == &device ? code_of(kernel_touch((uint64_t)(uintptr_t)address)) : INVALID_ARGUMENT;
}

EXPORT int zeMemFree(void *in, void *address) {
    return in == &context ? code_of(kernel_free((uint64_t)(uintptr_t)address)) : INVALID_ARGUMENT;
}
