/* Runtime power management: `gpu.S.power.file` is the runtime_status of the GPU in a folder like /sys.
 *
 * As measured on laptops: opening NVML resumes every GPU (with NO_ATTACH: its handle does), a call resumes it as well,
 * and it is suspended once NVML is closed, unless another program uses it (`gpu.S.power.in_use`). */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>

#include "sim.h"

static bool attached[SLOTS];

static void write_status(int gpu, const char *word) {
    char scope[24], fresh[PATH_MAX];
    snprintf(scope, sizeof scope, "gpu.%d.", gpu);
    const char *path = state_text(scope, "power.file");
    if (!path)
        return;
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    if (!file || fprintf(file, "%s\n", word) < 0 || fclose(file) != 0 || rename(fresh, path) != 0)
        refuse("cannot be written", path);
}

void power_attach(int gpu) {
    if (gpu < 0)
        return;
    attached[gpu] = true;
    write_status(gpu, "active");
}

void power_attach_all(void) {
    const int *slots;
    size_t count = state_devices(&slots);
    for (size_t at = 0; at < count; at++)
        power_attach(slots[at]);
}

/* Without devices the driver has been unloaded, and there is no state to look at. */
void power_detach_all(void) {
    const int *slots;
    bool loaded = state_devices(&slots) > 0;
    for (int gpu = 0; gpu < SLOTS; gpu++) {
        char scope[24];
        uint64_t in_use = 0;
        snprintf(scope, sizeof scope, "gpu.%d.", gpu);
        if (loaded && attached[gpu])
            state_number(scope, "power.in_use", &in_use);
        if (loaded && attached[gpu] && !in_use)
            write_status(gpu, "suspended");
        attached[gpu] = false;
    }
}
