/* Temperature, power, clocks, reasons for lower clocks, and utilization. */
#include "sim.h"

#define GPU_SENSOR 0

static int temperature(const struct call *call, unsigned sensor, uint32_t *degrees) {
    return sensor == GPU_SENSOR ? put_unsigned(call, "temperature", degrees) : INVALID_ARGUMENT;
}

static int temperature_v1(const struct call *call, struct temperature *found) {
    uint32_t degrees;
    if (!found)
        return INVALID_ARGUMENT;
    if (found->version != TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    int answer = temperature(call, found->sensor, &degrees);
    if (answer == SUCCESS)
        found->degrees = (int32_t)degrees;
    return answer;
}

static int clock_mhz(const struct call *call, unsigned domain, uint32_t *mhz) {
    static const char *const names[] = {"clock.graphics", "clock.sm", "clock.memory", "clock.video"};
    return domain < 4 ? put_unsigned(call, names[domain], mhz) : INVALID_ARGUMENT;
}

static int utilization(const struct call *call, struct utilization *found) {
    int answer = found ? put_unsigned(call, "utilization.gpu", &found->gpu) : INVALID_ARGUMENT;
    return answer == SUCCESS ? put_unsigned(call, "utilization.memory", &found->memory) : answer;
}

EXPORT int nvmlDeviceGetTemperature(handle device, unsigned sensor, uint32_t *degrees) {
    ON_DEVICE(device, temperature(&call, sensor, degrees))
}

EXPORT int nvmlDeviceGetTemperatureV(handle device, struct temperature *found) {
    ON_DEVICE(device, temperature_v1(&call, found))
}

EXPORT int nvmlDeviceGetPowerUsage(handle device, uint32_t *milliwatts) {
    ON_DEVICE(device, put_unsigned(&call, "power", milliwatts))
}

EXPORT int nvmlDeviceGetClockInfo(handle device, unsigned domain, uint32_t *mhz) {
    ON_DEVICE(device, clock_mhz(&call, domain, mhz))
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(handle device, uint64_t *reasons) {
    ON_DEVICE(device, put_u64(&call, "throttle", reasons))
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(handle device, uint64_t *reasons) {
    ON_DEVICE(device, put_u64(&call, "throttle", reasons))
}

EXPORT int nvmlDeviceGetUtilizationRates(handle device, struct utilization *found) {
    ON_DEVICE(device, utilization(&call, found))
}
