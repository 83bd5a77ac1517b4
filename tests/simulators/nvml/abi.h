/* The binary interface of libnvidia-ml.so.1 as nvidia-ml-py 13.615 declares it in ctypes.
 *
 * Names of fields are ours; order, widths and the versions inside the structs are the driver's. */
#ifndef NVML_SIM_ABI_H
#define NVML_SIM_ABI_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef void *handle;

enum answer {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define NOT_AVAILABLE UINT64_MAX
#define NO_INSTANCE UINT32_MAX

#define MEMORY_V2 0x02000028u
#define PROCESS_DETAIL_LIST_V1 0x01000018u
#define PCI_INFO_EXT_V1 0x01000040u
#define UUID_V1 0x01000034u
#define ADDRESSING_MODE_V1 0x01000008u
#define UNREPAIRABLE_MEMORY_V1 0x01000008u
#define TEMPERATURE_V1 0x0100000Cu

struct memory_v1 {
    uint64_t total, free, used;
};

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

struct bar1 {
    uint64_t total, free, used;
};

struct memory_limits_v1 {
    const char *name_space;
    uint64_t soft, hard, used;
};

/* The lists of version 1 hold the first 16 bytes of each, versions 2 and 3 the first 24, the detail list all.
 * Drivers 535.54 to 535.98 wrote all 32 bytes into lists of version 3. */
struct process {
    uint32_t pid;
    uint64_t used;
    uint32_t gpu_instance, compute_instance;
    uint64_t protected_used;
};
#define PROCESS_V1 16
#define PROCESS_V3 24
#define PROCESS_R535 32

struct process_detail_list {
    uint32_t version, mode, count;
    struct process *records;
};

struct pci_info_v3 {
    char legacy_bus_id[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct pci_info_ext {
    uint32_t version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
    char bus_id[32];
};

struct uuid {
    uint32_t version, type;
    union {
        char text[41];
        uint8_t bytes[16];
    } value;
};
#define UUID_AS_TEXT 1

struct addressing_mode {
    uint32_t version, value;
};

struct c2c_mode {
    uint32_t enabled;
};

struct mig_attributes {
    uint32_t multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    uint64_t memory_mib;
};

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency_usec;
    uint32_t value_type, answer;
    union {
        double as_double;
        uint32_t as_unsigned;
        uint64_t as_u64;
    } value;
};

struct remapped_rows_v2 {
    uint32_t corrected, corrected_inactive, uncorrected, uncorrected_inactive, pending, failure;
};

struct row_histogram {
    uint32_t max, high, partial, low, none;
};

struct unrepairable_memory {
    uint32_t version, flag;
};

struct temperature {
    uint32_t version, sensor;
    int32_t degrees;
};

struct utilization {
    uint32_t gpu, memory;
};

struct event_data {
    handle device;
    uint64_t type, data;
    uint32_t gpu_instance, compute_instance;
};

_Static_assert(sizeof(void *) == 8, "handles carry 64 bits");
_Static_assert(sizeof(struct memory_v1) == 24, "memory v1");
_Static_assert(sizeof(struct memory_v2) == (MEMORY_V2 & 0xFFFFFF), "memory v2");
_Static_assert(sizeof(struct process) == PROCESS_R535, "process");
_Static_assert(sizeof(struct process_detail_list) == (PROCESS_DETAIL_LIST_V1 & 0xFFFFFF), "detail list");
_Static_assert(sizeof(struct pci_info_v3) == 68, "PCI v3");
_Static_assert(sizeof(struct pci_info_ext) == (PCI_INFO_EXT_V1 & 0xFFFFFF), "PCI ext");
_Static_assert(sizeof(struct uuid) == (UUID_V1 & 0xFFFFFF), "UUID");
_Static_assert(sizeof(struct mig_attributes) == 40, "MIG attributes");
_Static_assert(sizeof(struct field_value) == 40, "field value");
_Static_assert(sizeof(struct temperature) == (TEMPERATURE_V1 & 0xFFFFFF), "temperature");
_Static_assert(sizeof(struct event_data) == 32, "event");

#endif
