"""Steps that free memory: the culprit, its command by owner, what comes back, and the level that follows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.linux.cgroups import parse_cgroup, parse_owners
from memwatch.core.model import Absent, Bytes, Process, Share, ShareKind, Thresholds
from memwatch.core.pressure.judge import base_level
from memwatch.core.snapshot import Level, Pressure, Reason, Snapshot
from memwatch.reporting.render.actions import Freed, describe_owner, find_command, list_actions, measure_held
from memwatch.reporting.render.words import is_recovering
from support.sample_parts import GIB, MEASURED, vram
from support.sample_snapshots import container_with_limit, critical_gb10, discrete_gpu

TRAIN = Process(
    51210, 700.0, "train.py", 37 * GIB, 37 * GIB, "rss", user="ada", unit="session-7.scope", container=None
)
SERVER = Process(
    3921,
    600.0,
    "VLLM::EngineCor",
    5 * GIB,
    69 * GIB,
    "rss + device",
    user="root",
    unit="docker-1f6bd2a9e2c7.scope",
    container="1f6bd2a9e2c7",
    device_bytes={"cuda0": 64 * GIB},
)
WORKER = replace(SERVER, pid=3880, name="vllm", rss_bytes=GIB, footprint_bytes=GIB, device_bytes={})


def spark(level: Level = Level.CRITICAL, ratio: float = 0.965, processes: tuple[Process, ...] = ()) -> Snapshot:
    """GB10 of 120 GiB with these processes."""
    base = critical_gb10()
    verdict = Pressure(
        "ram", level, level, ratio, kind="system_ram", size_bytes=120 * GIB, thresholds=base.pressure[0].thresholds
    )
    return replace(base, pressure=(verdict,), processes=processes or (SERVER, WORKER, TRAIN))


def actions(snapshot: Snapshot, *growing: Process) -> tuple[object, ...]:
    return list_actions(snapshot, snapshot.pressure[-1], growing)


def test_growing_process_is_to_be_stopped_with_what_that_frees() -> None:
    (found,) = list_actions(spark(), spark().pressure[0], [TRAIN])

    assert (found.kind, found.subject, found.owner, found.command) == (
        "stop",
        "train.py",
        "ada, session-7",
        "kill 51210",
    )
    assert found.freed == Freed(37 * GIB, 37 * GIB)
    assert found.ratio_after == pytest.approx(0.965 - 37 / 120)
    assert (found.level_after, found.target) == (Level.MEDIUM, "ram")


@pytest.mark.parametrize(
    ("ratio", "reasons", "level", "outcome"),
    [
        (0.95, (), Level.MEDIUM, "→ 64.2%, medium"),
        (0.89, (), Level.MEDIUM, "→ 58.2%, still medium"),
        (0.87, (), Level.LOW, "→ 56.2%, OK"),
        (0.55, (), Level.LOW, "→ 24.2%, OK"),
        (1.09, (Reason("util", "109.0% used", Level.CRITICAL),), Level.HIGH, "→ 78.2%, still high"),
    ],
)
def test_level_that_follows_is_left_only_below_its_margin(
    ratio: float, reasons: tuple[Reason, ...], level: Level, outcome: str
) -> None:
    """58.2% after a stop is "still" medium for as long as it stays: that ends below 57%."""
    snapshot = spark()
    verdict = replace(
        snapshot.pressure[0],
        ratio=ratio,
        base_level=base_level(ratio, Thresholds()),
        reasons=reasons,
        clear_margin=0.03,
    )

    (found,) = list_actions(snapshot, verdict, [TRAIN])

    assert found.ratio_after == pytest.approx(ratio - 37 / 120)
    assert found.level_after is level
    assert found.outcome == outcome


@pytest.mark.parametrize(
    ("ratio", "age", "is_filling", "is_advised"),
    [
        (0.584, 0, False, False),
        (0.66, 11, False, False),
        (0.584, 12, False, True),
        (0.584, 2, True, True),
        (0.95, 2, False, True),
    ],
    ids=["the tick of the kill", "stalls of before", "stalls of now", "fills again", "still full"],
)
def test_kill_that_frees_the_memory_leaves_no_step(
    ratio: float, age: int, is_filling: bool, is_advised: bool
) -> None:
    """At 58.4% a page said "stop llama-server", a second after the kernel had ended the culprit."""
    killed = "OOM killer: killed train.py (51210)"
    verdict = replace(
        spark().pressure[0],
        ratio=ratio,
        base_level=base_level(ratio, Thresholds()),
        reasons=(
            Reason("psi_full", "all tasks stalled on memory for 55% of the last 10 s", Level.CRITICAL),
            Reason("oom_kill", f"{age} s ago: {killed}" if age else killed, Level.CRITICAL),
        ),
        seconds_to_full=20.0 if is_filling else Absent.NOT_AVAILABLE,
    )

    assert bool(list_actions(spark(processes=(SERVER, WORKER)), verdict)) is is_advised
    assert is_recovering(verdict) is not is_advised


def test_process_that_has_ended_is_never_to_be_stopped() -> None:
    """Nor is another one with its PID."""
    again = replace(TRAIN, start_time=900.0)
    snapshot = spark(Level.MEDIUM, 0.7, (SERVER, again))

    assert actions(snapshot, TRAIN) == ()


@pytest.mark.parametrize(("level", "subject"), [(Level.HIGH, ["VLLM::EngineCor"]), (Level.MEDIUM, [])])
def test_largest_holder_is_named_without_growth_from_high_on(level: Level, subject: list[str]) -> None:
    snapshot = spark(level, 0.85)

    assert [one.subject for one in list_actions(snapshot, snapshot.pressure[0])] == subject


@pytest.mark.parametrize("level", [Level.LOW, Level.CRITICAL], ids=["ok", "recovering"])
def test_nothing_is_to_be_done_if_all_is_well_or_memory_came_back(level: Level) -> None:
    held = Reason("util", "40.0% used; calm for 8 s")
    verdict = replace(spark(level, 0.4).pressure[0], base_level=Level.LOW, reasons=(held,))

    assert list_actions(spark(), verdict, [TRAIN]) == ()
    assert list_actions(spark(), None, [TRAIN]) == ()


@pytest.mark.parametrize(
    ("process", "command"),
    [
        (SERVER, "docker stop 1f6bd2a9e2c7"),
        (replace(SERVER, unit="libpod-1f6bd2a9e2c7.scope"), "podman stop 1f6bd2a9e2c7"),
        (replace(SERVER, unit="cri-containerd-1f6b.scope"), "kill 3921"),
        (replace(SERVER, pod="4d0e"), None),
        (replace(SERVER, pod="5e1f"), "kubectl delete pod --namespace chat vllm-0"),
        (replace(SERVER, pod=Absent.NOT_PERMITTED, unit="cri-containerd-1f6b.scope"), "kill 3921"),
        (replace(TRAIN, unit="slurmstepd.scope", job="81"), "scancel 81"),
        (replace(TRAIN, unit="gpu01_slurmstepd.scope", job="s0123456789ABC"), "scancel s0123456789ABC"),
        (replace(TRAIN, unit="slurmd.service", job="81"), "scancel 81"),
        (replace(TRAIN, unit=None, job="81"), "kill 51210"),
        (replace(TRAIN, unit="slurmstepd.scope in docker-1f6b.scope", job="81"), "kill 51210"),
        (replace(TRAIN, unit="llama.service"), "systemctl stop llama.service"),
        (replace(TRAIN, unit="a b;x.service"), "systemctl stop 'a b;x.service'"),
        (replace(TRAIN, unit="flm.service in user/1000"), "kill 51210"),
        (replace(TRAIN, unit=Absent.NOT_PERMITTED), "kill 51210"),
        (replace(TRAIN, visible=False), None),
    ],
)
def test_command_follows_the_owner(process: Process, command: str | None) -> None:
    machine = replace(spark(processes=(process,)), pod_names={"5e1f": "chat/vllm-0"})

    assert find_command(process, machine)[0] == command


@pytest.mark.parametrize(
    "cgroup",
    [
        b"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
        b"9:memory:/slurm/uid_1000/job_123/step_0/task_0\n4:cpuset,devices:/slurm/uid_1000/job_123/step_0\n"
        b"1:name=systemd:/system.slice/slurmd.service\n",
        b"9:memory:/slurm_gpu01/uid_1000/job_123/step_batch\n1:name=systemd:/system.slice/slurmd.service\n0::/\n",
    ],
    ids=["version 2", "version 1", "hybrid"],
)
def test_job_of_slurm_is_ended_by_scancel_with_both_versions_of_cgroups(cgroup: bytes) -> None:
    owners = parse_owners(parse_cgroup(cgroup))
    process = replace(TRAIN, unit=owners.unit, job=owners.job)

    assert find_command(process, spark(processes=(process,)))[0] == "scancel 123"


def test_pod_and_job_end_with_all_their_processes() -> None:
    """The command of one is that of all: their memory comes back together."""
    pod = [replace(SERVER, pid=pid, pod="5e1f") for pid in (1, 2)]
    job = [replace(TRAIN, pid=pid, unit="slurmstepd.scope", job="81") for pid in (3, 4)]
    machine = replace(spark(processes=(*pod, *job, TRAIN)), pod_names={"5e1f": "chat/vllm-0"})

    assert find_command(pod[0], machine) == ("kubectl delete pod --namespace chat vllm-0", pod)
    assert find_command(job[1], machine) == ("scancel 81", job)
    assert [one.others for one in list_actions(machine, machine.pressure[0], [job[0]]) if one.kind == "stop"] == [1]
    assert [one.others for one in list_actions(machine, machine.pressure[0], [TRAIN]) if one.kind == "stop"] == [0]


def test_stopped_container_frees_the_memory_of_all_its_processes() -> None:
    """Its processes may share resident pages: the largest set is certain, the sum is the upper bound."""
    snapshot = spark()
    found, *_ = list_actions(snapshot, snapshot.pressure[0], [SERVER])

    assert found.freed == Freed(69 * GIB, 70 * GIB)
    assert found.freed.text == "69.0 – 70.0 GiB"


@pytest.mark.parametrize(
    ("changed", "target", "freed"),
    [
        ({}, "ram", Freed(69 * GIB, 69 * GIB)),
        ({}, "cuda0", Freed(64 * GIB, 64 * GIB)),
        ({"footprint_range": (64 * GIB, 69 * GIB)}, "ram", Freed(64 * GIB, 69 * GIB)),
        ({"rss_bytes": Absent.NOT_PERMITTED}, "ram", Freed(64 * GIB, Absent.NOT_PERMITTED)),
        ({"device_bytes": {"cuda0": Absent.NOT_PERMITTED}}, "ram", Freed(5 * GIB, Absent.NOT_PERMITTED)),
        ({"device_bytes": {"gpu1": 9 * GIB}}, "ram", Freed(5 * GIB, 5 * GIB)),
    ],
    ids=("unified", "share", "overlap", "unknown set", "unknown GPU memory", "another GPU"),
)
def test_only_memory_of_the_pool_counts(changed: dict[str, object], target: str, freed: Freed) -> None:
    assert measure_held([replace(SERVER, **changed)], spark(), target) == freed


def two_gpus(**ranks: object) -> Snapshot:
    """Two GPUs with a process on each, the first one critical."""
    base = discrete_gpu()
    cards = tuple(vram(f"gpu{n}", f"VRAM {n}", size=80 * GIB, used=78 * GIB, reserved=0) for n in range(2))
    both = (
        replace(TRAIN, pid=100 + n, name=f"rank{n}", device_bytes={f"gpu{n}": (70 + n) * GIB}, **ranks)
        for n in range(2)
    )
    verdict = Pressure("gpu0", Level.CRITICAL, Level.CRITICAL, 0.97, kind="vram", size_bytes=80 * GIB)
    return replace(
        base,
        pools=(base.pools[0], *cards),
        shares=(),
        devices=(),
        processes=tuple(both),
        pressure=(verdict,),
    )


def test_step_on_several_gpus_states_all_that_it_frees() -> None:
    """Of a job on 8 GPUs, "stop train.py and 7 more processes, frees 66.0 GiB" was that of one GPU."""
    snapshot = two_gpus(unit="docker-1f6bd2a9e2c7.scope", container="1f6bd2a9e2c7")
    alone = two_gpus()

    (found,) = list_actions(snapshot, snapshot.pressure[0])
    (one,) = list_actions(alone, alone.pressure[0])

    assert (found.others, found.freed) == (1, Freed(70 * GIB, 70 * GIB))
    assert found.on_gpus == (2, Freed(141 * GIB, 141 * GIB))
    assert one.on_gpus is None
    of_ram = replace(snapshot.pressure[0], target="ram", kind="system_ram")
    assert [each.on_gpus for each in list_actions(snapshot, of_ram)] == [None]


def test_holder_of_another_gpu_is_not_the_culprit() -> None:
    snapshot = two_gpus()
    first, second = snapshot.processes

    (found,) = list_actions(snapshot, snapshot.pressure[0], [second, first])

    assert (found.subject, found.freed, found.target) == ("rank0", Freed(70 * GIB, 70 * GIB), "gpu0")
    assert found.level_after is None  # its thresholds are not known


@pytest.mark.parametrize(("sees_all", "count"), [(False, 1), (True, 0)])
def test_limit_of_a_container_counts_only_processes_that_are_certainly_inside(sees_all: bool, count: int) -> None:
    base = container_with_limit()
    machine = replace(base.machine, sees_all_processes=sees_all)
    snapshot = replace(base, machine=machine, pressure=base.pressure[-1:])

    found = list_actions(snapshot, snapshot.pressure[0])

    assert [one.target for one in found] == ["cgroup"] * count


def server(held: Bytes = 64 * GIB) -> Engine:
    return Engine(
        "vllm-8000",
        "vllm",
        "vLLM",
        "http://127.0.0.1:8000",
        3921,
        (3921,),
        kv_cache_bytes=48 * GIB,
        kv_cache_used_bytes=2 * GIB,
        gpu_fraction=0.6,
        held_bytes={"cuda0": held},
    )


def test_model_server_has_an_option_with_what_it_frees() -> None:
    snapshot = replace(spark(), engines=(server(),))

    stop, option = list_actions(snapshot, snapshot.pressure[0], [TRAIN])

    assert (stop.subject, option.kind) == ("train.py", "option")
    assert option.command == "--gpu-memory-utilization 0.3"
    assert option.subject == "vLLM at 0.3"
    assert option.freed.low_bytes == int((0.6 - 0.3) * snapshot.pools[0].size_bytes)


def test_model_server_that_has_ended_has_no_option() -> None:
    snapshot = replace(spark(processes=(TRAIN,)), engines=(server(),))

    assert [one.kind for one in list_actions(snapshot, snapshot.pressure[0], [TRAIN])] == ["stop"]


def test_share_of_a_limited_size_counts_what_lies_within_it() -> None:
    limit = Share(
        "gtt", ShareKind.GTT, "GTT", "ram", 60 * GIB, "drm", MEASURED, limit_bytes=62 * GIB, device="gpu0"
    )
    verdict = Pressure("gtt", Level.HIGH, Level.HIGH, 0.9, kind="gtt", size_bytes=62 * GIB)
    holder = replace(TRAIN, device_bytes={"gtt": 20 * GIB})
    snapshot = replace(spark(), shares=(limit,), processes=(holder,))

    assert list_actions(snapshot, verdict, [holder])[0].freed == Freed(20 * GIB, 20 * GIB)


@pytest.mark.parametrize(
    ("unit", "user", "words"),
    [
        ("app-firefox.scope in user/1000", "ada", "ada, app-firefox"),
        ("app-firefox.scope in user/1000", Absent.NOT_PERMITTED, "app-firefox.scope in user/1000"),
        ("ollama.service in lxc/101", "ada", "ada, ollama.service in lxc/101"),
        ("session-7.scope", "ada", "ada, session-7"),
    ],
)
def test_service_of_a_user_does_not_repeat_the_user(unit: str, user: str | Absent, words: str) -> None:
    """On the overview it was cut to "app-firefox.sco"."""
    assert describe_owner(replace(TRAIN, unit=unit, user=user), critical_gb10()) == words
