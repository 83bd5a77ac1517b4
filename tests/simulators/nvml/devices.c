/* The list of devices and their constant properties. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "sim.h"

struct address {
    unsigned domain, bus, device, function;
};

static bool parse_address(const char *text, struct address *address) {
    *address = (struct address){0};
    return text && sscanf(text, "%x:%x:%x.%x", &address->domain, &address->bus, &address->device,
                          &address->function) == 4;
}

static int give(struct call *call, int gpu, int mig, handle *device) {
    int answer = narrow(call, gpu, mig);
    if (answer == SUCCESS)
        *device = handle_of(gpu, mig);
    return answer;
}

static int by_index(struct call *call, unsigned index, handle *device) {
    const int *slots;
    if (!device || index >= state_devices(&slots))
        return INVALID_ARGUMENT;
    return give(call, slots[index], -1, device);
}

static bool is_uuid(int gpu, int mig, const char *uuid) {
    struct call at;
    scope_to(&at, gpu, mig);
    const char *found = state_text(at.scope, "uuid");
    return found && strcasecmp(found, uuid) == 0;
}

static int by_uuid(struct call *call, const char *uuid, handle *device) {
    const int *slots;
    size_t count = state_devices(&slots);
    if (!uuid || !device)
        return INVALID_ARGUMENT;
    for (size_t at = 0; at < count; at++) {
        struct call gpu;
        uint64_t migs = 0;
        scope_to(&gpu, slots[at], -1);
        state_number(gpu.scope, "mig.max", &migs);
        for (int mig = -1; mig < (int)migs; mig++)
            if (is_uuid(slots[at], mig, uuid))
                return give(call, slots[at], mig, device);
    }
    return NOT_FOUND;
}

static int by_uuid_struct(struct call *call, const struct uuid *uuid, handle *device) {
    if (!uuid)
        return INVALID_ARGUMENT;
    if (uuid->version != UUID_V1)
        return ARGUMENT_VERSION_MISMATCH;
    return uuid->type == UUID_AS_TEXT ? by_uuid(call, uuid->value.text, device) : INVALID_ARGUMENT;
}

static int by_address(struct call *call, const char *text, handle *device) {
    const int *slots;
    struct address wanted, found;
    size_t count = state_devices(&slots);
    if (!device || !parse_address(text, &wanted))
        return INVALID_ARGUMENT;
    for (size_t at = 0; at < count; at++) {
        struct call gpu;
        scope_to(&gpu, slots[at], -1);
        if (parse_address(state_text(gpu.scope, "pci.bus_id"), &found) &&
            memcmp(&found, &wanted, sizeof found) == 0)
            return give(call, slots[at], -1, device);
    }
    return NOT_FOUND;
}

static int count_devices(uint32_t *count) {
    const int *slots;
    if (!count)
        return INVALID_ARGUMENT;
    *count = (uint32_t)state_devices(&slots);
    return SUCCESS;
}

static int index_of(const struct call *call, uint32_t *index) {
    const int *slots;
    size_t count = state_devices(&slots);
    if (!index)
        return INVALID_ARGUMENT;
    for (*index = 0; *index < count && slots[*index] != call->gpu; ++*index)
        ;
    return SUCCESS;
}

/* A MIG device has the address of its GPU. */
static int pci_info(const struct call *call, struct pci_info_v3 *info) {
    struct address at;
    struct call gpu;
    scope_to(&gpu, call->gpu, -1);
    const char *text = state_text(gpu.scope, "pci.bus_id");
    if (!info)
        return INVALID_ARGUMENT;
    if (!parse_address(text, &at))
        return NOT_SUPPORTED;
    *info = (struct pci_info_v3){.domain = at.domain, .bus = at.bus, .device = at.device};
    snprintf(info->bus_id, sizeof info->bus_id, "%s", text);
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%04X:%02X:%02X.%X", at.domain & 0xFFFF,
             at.bus & 0xFF, at.device & 0xFF, at.function & 0xF);
    put_unsigned(&gpu, "pci.device_id", &info->pci_device_id);
    put_unsigned(&gpu, "pci.subsystem_id", &info->pci_subsystem_id);
    return SUCCESS;
}

