/* Functions that monitors look up when they load the library, of which the state files describe nothing: the driver
 * has them, and they are not supported. Only the handle of their arguments is read. */
#include "sim.h"

#define NOT_DESCRIBED(name)                  \
    EXPORT int name(handle device) {         \
        ON_DEVICE(device, NOT_SUPPORTED)     \
    }

NOT_DESCRIBED(nvmlDeviceGetCurrPcieLinkGeneration)
NOT_DESCRIBED(nvmlDeviceGetCurrPcieLinkWidth)
NOT_DESCRIBED(nvmlDeviceGetDecoderUtilization)
NOT_DESCRIBED(nvmlDeviceGetEncoderUtilization)
NOT_DESCRIBED(nvmlDeviceGetEnforcedPowerLimit)
NOT_DESCRIBED(nvmlDeviceGetFanSpeed)
NOT_DESCRIBED(nvmlDeviceGetMaxClockInfo)
NOT_DESCRIBED(nvmlDeviceGetMaxPcieLinkGeneration)
NOT_DESCRIBED(nvmlDeviceGetMaxPcieLinkWidth)
NOT_DESCRIBED(nvmlDeviceGetPcieThroughput)
NOT_DESCRIBED(nvmlDeviceGetPowerManagementLimit)
NOT_DESCRIBED(nvmlDeviceGetPowerState)
NOT_DESCRIBED(nvmlDeviceGetProcessUtilization)
NOT_DESCRIBED(nvmlDeviceGetTemperatureThreshold)
