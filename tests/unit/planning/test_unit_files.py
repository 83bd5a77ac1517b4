"""Test the drop-ins for services whose footprint is GPU memory."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from memwatch.core.model import Pool, PoolKind, Process, Share, ShareKind
from memwatch.core.snapshot import Machine, Snapshot
from memwatch.planning.unit_files import RULE_FILE, build_unit_files, find_other_holders
from support.sample_parts import MEASURED, process, snapshot, vram

GIB = 1 << 30
RAM = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 128 * GIB, 100 * GIB, 28 * GIB, "meminfo", MEASURED)
CUDA = Share("cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", 80 * GIB, "nvml:processes", MEASURED)


def in_unit(unit: str, pid: int, rss: int, **device_bytes: int) -> Process:
    return replace(process(pid, "python", "llm", rss, **device_bytes), unit=unit)


def unified(*processes: Process) -> Snapshot:
    return snapshot("spark", Machine(), pools=(RAM,), shares=(CUDA,), processes=processes, devices=())


def discrete(*processes: Process, **known: Any) -> Snapshot:
    pools = (RAM, vram("gpu0", "VRAM", 80 * GIB, 70 * GIB, GIB))
    return snapshot("box", Machine(), pools=pools, shares=(), processes=processes, devices=(), **known)


def settings_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line[:1].isalpha())


def test_unit_of_a_unified_machine_is_rated_by_its_real_size() -> None:
    """64 of 128 GiB of GPU memory raise the score by 500 thousandths, and a rule of systemd-oomd is added."""
    drop_in, rule = build_unit_files(unified(in_unit("vllm.service", 10, 4 * GIB, cuda0=64 * GIB)))

    assert drop_in.path == "/etc/systemd/system/vllm.service.d/50-memwatch.conf"
    assert settings_of(drop_in.text) == {"OOMScoreAdjust": "500", "OOMRules": "memwatch-gpu", "MemoryMax": "69G"}
    assert "64.0 GiB of GPU memory inside System RAM; 4.0 GiB is resident (1 process)" in drop_in.text
    assert rule.path == RULE_FILE
    assert settings_of(rule.text)["Action"] == "kill-all"


def test_unit_with_vram_is_protected() -> None:
    """Its end would free little of System RAM. Several processes end together; there is no rule."""
    one, two = (in_unit("vllm.service", pid, 2 * GIB, gpu0=30 * GIB) for pid in (10, 11))
    (drop_in,) = build_unit_files(discrete(one, two))

    assert settings_of(drop_in.text) == {
        "ManagedOOMPreference": "avoid",
        "OOMScoreAdjust": "-250",
        "OOMPolicy": "kill",
        "MemoryMax": "65G",
    }


def test_limit_that_would_not_protect_the_machine_is_left_out() -> None:
    """To load 118 GiB through System RAM may take 122 of 128."""
    drop_in, _ = build_unit_files(unified(in_unit("vllm.service", 10, 4 * GIB, cuda0=118 * GIB)))

    assert "MemoryMax" not in settings_of(drop_in.text)
    assert "# No MemoryMax=: to load the model through System RAM may take 122.0 GiB." in drop_in.text


def test_unit_without_gpu_memory_and_small_holders_have_no_file() -> None:
    """A desktop's 1.5 GiB need no protection."""
    small = in_unit("gdm.service", 10, GIB, gpu0=1536 << 20)

    assert build_unit_files(discrete(small, in_unit("postgres.service", 11, 20 * GIB))) == ()


def test_container_session_and_user_manager_are_named_without_a_file() -> None:
    """Their units end with them, or belong to a user. A name with a line break would add settings."""
    units = ["docker-1f6b.scope", "session-2.scope", "user@1000.service", "evil\n[Service].service"]
    machine = discrete(*(in_unit(unit, 10 + at, GIB, gpu0=2 * GIB) for at, unit in enumerate(units)))

    assert build_unit_files(machine) == ()
    assert find_other_holders(machine) == sorted(units)


def test_largest_holder_comes_first() -> None:
    """Services with little GPU memory follow."""
    small, large = in_unit("a.service", 10, GIB, gpu0=2 * GIB), in_unit("b.service", 11, GIB, gpu0=20 * GIB)

    assert [one.path.split("/")[-2] for one in build_unit_files(discrete(small, large))] == [
        "b.service.d",
        "a.service.d",
    ]