static int pci_info_ext(const struct call *call, struct pci_info_ext *info) {
    struct pci_info_v3 found;
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != PCI_INFO_EXT_V1)
        return ARGUMENT_VERSION_MISMATCH;
    int answer = pci_info(call, &found);
    if (answer != SUCCESS)
        return answer;
    info->domain = found.domain;
    info->bus = found.bus;
    info->device = found.device;
    info->pci_device_id = found.pci_device_id;
    info->pci_subsystem_id = found.pci_subsystem_id;
    info->base_class = 3;
    info->sub_class = 2;
    memcpy(info->bus_id, found.bus_id, sizeof info->bus_id);
    return SUCCESS;
}

static int compute_capability(const struct call *call, uint32_t *major, uint32_t *minor) {
    int answer = put_unsigned(call, "cuda.major", major);
    return answer == SUCCESS ? put_unsigned(call, "cuda.minor", minor) : answer;
}

static int addressing_mode(const struct call *call, struct addressing_mode *mode) {
    if (!mode)
        return INVALID_ARGUMENT;
    if (mode->version != ADDRESSING_MODE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    return put_unsigned(call, "addressing_mode", &mode->value);
}

EXPORT int nvmlDeviceGetCount_v2(uint32_t *count) {
    ON_MACHINE(count_devices(count))
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device) {
    ON_MACHINE(by_index(&call, index, device))
}

EXPORT int nvmlDeviceGetCount(uint32_t *count) {
    ON_MACHINE(count_devices(count))
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, handle *device) {
    ON_MACHINE(by_index(&call, index, device))
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device) {
    ON_MACHINE(by_uuid(&call, uuid, device))
}

EXPORT int nvmlDeviceGetHandleByUUIDV(const struct uuid *uuid, handle *device) {
    ON_MACHINE(by_uuid_struct(&call, uuid, device))
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, handle *device) {
    ON_MACHINE(by_address(&call, address, device))
}

EXPORT int nvmlDeviceGetIndex(handle device, uint32_t *index) {
    ON_DEVICE(device, index_of(&call, index))
}

EXPORT int nvmlDeviceGetName(handle device, char *name, unsigned length) {
    ON_DEVICE(device, put_text(&call, "name", name, length))
}

EXPORT int nvmlDeviceGetUUID(handle device, char *uuid, unsigned length) {
    ON_DEVICE(device, put_text(&call, "uuid", uuid, length))
}

EXPORT int nvmlDeviceGetSerial(handle device, char *serial, unsigned length) {
    ON_DEVICE(device, put_text(&call, "serial", serial, length))
}

EXPORT int nvmlDeviceGetMinorNumber(handle device, uint32_t *number) {
    ON_DEVICE(device, put_unsigned(&call, "minor_number", number))
}

EXPORT int nvmlDeviceGetPciInfo_v3(handle device, struct pci_info_v3 *info) {
    ON_DEVICE(device, pci_info(&call, info))
}

EXPORT int nvmlDeviceGetPciInfoExt(handle device, struct pci_info_ext *info) {
    ON_DEVICE(device, pci_info_ext(&call, info))
}

EXPORT int nvmlDeviceGetBrand(handle device, uint32_t *brand) {
    ON_DEVICE(device, put_unsigned(&call, "brand", brand))
}

EXPORT int nvmlDeviceGetArchitecture(handle device, uint32_t *architecture) {
    ON_DEVICE(device, put_unsigned(&call, "architecture", architecture))
}

EXPORT int nvmlDeviceGetCudaComputeCapability(handle device, uint32_t *major, uint32_t *minor) {
    ON_DEVICE(device, compute_capability(&call, major, minor))
}

EXPORT int nvmlDeviceGetPersistenceMode(handle device, uint32_t *mode) {
    ON_DEVICE(device, put_unsigned(&call, "persistence", mode))
}

EXPORT int nvmlDeviceGetVirtualizationMode(handle device, uint32_t *mode) {
    ON_DEVICE(device, put_unsigned(&call, "virtualization_mode", mode))
}

EXPORT int nvmlDeviceGetAddressingMode(handle device, struct addressing_mode *mode) {
    ON_DEVICE(device, addressing_mode(&call, mode))
}

EXPORT int nvmlDeviceGetNumaNodeId(handle device, uint32_t *node) {
    ON_DEVICE(device, put_unsigned(&call, "numa_node", node))
}

EXPORT int nvmlDeviceGetC2cModeInfoV(handle device, struct c2c_mode *mode) {
    ON_DEVICE(device, put_unsigned(&call, "c2c", mode ? &mode->enabled : NULL))
}
