"""Figures that may change with a field of a kernel file or driver answer, by source and field.

The one declaration of the law of single figures. Names are patterns: kind of record, and field. A record that goes
or comes is `gone`.
"""

from __future__ import annotations

from collections.abc import Mapping

Patterns = tuple[str, ...]
Fields = Mapping[str, Patterns]

BY_USE = ("system_ram.contents", "system_ram.unattributed_bytes", "system_ram.overlap")
HEADROOM = ("device.headroom*", "device.api_free_bytes")
AVAILABLE = (
    "system_ram.available_bytes",
    "system_ram.used_bytes",
    "system_ram.quality",
    "system_ram.source",
    *BY_USE,
    *HEADROOM,
)
# In a container of lxcfs, System RAM of the container is its limit.
LIMIT = ("cgroup.used_bytes", "cgroup.quality", "cgroup.source")
CACHES = (
    "Cached",
    "Buffers",
    "SwapCached",
    "AnonPages",
    "Shmem",
    "SReclaimable",
    "Active(file)",
    "Inactive(file)",
    "Active(anon)",
    "Inactive(anon)",
)
HUGE = ("system_ram.set_aside*", *BY_USE, *HEADROOM)
# Without these two there is no System RAM, nor a share of it.
NEEDED = ("*",)
MEMINFO: Fields = {
    **dict.fromkeys(("MemTotal", "MemFree"), NEEDED),
    **dict.fromkeys(("MemAvailable", *CACHES), (*AVAILABLE, *LIMIT)),
    **dict.fromkeys(("KReclaimable", "SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "Percpu"), BY_USE),
    "Balloon": BY_USE,
    "GPUReclaim": (*AVAILABLE, *LIMIT, *BY_USE),
    "Zswap": (*BY_USE, "swap.zswap_memory_bytes"),
    "Zswapped": ("swap.zswap_stored_bytes",),
    **dict.fromkeys(("HugePages_Total", "Hugepagesize", "Hugetlb"), HUGE),
    **dict.fromkeys(("HugePages_Free", "HugePages_Rsvd"), ("system_ram.set_aside_free_bytes", *HEADROOM)),
    **dict.fromkeys(("SwapTotal", "SwapFree"), ("swap*",)),
}

# A node that is a GPU's memory is the pool of that GPU, and is no part of System RAM.
# The use of HBM is the most that its processes can hold.
HELD = ("process.device_bytes", "process.footprint_bytes", "process.footprint_basis", "process.footprint_range")
NODE_AVAILABLE = ("node.available_bytes", "node.quality", "hbm.*", *HELD, *AVAILABLE)
NODE_PARTS = ("node.contents", "hbm.contents", "hbm.unattributed_bytes", "hbm.overlap", *BY_USE)
WHOLE_NODE = ("node.*", "system_ram.*", "nvml_used.*", "hbm.*", "device.*", "process.*", "machine.*", "cgroup.*")
NUMA: Fields = {
    "MemTotal": WHOLE_NODE,
    "MemFree": (*NODE_AVAILABLE, "node.free_bytes", "system_ram.free_bytes"),
    **dict.fromkeys(("FilePages", "SwapCached", "Active(file)", "Inactive(file)", "SReclaimable"), NODE_AVAILABLE),
    **dict.fromkeys(("Active(anon)", "Inactive(anon)"), NODE_AVAILABLE),
    **dict.fromkeys(("AnonPages", "Shmem"), (*NODE_PARTS, *NODE_AVAILABLE)),
    **dict.fromkeys(("SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "HugePages_Total"), NODE_PARTS),
}

ZRAM: Fields = {
    "[0]": ("zram.stored_bytes",),
    "[1]": ("zram.*", *BY_USE),
    "[2]": ("zram.memory_bytes", *BY_USE),
    "mm_stat": ("zram.*", *BY_USE),
}

USED = ("cgroup.used_bytes", "cgroup.quality", "cgroup.note")
# The smallest limit decides which of several groups is shown.
LIMITING = ("cgroup.limit_bytes", "cgroup.limit_throttles", "cgroup.label", "cgroup.source", *USED)
CGROUP: Fields = {
    **dict.fromkeys(("memory.current", "memory.usage_in_bytes"), USED),
    **dict.fromkeys(("memory.high", "memory.max", "memory.limit_in_bytes", "hierarchical_memory_limit"), LIMITING),
    **dict.fromkeys(("inactive_file", "active_file", "slab_reclaimable"), USED),
    **dict.fromkeys(("total_inactive_file", "total_active_file"), USED),
}

GTT = ("gtt.*", *HEADROOM, *BY_USE)
OWN = ("vram.*", "carveout.*", "hbm.*")
WORDS = ("device.evidence", "device.notes", "device.details", "device.architecture", "machine.*")
AMDGPU: Fields = {
    "mem_info_gtt_total": (*GTT, *WORDS),
    "mem_info_gtt_used": (*GTT, "process.*"),
    "mem_info_vis_vram_total": WORDS,
    "mem_info_vis_vram_used": (),
    "mem_info_vram_total": (*OWN, *WORDS, *GTT, "device.allocates_from", "process.*", "gpu_limit.*"),
    "mem_info_vram_used": (*OWN, *HEADROOM, "process.*"),
}

CLIENTS: tuple[str, ...] = (
    "process.*",
    "*.unattributed_bytes",
    "*.overlap",
    "system_ram.contents",
    "gpu_buffers.*",
    "npu_buffers.*",
    "gtt.note",
    "device.*",
    "machine.*",
)
FDINFO: Fields = {
    **dict.fromkeys(("drm-client-id", "drm-pdev", "drm-pdev[1]", "drm-pdev[2]", "pasid", "pdev"), CLIENTS),
    **dict.fromkeys(("drm-resident-*", "drm-memory-*", "drm-total-*", "drm-shared-*"), CLIENTS),
    **dict.fromkeys(("vram mem", "gtt mem", "cpu mem", "vram", "gtt", "cpu"), CLIENTS),
    **dict.fromkeys(("panthor-resident-memory", "amdxdna*"), CLIENTS),
}

LINE: Fields = {
    **dict.fromkeys(("RAM", "lfb"), ("tegrastats.ram_*", "tegrastats.largest_*", "tegrastats.areas")),
    "": ("tegrastats.time",),
    **dict.fromkeys(("SWAP", "cached"), ("tegrastats.swap",)),
    **dict.fromkeys(("IRAM", "Carveout", "GART"), ("tegrastats.areas", "tegrastats.areas*")),
    "CPU": ("tegrastats.cpus", "tegrastats.temperatures_celsius"),  # cores, and on some boards a sensor
    **dict.fromkeys(("GR3D*",), ("tegrastats.gr3d", "device.busy_ratio", "device.clock_hertz")),
    "EMC*": ("tegrastats.emc", "device.memory_busy_ratio", "device.clock_hertz"),
    **dict.fromkeys(("fg", "bg", "MTS"), ("tegrastats.mts",)),
}
# All other words are engines, sensors and rails.
OTHER_WORD = (
    "tegrastats.engines",
    "tegrastats.temperatures_celsius",
    "tegrastats.rails_milliwatts",
    "device.temperature_celsius",
    "device.power_watts",
    "device.details",
)

OF_PROCESSES = (
    "process.*",
    "*.unattributed_bytes",
    "*.overlap",
    "*.contents",
    "*.note",
    "cuda_pool.used_bytes",
    "device.process_list",
    "device.notes",
)
MEMORY = (*OWN, "nvml_used.*", *HEADROOM)
MIG = ("mig_instance.*", "device.*", "process.*")
NVML: Fields = {
    **dict.fromkeys(("gpus.memory", "gpus.memory_v1"), ("*",)),
    **dict.fromkeys(("gpus.memory.total", "gpus.memory_v1.total"), ("*",)),
    **dict.fromkeys(("gpus.memory.*", "gpus.memory_v1.*"), MEMORY),
    **dict.fromkeys(("gpus.bar1", "gpus.addressing", "gpus.numa_node"), ("*",)),
    **dict.fromkeys(("gpus.compute", "gpus.graphics", "gpus.compute.*", "gpus.graphics.*"), OF_PROCESSES),
    **dict.fromkeys(("gpus.instances", "gpus.instances.*"), MIG),
}

BY_KERNEL = ("gpu_limit.*", "device.notes", "machine.explanation", *HEADROOM)
DMEM: Fields = {
    **dict.fromkeys(("dmem.max", "dmem.min", "dmem.low", "dmem.peak"), BY_KERNEL),
    # The use and the size of an xe card are those of its region.
    **dict.fromkeys(("dmem.current", "dmem.capacity"), (*BY_KERNEL, *OWN, *CLIENTS)),
}

DEPENDENT: Mapping[str, Fields] = {
    "dmem": DMEM,
    "meminfo": MEMINFO,
    "numa": NUMA,
    "zram": ZRAM,
    "cgroup": CGROUP,
    "amdgpu": AMDGPU,
    "fdinfo": FDINFO,
    "tegrastats": LINE,
    "nvml": NVML,
}
