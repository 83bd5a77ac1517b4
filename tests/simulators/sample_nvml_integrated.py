"""Machines whose NVIDIA GPU uses system RAM, each with the name of its host folder.

Memory figures are from public logs of such machines. UUIDs and process ids are invented, and so are the PCI numbers
of N1X.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulators.nvml_parts import (
    ATS,
    BLACKWELL,
    MIB,
    MIG_OFF,
    NVIDIA,
    NVIDIA_RTX,
    XID,
    mib,
    uuid,
)
from simulators.nvml_state import (
    Gpu,
    Holder,
    Machine,
    Memory,
    Sensors,
    Trouble,
)

GB10_RAM, GB10_AVAILABLE = 127600748 << 10, 46444010 << 10


GB10 = Machine(
    host="gb10",
    gpus=(
        Gpu(
            name="NVIDIA GB10",
            uuid=uuid(0x1210),
            bus_id="0000000F:01:00.0",
            device_id=0x2E1210DE,
            brand=NVIDIA_RTX,
            architecture=BLACKWELL,
            cuda=(12, 1),
            addressing_mode=ATS,
            c2c=True,
            compute=(Holder(3921, 63931 * MIB),),
            graphics=(Holder(2890, 18 * MIB), Holder(3105, 6 * MIB)),
            sensors=Sensors(67, 41_200, 2405, throttle=0, busy=96, memory_busy=0),
            recovery_action=0,
            event_types=XID,
        ),
    ),
)


GB10_TOTAL_ZERO = GB10.with_gpu(0, memory=Memory(0, 0))


# A shim between the binding and the driver returns the host's memory as NVML's.
GB10_SHIM = GB10.with_gpu(0, memory=Memory(GB10_RAM, used=GB10_RAM - GB10_AVAILABLE))


N1X_CARVEOUT = Machine(
    host="n1x-carveout",
    driver="616.30",
    nvml="13.616.30",
    cuda=13040,
    gpus=(
        Gpu(
            name="NVIDIA RTX Spark N1X (6144-core Blackwell RTX GPU)",
            uuid=uuid(0x1E01),
            bus_id="00000001:01:00.0",
            device_id=0x2E2A10DE,
            brand=NVIDIA_RTX,
            architecture=BLACKWELL,
            cuda=(12, 1),
            memory=mib(8128, used=12, reserved=187),
            compute=(Holder(742, None),),
        ),
    ),
)


THOR = Machine(
    host="thor",
    driver="580.00",
    nvml="13.580.00",
    gpus=(
        Gpu(
            name="NVIDIA Thor",
            uuid=uuid(0x2640),
            bus_id="00000000:01:00.0",
            device_id=0x2B0010DE,
            brand=NVIDIA,
            architecture=BLACKWELL,
            cuda=(11, 0),
            persistence=False,
            compute=(Holder(4711, 27648 * MIB),),
            graphics=(Holder(2317, 96 * MIB),),
            mig=MIG_OFF,
        ),
    ),
)


def orin(host: str, driver: str) -> Machine:
    """Return NVML on an Orin: it names the GPU, and answers NOT_SUPPORTED to all else."""
    not_supported = Trouble(error=3)
    gpu = Gpu(
        name="Orin (nvgpu)",
        uuid=uuid(0x2340),
        bus_id="00000000:00:00.0",
        device_id=0,
        persistence=None,
        virtualization_mode=None,
        compute=None,
        graphics=None,
        mps=None,
        troubles={f"nvmlDeviceGetPciInfo{version}": not_supported for version in ("_v3", "Ext")},
    )
    return Machine(host=host, driver=driver, nvml=f"12.{driver}", cuda=12060, gpus=(gpu,))


# The container of process 3921 has ended; the driver still lists it (memory came back after 3 to 4 minutes).
GB10_ENDED_CONTAINER = replace(GB10, host="gb10-ended-container")


# The API server was killed and left its engine behind, with 104,277 MiB.
GB10_ORPHANED_ENGINE = replace(
    GB10.with_gpu(0, compute=(Holder(41877, 104277 * MIB),)), host="gb10-orphaned-engine"
)
