"""The collectors: a class each, and one line in `COLLECTORS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from importlib import import_module
from typing import Literal

from msgspec import Struct

from memwatch.core.collectors.base import BaseCollector, CollectorEntry, Host
from memwatch.core.linux.files import Roots
from memwatch.core.linux.gpu_presence import may_be_tegra, may_have_drm, may_have_gpu, may_have_nvidia


class Listed(Struct, frozen=True):
    """A collector: the snapshot fields that no other collector fills, its systems, and its module.

    The module has the collector's name, unless it has the collectors of one subject. A daemon loads all modules at
    its start. The library loads those that it needs: not one for hardware that, by `may_exist`, is not there.
    """

    name: str
    sole_fields: tuple[str, ...] = ()
    system: Literal["linux", "darwin", "not linux"] = "linux"
    module: str = ""
    may_exist: Callable[[Roots], bool] | None = None

    def supports(self, platform: str) -> bool:
        return platform != "linux" if self.system == "not linux" else platform == self.system

    def load(self) -> type[BaseCollector]:
        module = import_module(f"{__name__}.{self.module or self.name}")
        kinds = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, BaseCollector)]
        return next(kind for kind in kinds if kind.name == self.name)


# In the order in which they run. Settings, the configuration file and the metrics are derived from this tuple.
COLLECTORS: tuple[Listed, ...] = (
    Listed("meminfo"),
    Listed("psi", ("psi",)),
    Listed("vmstat"),
    Listed("kmsg", ("kernel_log",)),
    Listed("journal"),
    Listed("buddyinfo"),
    Listed("numa"),
    Listed("zram", ("zram",)),
    Listed("cgroup"),
    Listed("containers"),
    Listed("kubernetes", module="containers"),
    Listed("cgroup_pressure", ("cgroup_pressure",)),
    Listed("cgroup_kills"),
    Listed("dmem", may_exist=may_have_gpu),
    Listed("machine"),
    Listed("tegra", may_exist=may_be_tegra),
    Listed("nvmap", module="tegra", may_exist=may_be_tegra),
    Listed("tegrastats", ("tegrastats",), module="tegra"),
    Listed("nvml", may_exist=may_have_nvidia),
    Listed("amdgpu", may_exist=may_have_drm),
    Listed("amdgpu_sensors", module="gpu_sensors"),
    Listed("amdsmi"),
    Listed("amd_cli"),
    Listed("drm", may_exist=may_have_drm),
    Listed("hwmon", module="gpu_sensors"),
    Listed("processes"),
    Listed("engines", ("engines",)),
    Listed("psutil_host", system="not linux", module="other_systems"),
    Listed("psutil_processes", system="not linux", module="other_systems"),
    Listed("apple", system="darwin"),
)


def load_collectors() -> list[type[BaseCollector]]:
    """Load the modules of all collectors."""
    return [listed.load() for listed in COLLECTORS]


def list_collectors(
    host: Host, disabled: Collection[str] = (), for_this_hardware: bool = False
) -> list[CollectorEntry]:
    """Return the entries of this platform's collectors, without the disabled ones, whose modules are not loaded.

    One that is off by default is included only if the options of the host enable it. `for_this_hardware`: leave
    out those whose hardware is not there.
    """
    wanted = [one for one in COLLECTORS if one.supports(host.platform) and one.name not in disabled]
    if for_this_hardware:
        wanted = [one for one in wanted if one.may_exist is None or one.may_exist(host.roots)]
    return [
        CollectorEntry(kind.name, partial(kind.create, host), kind.may_block, sign_paths(host.roots, kind.signs))
        for kind in [one.load() for one in wanted]
        if is_enabled(kind, host)
    ]


def is_enabled(kind: type[BaseCollector], host: Host) -> bool:
    return kind.options().enabled or host.options_for(kind.options).enabled


def sign_paths(roots: Roots, signs: Iterable[str]) -> tuple[str, ...]:
    """Return the absolute paths of signs such as `sys/class/drm/` and `dev/nvidiactl`."""
    folders = {"proc": roots.procfs, "sys": roots.sysfs, "dev": roots.rootfs / "dev"}
    parts = (sign.split("/", 1) for sign in signs)
    return tuple(f"{folders[root]}/{rest}" for root, rest in parts)
