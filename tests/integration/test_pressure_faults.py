"""Missing, contradictory or changed kernel files cost at most one signal, and are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memwatch.core.collectors import psi
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.memory_events import PsiTrigger
from memwatch.core.pressure.inputs import PressureInputs, Target
from memwatch.core.pressure.judge import JudgeState, judge
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import Level, Pressure
from scripts.golden import roots_arguments
from support.daemon_process import sample_once
from support.paths import MACHINES

GIB = 1 << 30


@pytest.mark.parametrize(
    ("machine", "plain", "level", "ratio"),
    [
        ("kvm-hugepages", 0.84, "low", 0.32),
        ("zfs-box", 0.78, "low", 0.31),
        ("zram-laptop", 0.76, "medium", 0.76),
        ("no-psi", 0.24, "low", 0.24),
        ("old-kernel", None, "low", 0.47),
        ("hybrid-v1v2", 0.48, "low", 0.48),
        ("container-v1", 0.37, "low", 0.37),
    ],
)
def test_memory_that_only_looks_full_has_no_high_level(
    machine: str, plain: float | None, level: str, ratio: float
) -> None:
    """Huge pages, ZFS cache, zram swap, no MemAvailable, no PSI, every cgroup layout."""
    ram = next(one for one in sample_once(*roots_arguments(machine))["pressure"] if one["target"] == "ram")

    assert plain_ratio(machine) == (plain if plain is None else pytest.approx(plain, abs=0.01))
    assert ram["level"] == level
    assert ram["ratio"] == pytest.approx(ratio, abs=0.01)


def plain_ratio(machine: str) -> float | None:
    """Return 1 - MemAvailable / MemTotal, the ratio of other tools."""
    lines = dict(line.split(":") for line in (MACHINES / machine / "proc/meminfo").read_text().splitlines())
    sizes = {name: int(value.split()[0]) for name, value in lines.items()}
    return 1 - sizes["MemAvailable"] / sizes["MemTotal"] if "MemAvailable" in sizes else None


def test_missing_psi_is_reported_as_unavailable(tmp_path: Path) -> None:
    """No file, or one that a kernel with psi=0 does not let read: the trigger is off and the rest works."""
    (tmp_path / "pressure/memory").mkdir(parents=True)
    with pytest.raises(SourceUnavailable, match="pressure/memory"):
        psi.Collector(Roots(procfs=tmp_path))
    trigger = PsiTrigger(tmp_path / "pressure/memory")
    trigger.close()

    snapshot = sample_once(*roots_arguments("no-psi"))

    assert trigger.window_seconds == 0
    assert snapshot["psi"] is None
    assert snapshot["absent"]["psi"] == "not_supported"
    assert snapshot["pressure"][0]["target"] == "ram"
    states = {one["name"]: one for one in snapshot["collectors"]}
    assert "pressure/memory" in states["psi"]["error"]


def test_unknown_lines_do_not_change_the_pressure(tmp_path: Path) -> None:
    """A newer kernel may add lines to meminfo and vmstat."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "workstation", machine, symlinks=True)
    roots = [f"--procfs={machine / 'proc'}", f"--sysfs={machine / 'sys'}", f"--rootfs={machine / 'root'}"]
    before = sample_once(*roots)["pressure"]
    for name in ("meminfo", "vmstat"):
        with (machine / "proc" / name).open("a") as file:
            file.write("Tomorrow:  99999999999999999999 kB\ntomorrow 1\n")

    assert sample_once(*roots)["pressure"] == before


def pressures(targets: list[Target]) -> list[Pressure]:
    """Return the pressure of each second."""
    memory, found = JudgeState(), []
    for at, target in enumerate(targets):
        (verdict,), memory = judge(PressureInputs(float(at), (target,)), memory, PressureRules())
        found.append(verdict)
    return found


def test_memory_balloon_causes_no_critical_level() -> None:
    """MemTotal falls from 64 to 32 GiB and returns: the current size counts, and there is no forecast."""
    large = Target("ram", "system_ram", 64 * GIB, 44 * GIB, is_host=True)
    small = Target("ram", "system_ram", 32 * GIB, 12 * GIB, is_host=True)

    found = pressures([large] * 30 + [small] * 30 + [large] * 60)

    assert max(verdict.level for verdict in found) <= Level.HIGH
    assert found[40].base_level is Level.MEDIUM
    assert found[-1].level is Level.LOW


def test_machine_without_swap_is_not_out_of_swap() -> None:
    """SwapTotal 0 means no swap, not exhausted swap."""
    full = Target("ram", "system_ram", 64 * GIB, 5 * GIB, is_host=True)

    assert pressures([full])[0].level is Level.HIGH
