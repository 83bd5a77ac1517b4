/* Default memory pools of two GPUs, by the functions of libcuda.so.1 and of libamdhip64.so. The context of the first
 * GPU is active. Nothing is served before sim_start, as before cuInit. */
#include <stddef.h>
#include <stdint.h>

#define NOT_INITIALIZED 3
#define INVALID 1
#define RESERVED_NOW 5
#define API __attribute__((visibility("default")))

static int started;
static uint64_t reserved[2], used[2];

API void sim_start(uint64_t reserved_bytes, uint64_t used_bytes)
{
    started = 1;
    reserved[0] = reserved_bytes;
    used[0] = used_bytes;
}

static int count(int *found)
{
    *found = 2;
    return started ? 0 : NOT_INITIALIZED;
}

static int handle(int *device, int index)
{
    *device = 100 + index;
    return index < 2 ? 0 : INVALID;
}

static int state(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = device == 100;
    return 0;
}

static int pool(void **found, int device)
{
    *found = &reserved[device - 100];
    return device == 100 ? 0 : INVALID; /* opening a pool without a context would be a mistake of the caller */
}

static int attribute(uint64_t *of, int name, uint64_t *value)
{
    *value = *of;
    return name == RESERVED_NOW ? 0 : INVALID;
}

static int trim(uint64_t *of, size_t keep)
{
    *of = used[of - reserved] > keep ? used[of - reserved] : keep;
    return 0;
}

#ifdef HIP
#define NAME(cuda, hip) hip
#else
#define NAME(cuda, hip) cuda
#endif

API int NAME(cuDeviceGetCount, hipGetDeviceCount)(int *found) { return count(found); }
API int NAME(cuDeviceGet, hipDeviceGet)(int *device, int index) { return handle(device, index); }
API int NAME(cuDevicePrimaryCtxGetState, hipDevicePrimaryCtxGetState)(int device, unsigned *flags, int *active)
{
    return state(device, flags, active);
}
API int NAME(cuDeviceGetDefaultMemPool, hipDeviceGetDefaultMemPool)(void **found, int device) { return pool(found, device); }
API int NAME(cuMemPoolGetAttribute, hipMemPoolGetAttribute)(void *of, int name, void *value)
{
    return attribute(of, name, value);
}
API int NAME(cuMemPoolTrimTo, hipMemPoolTrimTo)(void *of, size_t keep) { return trim(of, keep); }
