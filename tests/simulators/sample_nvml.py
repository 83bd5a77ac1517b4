"""Machines with NVIDIA GPUs, each with the name of its host folder.

Values of the H100 and H200 with MIG are those of nvidia-smi captures published by nvidia_gpu_exporter (driver
590.48.01, under load); totals and reserved memory of the others are from public logs of such machines. UUIDs and
process ids are invented.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulators.nvml_parts import (
    ADA,
    AMPERE,
    ATS,
    DATACENTER_EVENTS,
    GEFORCE,
    GEFORCE_EVENTS,
    GIB,
    HMM,
    HOPPER,
    MIB,
    MIG_OFF,
    NO_ADDRESSING,
    NVIDIA,
    NVIDIA_RTX,
    NVIDIA_VWS,
    PASSTHROUGH,
    VGPU_GUEST,
    mib,
    mig_device,
    uuid,
    window,
)
from simulators.nvml_state import Ecc, Gpu, GpuInstance, Holder, Limit, Machine, Mig, Remapped, Sensors
from simulators.sample_nvml_integrated import (
    GB10,
    GB10_ENDED_CONTAINER,
    GB10_ORPHANED_ENGINE,
    GB10_SHIM,
    GB10_TOTAL_ZERO,
    N1X_CARVEOUT,
    THOR,
    orin,
)

RTX_4090 = Machine(
    host="rtx-4090",
    gpus=(
        Gpu(
            name="NVIDIA GeForce RTX 4090",
            uuid=uuid(0x4090),
            bus_id="00000000:01:00.0",
            device_id=0x268410DE,
            subsystem_id=0x889D1043,
            brand=GEFORCE,
            architecture=ADA,
            cuda=(8, 9),
            persistence=False,
            addressing_mode=HMM,
            memory=mib(24564, used=13320, reserved=424),
            bar1=window(32768, 30),
            # The desktop is in both lists, as type C+G in nvidia-smi.
            compute=(Holder(31337, 12610 * MIB), Holder(2165, 25 * MIB)),
            graphics=(Holder(2101, 412 * MIB), Holder(2165, 25 * MIB), Holder(2496, 201 * MIB)),
            sensors=Sensors(61, 287_400, 2715, 10501, throttle=0, busy=93, memory_busy=41),
            recovery_action=0,
            event_types=GEFORCE_EVENTS,
        ),
    ),
)

# Without utilization, which the driver does not report in MIG mode.
MIG_SENSORS = Sensors(58, 642_300, 1980, 2619, throttle=0x4)

_H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    uuid=uuid(0x8000),
    bus_id="00000000:1B:00.0",
    device_id=0x233010DE,
    subsystem_id=0x16C110DE,
    brand=NVIDIA,
    architecture=HOPPER,
    cuda=(9, 0),
    addressing_mode=NO_ADDRESSING,
    c2c=False,
    memory=mib(81559, used=0, reserved=479),
    bar1=window(131072, 1),
    ecc=Ecc(),
    remapped=Remapped(),
    sensors=replace(MIG_SENSORS, busy=99, memory_busy=62),
    recovery_action=0,
    unrepairable=False,
    event_types=DATACENTER_EVENTS,
    mig=MIG_OFF,
)

EIGHT_H100 = Machine(
    host="8x-h100",
    gpus=tuple(
        replace(
            _H100,
            uuid=uuid(0x8000 + slot),
            bus_id=f"00000000:{bus}:00.0",
            minor_number=slot,
            memory=mib(81559, used=70210 + slot, reserved=479),
            compute=(Holder(200101 + slot, (69702 + slot) * MIB),),
        )
        for slot, bus in enumerate(("1B", "43", "52", "61", "9D", "C3", "D1", "DF"))
    ),
)

H100_MIG = Machine(
    host="h100-mig",
    driver="590.48.01",
    nvml="13.590.48.01",
    cuda=13010,
    gpus=(
        replace(
            _H100,
            bus_id="00000000:00:09.0",
            virtualization_mode=PASSTHROUGH,
            sensors=MIG_SENSORS,
            memory=mib(81559, used=11125, reserved=479),
            bar1=window(131072, 81081),
            compute=(
                Holder(21180, 2296 * MIB, gi=2, ci=0),
                Holder(21181, 1272 * MIB, gi=2, ci=0),
                Holder(21198, 7484 * MIB, gi=2, ci=0),
            ),
            mig=Mig(
                instances={
                    2: GpuInstance(mib(40448, used=11091), window(24739)),
                    3: GpuInstance(mib(20096, used=17), window(12369)),
                    9: GpuInstance(mib(9984, used=9), window(6184)),
                    10: GpuInstance(mib(9984, used=9), window(6184)),
                },
                devices={
                    0: mig_device(2, 0, 0x100, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448, 60),
                    1: mig_device(3, 0, 0x101, "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 20096, 32),
                    2: mig_device(9, 0, 0x102, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 16),
                    3: mig_device(10, 0, 0x103, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 16),
                },
            ),
        ),
    ),
)

# MIG devices 0 and 1 are two compute instances of GPU instance 2: the same 16925 MiB, reported twice.
H200_MIG = Machine(
    host="h200-mig",
    driver="590.48.01",
    nvml="13.590.48.01",
    cuda=13010,
    gpus=(
        replace(
            _H100,
            name="NVIDIA H200",
            uuid=uuid(0x2000),
            bus_id="00000000:83:00.0",
            device_id=0x233510DE,
            subsystem_id=0x18BE10DE,
            virtualization_mode=PASSTHROUGH,
            sensors=MIG_SENSORS,
            memory=mib(143771, used=16959, reserved=614),
            bar1=window(262144, 143157),
            compute=(
                Holder(12249, 2194 * MIB, gi=2, ci=1),
                Holder(12250, 1170 * MIB, gi=2, ci=1),
                Holder(12267, 13526 * MIB, gi=2, ci=1),
            ),
            mig=Mig(
                instances={
                    2: GpuInstance(mib(71424, used=16925), window(59237)),
                    3: GpuInstance(mib(33280, used=17), window(29618)),
                    9: GpuInstance(mib(16384, used=9), window(14809)),
                    10: GpuInstance(mib(16384, used=9), window(14809)),
                },
                devices={
                    0: mig_device(2, 0, 0x200, "NVIDIA H200 MIG 1c.3g.71gb", 71424, 16),
                    1: mig_device(2, 1, 0x201, "NVIDIA H200 MIG 2c.3g.71gb", 71424, 32),
                    2: mig_device(3, 0, 0x202, "NVIDIA H200 MIG 2g.35gb", 33280, 32),
                    3: mig_device(9, 0, 0x203, "NVIDIA H200 MIG 1g.18gb", 16384, 16),
                    4: mig_device(10, 0, 0x204, "NVIDIA H200 MIG 1g.18gb", 16384, 16),
                },
            ),
        ),
    ),
)


_GH200 = replace(
    _H100,
    name="NVIDIA GH200 480GB",
    uuid=uuid(0x2342),
    bus_id="00000009:01:00.0",
    device_id=0x234210DE,
    subsystem_id=0x180910DE,
    addressing_mode=ATS,
    c2c=True,
    memory=mib(97871, used=38912, reserved=1103),
    bar1=None,
    compute=(Holder(51200, 38400 * MIB),),
    ecc=Ecc(aggregate_uncorrected=1),
    remapped=Remapped(uncorrected=1, banks=(3071, 1, 0, 0, 0)),
)

GH200_NUMA = Machine(
    host="gh200-numa", driver="580.95.05", nvml="13.580.95.05", gpus=(replace(_GH200, numa_node=1),)
)
GH200_CDMM = Machine(host="gh200-cdmm", driver="615.43", nvml="13.615.43", cuda=13040, gpus=(_GH200,))

# Memory in use is that of all of Windows; memory of processes is not reported.
WSL2 = Machine(
    host="wsl2",
    driver="591.86",
    nvml="13.591.86",
    cuda=13010,
    gpus=(
        Gpu(
            name="NVIDIA GeForce RTX 4070",
            uuid=uuid(0x4070),
            bus_id="00000000:01:00.0",
            device_id=0x278610DE,
            subsystem_id=0x51361462,
            brand=GEFORCE,
            architecture=ADA,
            cuda=(8, 9),
            memory=mib(12282, used=5120, reserved=198),
            bar1=window(16384, 30),
            compute=(Holder(1431, None),),
            graphics=(Holder(23, None),),
        ),
    ),
)
WSL2_EMPTY_LISTS = WSL2.with_gpu(0, compute=(), graphics=())

VGPU_GUEST_A40 = Machine(
    host="vgpu-guest",
    driver="570.172.08",
    nvml="12.570.172.08",
    cuda=12080,
    gpus=(
        Gpu(
            name="NVIDIA A40-12Q",
            uuid=uuid(0xA40),
            bus_id="00000000:02:00.0",
            device_id=0x223510DE,
            subsystem_id=0x14DD10DE,
            brand=NVIDIA_VWS,
            architecture=AMPERE,
            cuda=(8, 6),
            virtualization_mode=VGPU_GUEST,
            addressing_mode=HMM,
            memory=mib(12288, used=5206, reserved=819),
            bar1=window(4096, 4),
            compute=(Holder(9051, 5120 * MIB),),
            graphics=(Holder(1877, 64 * MIB),),
            ecc=Ecc(),
        ),
    ),
)

# 40 GiB are used by processes of another namespace, which the driver leaves out of its lists.
CONTAINER_HIDDEN_PIDS = Machine(
    host="container-hidden-pids",
    driver="595.80",
    nvml="13.595.80",
    cuda=13020,
    gpus=(
        Gpu(
            name="NVIDIA L40S",
            uuid=uuid(0x40),
            bus_id="00000000:01:00.0",
            device_id=0x26B910DE,
            subsystem_id=0x185110DE,
            brand=NVIDIA,
            architecture=ADA,
            cuda=(8, 9),
            addressing_mode=HMM,
            memory=mib(46068, used=40960, reserved=609),
            bar1=window(65536, 1),
            ecc=Ecc(),
            remapped=Remapped(banks=(192, 0, 0, 0, 0)),
            recovery_action=0,
            event_types=DATACENTER_EVENTS,
        ),
    ),
)

# Beside an AMD and an Intel card, on a kernel with dmem: the pod in two cgroups has a limit on each card.
THREE_MAKERS_DMEM = Machine(
    host="three-makers-dmem",
    driver="615.71.09",
    nvml="13.615.71.09",
    cuda=13040,
    gpus=(
        Gpu(
            name="NVIDIA RTX 6000 Ada Generation",
            uuid=uuid(0x6000),
            bus_id="00000000:41:00.0",
            device_id=0x26B110DE,
            brand=NVIDIA_RTX,
            architecture=ADA,
            cuda=(8, 9),
            addressing_mode=HMM,
            memory=mib(46068, used=30720, reserved=609),
            bar1=window(65536, 1),
            compute=(Holder(6100, 15 * GIB),),
            event_types=DATACENTER_EVENTS,
        ),
    ),
)

# Drivers of 2021 report PIDs of the host's namespace, which a container does not have (nvidia-docker#179).
A40_DOCKER_470 = Machine(
    host="a40-docker-470",
    driver="470.256.02",
    nvml="11.470.256.02",
    cuda=11040,
    gpus=(
        Gpu(
            name="NVIDIA A40",
            uuid=uuid(0xA40),
            bus_id="00000000:01:00.0",
            device_id=0x223510DE,
            subsystem_id=0x145A10DE,
            brand=NVIDIA,
            architecture=AMPERE,
            cuda=(8, 6),
            memory=mib(45634, used=40100, reserved=565),
            bar1=window(65536, 5),
            compute=(Holder(48213, 39402 * MIB),),
            ecc=Ecc(),
            event_types=DATACENTER_EVENTS,
        ),
    ),
)

# The driver itself keeps the limits on kernels without dmem.
RTX_4090_LIMITS = replace(
    RTX_4090.with_gpu(
        0,
        limits=(
            Limit("/user.slice/user-1000.slice/session-4.scope", soft=8 * GIB, hard=16 * GIB, used=12610 * MIB),
            Limit("/system.slice", soft=0, hard=None, used=0),
        ),
    ),
    driver="615.71.09",
    nvml="13.615.71.09",
    cuda=13040,
)

# The same L40S from a container with a limit: its total is the limit.
CONTAINER_PARTITION = replace(
    CONTAINER_HIDDEN_PIDS.with_gpu(
        0, limits=(Limit("/", soft=8 * GIB, hard=20 * GIB, used=15 * GIB),), partition="/"
    ),
    driver="615.71.09",
    nvml="13.615.71.09",
    cuda=13040,
)


READY = {
    "a40-docker-470": A40_DOCKER_470,
    "gb10-ended-container": GB10_ENDED_CONTAINER,
    "gb10-orphaned-engine": GB10_ORPHANED_ENGINE,
    "rtx-4090": RTX_4090,
    "8x-h100": EIGHT_H100,
    "h100-mig": H100_MIG,
    "h200-mig": H200_MIG,
    "gb10": GB10,
    "gb10-total-zero": GB10_TOTAL_ZERO,
    "gb10-shim": GB10_SHIM,
    "n1x-carveout": N1X_CARVEOUT,
    "thor": THOR,
    "jetson-orin-nano": orin("jetson-orin-nano", "540.4.0"),
    "jetson-agx-orin-jp6": orin("jetson-agx-orin-jp6", "540.3.0"),
    "jetson-agx-orin-jp7.2": orin("jetson-agx-orin-jp7.2", "595.78"),
    "gh200-numa": GH200_NUMA,
    "gh200-cdmm": GH200_CDMM,
    "wsl2": WSL2,
    "wsl2-empty-lists": WSL2_EMPTY_LISTS,
    "vgpu-guest": VGPU_GUEST_A40,
    "container-hidden-pids": CONTAINER_HIDDEN_PIDS,
    "three-makers-dmem": THREE_MAKERS_DMEM,
    "rtx-4090-limits": RTX_4090_LIMITS,
    "container-hidden-pids-partition": CONTAINER_PARTITION,
}
# Their drivers list a process of another PID namespace, or one that has ended.
WITH_MISSING_PIDS = {"a40-docker-470", "gb10-ended-container"}
