"""Incidents beyond the scripts: no false alarms, one record per end, unclean ends, disk, Markdown."""

from __future__ import annotations

import os
import re
from json import loads
from pathlib import Path
from secrets import token_hex

import pytest
from msgspec.structs import replace

from memwatch.cli.incidents import read_incident
from memwatch.core.budget import KINDS, Budget
from memwatch.core.clock import SystemClock
from memwatch.core.linux.cgroup_kills import CgroupKill
from memwatch.core.linux.kmsg_parser import KernelLogTracker
from memwatch.core.model import Quality, Share, ShareKind
from memwatch.core.wire import to_bytes
from memwatch.reporting.incidents.markdown import render
from memwatch.reporting.incidents.records import Incident, Victim
from memwatch.reporting.incidents.words import incident_json
from memwatch_monitor.incidents.open_incident import OpenIncident
from memwatch_monitor.incidents.store import FILE, RECENT_SECONDS, IncidentLog, IncidentStore, pack
from support.incident_player import Actor, Player, Scenario, Truth
from support.incident_scenarios import DESKTOP, ID, SCENARIOS, global_kill, group_kill, kib
from support.monitors import incidents
from support.sample_incident import GIB, INCIDENT

NONE = Truth("", None)
CLUSTER = Actor(29410, "cluster", ((0, 1.0), (10, 1.0), (30, 24.0), (31, 24.0)), unit="cluster.service")
OOMD = (
    "Killed /system.slice/cluster.service due to memory pressure for /system.slice being 85.03% > 80.00% for > 2s "
    "with reclaim activity"
)


def play(script: Scenario, after: float = 90.0) -> list[Incident]:
    return Player(script).play(after)


@pytest.mark.parametrize(
    "script",
    [
        Scenario("load that stops at 90 %", "own trace", 64.0, (Actor(1, "load", ((0, 5), (60, 53))),), NONE),
        Scenario("81 GB of page cache", "minefield", 121.7, DESKTOP, NONE, cache=((0, 1.0), (30, 81.0))),
        Scenario(
            "large process that ends by itself",
            "own",
            64.0,
            (Actor(8, "job", ((0, 20.0), (20, 20.0))), *DESKTOP),
            NONE,
            ends=((20.0, 8, 0),),
        ),
        Scenario(
            "small process that is killed", "own", 64.0, DESKTOP, NONE, ends=((20.0, 911 + 1, 9), (20.0, 4711, 9))
        ),
        Scenario(
            "process whose end the kernel does not explain",
            "Linux 6.1",
            64.0,
            (Actor(8, "job", ((0, 20.0), (20, 20.0))), *DESKTOP),
            NONE,
            ends=((20.0, 8, None),),
        ),
        Scenario(
            "GPU memory that a server fills on purpose",
            "any LLM server",
            64.0,
            (Actor(8, "vllm", ((0, 1.0), (20, 23.5), (600, 23.5)), gpu="gpu0.vram"),),
            NONE,
            vram=24.0,
        ),
    ],
    ids=lambda script: script.name,
)
def test_healthy_machine_has_no_incident(script: Scenario) -> None:
    assert [one.sentence for one in play(script)] == []


def test_two_lines_and_the_end_of_one_kill_are_one_victim() -> None:
    """systemd-oomd and the service manager report the same kill, and the kernel the end."""
    script = Scenario(
        "oomd",
        "systemd#42321",
        31.0,
        (CLUSTER, *DESKTOP),
        NONE,
        logs=(
            (31.0, "systemd-oomd.service", OOMD),
            (31.1, "init.scope", "cluster.service: systemd-oomd killed 1 process(es) in this unit."),
            (31.2, "init.scope", "cluster.service: Main process exited, code=killed, status=9/KILL"),
        ),
        ends=((31.1, 29410, 9),),
    )

    (found,) = play(script)

    assert [(one.who, one.killer) for one in found.victims] == [("cluster.service", "systemd_oomd")]
    assert found.cause is not None
    assert found.cause.pid == 29410


KEPT = Actor(700, "sshd", ((0, 0.1), (9000, 0.1)))


def test_slow_leak_keeps_its_growth_after_its_kill() -> None:
    """It is listed no more when the record is finished, a minute after its end."""
    leak = Actor(500, "leaky", ((0, 2.0), (2400, 27.9), (2400.5, 27.9)), unit="cluster.service")
    logs = ((2401.0, "systemd-oomd.service", OOMD),)

    (found,) = play(Scenario("leak", "own", 31.0, (leak, KEPT), NONE, 2410.0, other=((0, 1.0),), logs=logs))

    assert found.cause is not None
    assert (found.cause.pid, found.cause.growth_bytes >> 30) == (500, 25)
    assert found.victim is not None
    assert found.victim.is_cause


def test_growth_on_a_discrete_gpu_is_no_cause_in_system_ram() -> None:
    """System RAM was filled by the kernel half an hour ago, and a server has filled its GPU."""
    server = Actor(500, "vllm", ((0, 1.0), (1200, 21.0), (9000, 21.0)), gpu="gpu0.vram")
    report = "other.service: A process of this unit has been killed by the OOM killer."
    script = Scenario(
        "kernel memory",
        "own",
        31.0,
        (server, KEPT),
        NONE,
        1500.0,
        other=((0, 2.0), (1200, 30.3), (1500, 30.3)),
        unattributed=((0, 1.0), (1200, 29.3), (1500, 29.3)),
        vram=24.0,
        logs=((1400.0, "init.scope", report),),
    )

    (found,) = play(script)

    assert (found.kind, found.cause, found.candidates) == ("kill", None, ())


def test_kills_in_many_control_groups_have_a_record_each() -> None:
    """Seven units at their own limits, two seconds apart."""
    names = [f"app{n}" for n in range(7)]
    units = tuple(Actor(100 + n, name, ((0, 0.5), (300, 0.5)), f"{name}.service") for n, name in enumerate(names))
    lines = [
        line
        for n, name in enumerate(names)
        for line in group_kill(100 + n, name, kib(0.4), f"/system.slice/{name}.service", 20.0 + 2 * n)
    ]

    found = play(Scenario("rollout", "own", 31.0, units, NONE, kernel=tuple(lines)))

    assert [one.victim.who for one in found if one.victim] == names


COMPILERS = tuple(Actor(40_000 + n, "cc1plus", ((30 + n / 2, 0.1), (32.2 + n / 2, 0.1))) for n in range(320))


def test_kill_is_in_the_timeline_beside_hundreds_of_starts() -> None:
    """A build starts and ends two processes a second while memory is short."""
    filler = Actor(29410, "cluster", ((0, 20.0), (30, 28.9), (170, 28.9)), unit="cluster.service")
    script = Scenario(
        "build",
        "own",
        31.0,
        (filler, *COMPILERS, KEPT),
        NONE,
        200.0,
        other=((0, 1.0),),
        logs=((170.0, "systemd-oomd.service", OOMD),),
        ends=((170.1, 29410, 9),),
    )

    (found,) = play(script)

    kinds = [entry.kind for entry in found.timeline]
    assert len(kinds) == 200
    assert "kill" in kinds
    assert "cluster (PID 29410) ended by SIGKILL" in [entry.text for entry in found.timeline]
    assert list(found.timeline) == sorted(found.timeline, key=lambda entry: entry.unix)


def test_kill_is_in_the_timeline_beside_hundreds_of_marks() -> None:
    """A program marks each of its steps. Its failed allocation is kept as well."""
    script = next(one for one in SCENARIOS if one.kernel)
    killed = script.kernel[-1][0]
    steps = tuple((n / 10, f"step {n} (process 77)") for n in range(int(10 * killed)))
    failed = (killed - 1.05, "out of memory: no block (process 77)")

    (found,) = play(replace(script, marks=(*steps, failed)))

    assert [entry.kind for entry in found.timeline].count("oom_kill") == 1
    assert failed[1] in [entry.text for entry in found.timeline]


def test_victim_has_its_size_before_it_gave_its_memory_back() -> None:
    """A large process is listed for a while after its kill, with less memory at each scan."""
    cluster = Actor(29410, "cluster", ((0, 1.0), (10, 1.0), (29, 24.0), (30, 24.0), (30.5, 0.1), (31.5, 0.0)))
    line = "cluster.service: Main process exited, code=killed, status=9/KILL"
    script = Scenario(
        "teardown",
        "measured",
        31.0,
        (replace(cluster, unit="cluster.service"), *DESKTOP),
        NONE,
        logs=((31.5, "systemd-oomd.service", OOMD), (31.5, "init.scope", line)),
        other=((0.0, 5.0), (30.0, 5.0), (30.5, 20.0), (600.0, 20.0)),  # the list is still read each second
        step=0.5,
    )

    (found,) = play(script)

    assert found.victim is not None
    assert found.victim.held_bytes == 24 * GIB


def test_several_gaps_are_one_clause() -> None:
    one = OpenIncident("a", "wedge", "ram", "System RAM", GIB, 0.0, 0.0, 0.0, 0.0)
    one.add_gap(5.5)
    assert one.describe() == "no sample could be taken for 5.5 s: the machine did not run memwatchd"

    for seconds in (7.0, 6.0, 0.0):
        one.add_gap(seconds)

    assert one.describe() == "no sample could be taken for up to 7.0 s, 3 times: the machine did not run memwatchd"


def test_killer_that_is_named_after_the_end_replaces_an_unknown_one() -> None:
    """The kubelet logs an eviction some seconds after the pod's processes have ended."""
    script = next(one for one in SCENARIOS if "kubelet" in one.name)

    (found,) = play(replace(script, ends=((39.5, 1600, 9),)))

    assert [one.killer for one in found.victims] == ["kubelet"]


GPU_SERVER = Actor(1349, "python", ((0, 30.9), (20.4, 30.9)), gpu="gpu0.vram")
FORCED = (
    f'level=info msg="Container failed to exit within 10s of signal 15 - using the force" container={"5e" * 32}'
)


def quiet_events(player: Player) -> list[str]:
    player.play()
    assert incidents(player.monitor).log.heads() == []
    return [event.text for event in player.monitor.events.latest(100) if event.kind == "process.killed"]


def test_kill_of_a_gpu_process_while_memory_is_not_short_is_an_event() -> None:
    """As on an H100: `kill -9` of a process with 30.9 GiB of VRAM beside 125 GiB of free System RAM."""
    script = Scenario("h100", "measured", 126.0, (GPU_SERVER,), NONE, vram=79.6, ends=((20.5, 1349, 9),))

    assert quiet_events(Player(script)) == [
        "an unknown sender killed python (PID 1349) while memory was not short; it had 30.9 GiB of gpu0 VRAM and "
        "200.0 MiB of System RAM; 79.6 GiB of gpu0 VRAM and 124.0 GiB of System RAM are available now"
    ]


def test_kill_while_gpu_memory_is_merely_full_is_an_event() -> None:
    """Servers fill GPU memory on purpose: that explains no kill."""
    script = Scenario("full", "own", 126.0, (GPU_SERVER,), NONE, vram=31.0, ends=((20.5, 1349, 9),))

    assert len(quiet_events(Player(script))) == 1


def test_forced_end_of_a_container_of_unknown_size_says_so() -> None:
    """None of its processes was listed: its memory is not taken for 0."""
    other = Actor(2500, "vllm", ((0, 8.0),), container="6f" * 6)
    script = Scenario("docker stop", "moby#32938", 126.0, (other,), NONE, logs=((20.0, "docker.service", FORCED),))

    (text,) = quiet_events(Player(script))

    assert "killed 5e5e5e5e5e5e while memory was not short; its memory is not known" in text


def test_forced_end_of_a_container_while_memory_is_not_short_is_one_event() -> None:
    """Docker's line and the end of the process are one kill."""
    actor = Actor(2500, "vllm", ((0, 8.0), (20.4, 8.0)), container="5e" * 6)
    logs, ends = ((20.0, "docker.service", FORCED),), ((20.5, 2500, 9),)
    script = Scenario("docker stop", "moby#32938", 126.0, (actor,), NONE, logs=logs, ends=ends)

    assert quiet_events(Player(script)) == [
        "the container runtime killed 5e5e5e5e5e5e while memory was not short; it had 8.0 GiB of System RAM; "
        "116.0 GiB of System RAM are available now"
    ]


def test_victim_of_a_shortage_has_its_gpu_memory() -> None:
    """The sentence names the memory of the GPU beside that of System RAM, and the record has it."""
    server = replace(GPU_SERVER, sizes=((0, 30.9), (30.4, 30.9)))
    other = ((0.0, 50.0), (10.0, 50.0), (25.0, 123.0), (600.0, 123.0))
    kill = global_kill(1349, "python", kib(0.2), 30.0)
    script = Scenario("full", "own", 126.0, (server,), NONE, vram=79.6, other=other, kernel=kill, oom_kills=(30.0,))

    (found,) = play(script)

    assert found.victim is not None
    assert found.victim.device_bytes == {"gpu0.vram": int(30.9 * GIB)}
    assert "killed python (PID 1349) with 204.8 MiB and 30.9 GiB of gpu0 VRAM" in found.sentence


def test_counter_alone_is_no_incident_while_memory_is_left() -> None:
    """A kill at the limit of a cgroup raises the same counter. It is an event: System RAM was not full."""
    script = Scenario("count", "own", 64.0, DESKTOP, NONE, oom_kills=(20.0,), kernel_log_is_read=False)

    assert play(script) == []


@pytest.mark.parametrize("is_counted", [True, False])
def test_report_of_a_service_manager_about_a_counted_kill_begins_no_incident(is_counted: bool) -> None:
    """The kernel's log is not read. A report without a count, as before Linux 4.13, is all that is known."""
    held = Actor(610, "immich", ((0, 0.03), (600, 0.03)), unit="immich.service")
    report = (20.5, "init.scope", "immich.service: A process of this unit has been killed by the OOM killer.")
    counted = (20.0,) if is_counted else ()
    script = Scenario(
        "unit",
        "own",
        64.0,
        (held, *DESKTOP),
        NONE,
        logs=(report,),
        oom_kills=counted,
        kernel_log_is_read=False,
    )

    assert len(play(script)) == int(not is_counted)


def test_victim_whose_cause_is_missing_in_the_log_is_no_incident_while_memory_is_left() -> None:
    """As on Linux 4.19: the line before it was overwritten, and it may have been at the limit of a cgroup."""
    line = (
        20.0,
        "Killed process 911 (postgres) total-vm:213084kB, anon-rss:64000kB, file-rss:5120kB, shmem-rss:0kB",
    )
    script = Scenario("lost", "own", 64.0, DESKTOP, NONE, kernel=(line,), oom_kills=(20.0,))

    assert play(script) == []


def test_container_at_its_limit_fills_nothing_else() -> None:
    """Without a growing process only the kill is told: System RAM, which has room, is another subject."""
    held = Actor(610, "immich", ((0, 0.03), (600, 0.03)), container="1f6b2c3d4e5f")
    kill = group_kill(610, "immich", kib(0.03), "/system.slice/docker-1f6b2c3d4e5f.scope", 20.0)
    script = Scenario("limit", "own", 64.0, (held, *DESKTOP), NONE, kernel=kill, oom_kills=(20.0,))

    (found,) = play(script)

    assert found.sentence == (
        "docker-1f6b2c3d4e5f.scope reached its limit; the kernel killed immich (PID 610, container 1f6b2c3d4e5f) "
        "with 30.7 MiB in it; System RAM was not involved."
    )
    assert (found.target, found.label) == ("/system.slice/docker-1f6b2c3d4e5f.scope", "docker-1f6b2c3d4e5f.scope")


def test_kernel_log_and_counters_say_the_same_sentence_about_a_limit() -> None:
    held = Actor(610, "immich", ((0, 0.03), (20, 0.03)), container=ID[:12])
    report = (20.0, "memory: usage 32768kB, limit 32768kB, failcnt 211")
    script = Scenario("limit", "own", 64.0, (held, *DESKTOP), NONE, oom_kills=(20.0,))
    by_log = replace(script, kernel=(report, *group_kill(610, "immich", kib(0.03), GROUP, 20.0)))
    by_counters = replace(
        script, cgroup_kills=((20.0, AT_LIMIT),), ends=((20.5, 610, 9),), kernel_log_is_read=False
    )

    (logged,), (counted,) = play(by_log), play(by_counters)

    assert logged.sentence == counted.sentence
    assert f"docker-{ID[:12]}.scope reached its limit of 32.0 MiB" in logged.sentence
    assert logged.size_bytes == counted.size_bytes == 32 << 20


GROUP = f"/system.slice/docker-{ID}.scope"
AT_LIMIT = CgroupKill(1, 1, GROUP, 32 << 20)


@pytest.mark.parametrize("was_seen", [True, False])
def test_kill_that_counters_explain_is_an_incident_of_the_cgroup(was_seen: bool) -> None:
    """Without the kernel's log. The victim is named if the end of a process of the cgroup was seen."""
    held = Actor(610, "immich", ((0, 0.03), (20, 0.03)), container=ID[:12])
    script = Scenario(
        "limit",
        "own",
        64.0,
        (held, *DESKTOP),
        NONE,
        oom_kills=(20.0,),
        cgroup_kills=((20.0, AT_LIMIT),),
        ends=((20.5, 610, 9),) if was_seen else (),
        kernel_log_is_read=False,
    )

    (found,) = play(script)

    victim = f"immich (PID 610, container {ID[:12]}) with 30.7 MiB" if was_seen else "a process"
    assert found.sentence == (
        f"docker-{ID[:12]}.scope reached its limit of 32.0 MiB; the kernel killed {victim} in it; "
        "System RAM was not involved."
    )
    assert (found.kind, found.target, found.label) == ("kill", GROUP, f"docker-{ID[:12]}.scope")
    assert (found.size_bytes, found.killer and found.killer.kind) == (32 << 20, "cgroup_oom")
    assert (found.lowest_available_bytes, found.samples) == (None, ())
    assert found.came_back_bytes == found.victims[0].held_bytes


def test_cause_inside_a_cgroup_is_named_and_no_memory_of_others() -> None:
    """The rest of the machine changes by gigabytes meanwhile."""
    trainer = Actor(880, "python", ((0, 1.0), (10, 1.0), (40, 7.9)), container=ID[:12])
    other = Actor(7000, "qemu", ((0, 8.0), (30, 20.0), (45, 20.0)), unit="qemu.service")
    kill = CgroupKill(1, 1, GROUP, 8 << 30)
    script = Scenario(
        "limit",
        "own",
        64.0,
        (trainer, other),
        NONE,
        oom_kills=(40.5,),
        cgroup_kills=((40.5, kill),),
        ends=((40.5, 880, 9),),
        kernel_log_is_read=False,
    )

    (found,) = play(script)

    assert found.cause is not None
    assert found.cause.pid == 880
    assert found.sentence.startswith(f"docker-{ID[:12]}.scope reached its limit of 8.0 GiB; python (PID 880")
    assert not any("qemu" in text for text in (found.sentence, *found.evidence))
    assert [text for text in found.evidence if "came back" in text] == ["7.9 GiB of python came back"]


def test_kill_in_the_container_of_memwatchd_is_about_its_limit() -> None:
    """Its share has the limit and is the target, as for its level."""
    share = Share(
        "cgroup", ShareKind.CGROUP, "Container limit", "ram", 1 << 20, "test", Quality.MEASURED, limit_bytes=1 << 30
    )
    kill = CgroupKill(1, 1, "/", 1 << 30, is_own=True)
    script = Scenario(
        "own", "own", 64.0, DESKTOP, NONE, oom_kills=(20.0,), cgroup_kills=((20.0, kill),), kernel_log_is_read=False
    )

    (found,) = play(replace(script, shares=(share,)))

    assert (found.target, found.label, found.size_bytes) == ("cgroup", "Container limit", 1 << 30)
    assert found.sentence.startswith("This container reached its limit of 1.0 GiB; ")


def test_cgroup_that_an_old_kernel_does_not_name_is_not_system_ram() -> None:
    """Its log has no oom_memcg. The machine's memory rises meanwhile, which is another subject."""
    lines = (
        (20.0, "Memory cgroup out of memory: Kill process 310 (python3) score 970 or sacrifice child"),
        (20.0, "Killed process 310 (python3) total-vm:213084kB, anon-rss:64000kB, file-rss:5120kB, shmem-rss:0kB"),
    )
    qemu = Actor(7000, "qemu", ((0, 8.0), (19, 20.0), (600, 20.0)), unit="qemu.service")
    script = Scenario("old", "own", 64.0, (qemu, *DESKTOP), NONE, kernel=lines, oom_kills=(20.0,))

    (found,) = play(script)

    assert found.target == "cgroups"
    assert found.cause is None
    assert found.sentence == (
        "The kernel killed python3 (PID 310) with 62.5 MiB at the limit of its cgroup; System RAM was not involved."
    )


def test_full_machine_is_one_incident_and_closes_after_half_an_hour() -> None:
    """A level that stays critical begins no second incident."""
    script = next(one for one in SCENARIOS if "full by design" in one.name)

    server = Actor(6500, "vllm", ((0, 116.0), (9000, 116.0)))

    (found,) = play(replace(script, seconds=4000, actors=(server,), other=((0, 4.0), (9000, 4.0))))

    assert found.ended is not None
    assert "the level was still critical when this record was closed" in found.evidence


def test_memory_that_came_back_is_measured() -> None:
    script = replace(next(one for one in SCENARIOS if "earlyoom ends the process" in one.name), step=0.5)

    (found,) = play(script)

    assert found.came_back_bytes == pytest.approx(24 * GIB, rel=0.01)
    assert found.ended is not None
    assert any("came back" in one for one in found.evidence)


def test_memory_of_others_did_not_come_back_from_a_cgroup() -> None:
    """1.8 GiB of other processes are freed while a helper of 0.1 GiB is killed at a container's limit."""
    script = next(one for one in SCENARIOS if "its small helper is killed" in one.name)
    others = ((0.0, 4.0), (script.kernel[0][0], 4.0), (script.kernel[0][0] + 3.0, 2.2))

    (found,) = play(replace(script, other=others))

    assert found.came_back_bytes == found.victims[0].held_bytes
    assert [one for one in found.evidence if "came back" in one] == ["102.4 MiB of sh came back"]


def test_return_from_a_cgroup_whose_victim_has_no_known_size_is_not_said() -> None:
    """containerd names a container whose processes are hidden, and 1.8 GiB of others are freed."""
    script = next(one for one in SCENARIOS if one.name.startswith("containerd reports a container at its limit"))
    others = ((0.0, 4.0), (script.logs[0][0], 4.0), (script.logs[0][0] + 3.0, 2.2))

    (found,) = play(replace(script, actors=DESKTOP, other=others, oom_kills=()))

    assert (found.victims[0].held_bytes, found.came_back_bytes) == (None, None)
    assert found.ended is not None
    assert not [one for one in found.evidence if "came back" in one]


def test_kernel_table_of_tasks_is_kept_with_the_kill() -> None:
    """Rows of threads and of other tables are left out; both forms of the table are read."""
    log = KernelLogTracker()
    rows = (
        "[    911]   111   911   987654      999  4200000        0             0 not in a table",
        "Tasks state (memory values in pages):",
        "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents name",
        "[    911]   111   911   987654      100       90       10         0  4200000        0      0 postgres: a",
        "[   2881]  1000  2881  9876543     5000  4200000        0          -100 chromium",
        "[   2882]  1000  2881  9876543     5000  4200000        0          -100 chromium",
    )
    for row in (*rows, *(line for _, line in global_kill(911, "postgres", kib(0.1), 0.0))):
        log.read(row.encode(), 1.0)

    assert [(one.pid, one.name) for one in log.log.kills[0].tasks] == [(2881, "chromium"), (911, "postgres: a")]


def stored(folder: Path, *incidents: Incident) -> None:
    store = IncidentStore(folder, SystemClock(), "boot-1")
    store.start()
    for one in incidents:
        store.put(one.id, pack(one))
    store.stop(10.0)


def loaded(folder: Path) -> list[Incident]:
    store = IncidentStore(folder, SystemClock(), "boot-2")
    found = store.load()
    store.start()
    store.stop(10.0)
    return found


def test_stored_incident_is_loaded_as_it_was(tmp_path: Path) -> None:
    """The latest state counts. The file has its size from the start."""
    stored(tmp_path, replace(INCIDENT, ended=None), replace(INCIDENT, id="other"), INCIDENT)

    assert loaded(tmp_path) == [replace(INCIDENT, id="other"), INCIDENT]
    assert (tmp_path / FILE).stat().st_size == 1 << 20


@pytest.mark.parametrize("kept", [1, 100, 4095])
def test_record_that_ends_in_zeros_is_left_out(tmp_path: Path, kept: int) -> None:
    """A machine that stopped while it wrote: the last record ends anywhere, zeros follow."""
    stored(tmp_path, INCIDENT)
    long = replace(INCIDENT, id="torn", evidence=tuple(os.urandom(40).hex() for _ in range(100)))
    stored(tmp_path, long)
    data = bytearray((tmp_path / FILE).read_bytes())
    at = data.index(b"MWR1", 4096)
    data[at + kept :] = bytes(len(data) - at - kept)
    (tmp_path / FILE).write_bytes(data)

    assert loaded(tmp_path) == [INCIDENT]
    stored(tmp_path, replace(INCIDENT, id="later"))
    assert [one.id for one in loaded(tmp_path)] == [INCIDENT.id, "later"]


def test_incident_that_is_kept_outlasts_a_flood_in_the_file(tmp_path: Path) -> None:
    """Records are appended over the oldest ones. A hundred pushed that of last night out."""
    store = IncidentStore(tmp_path, SystemClock(), "boot-1")
    store.start(lambda: {INCIDENT.id: pack(INCIDENT)})
    store.put(INCIDENT.id, pack(INCIDENT))
    for number in range(400):
        store.put(f"flood-{number}", pack(replace(INCIDENT, id=f"flood-{number}", sentence=token_hex(4000))))
    store.stop(60.0)

    found = loaded(tmp_path)
    assert found.count(INCIDENT) == 1
    assert 100 < len(found) < 400


def test_log_keeps_the_largest_incidents_of_an_account() -> None:
    """75 of 100 for a user, by the bytes that were killed."""
    log = IncidentLog(budget := Budget(KINDS["incidents_kept"]))

    def put(name: str, target: str, held: int) -> None:
        victim = Victim("a", 1, None, None, held, 0.0, "cgroup_oom")
        log.put(replace(INCIDENT, id=name, target=target, victims=(victim,)))

    put("real", "/system.slice/db.service", 1)
    put("large", "/user.slice/user-1001.slice/a.scope", 99)
    for number in range(200):
        put(f"{number:03}", f"/user.slice/user-1001.slice/run-{number}.scope", 5)

    kept = {one.id for one in log.heads()}
    assert {"real", "large", "199"} < kept
    assert len(kept) == 76
    assert budget.recent() == {"uid 1001": 126}


def test_recent_incidents_are_those_that_last_and_the_last_one_for_minutes() -> None:
    now = [1000.0]
    log = IncidentLog(monotonic=lambda: now[0])
    log.restore([replace(INCIDENT, id="earlier run")])
    assert log.recent() == []

    log.put(replace(INCIDENT, id="lasts", ended=None))
    log.put(replace(INCIDENT, id="first"))
    log.put(replace(INCIDENT, id="second"))
    assert [one.id for one in log.recent()] == ["lasts", "second"]

    now[0] += RECENT_SECONDS
    assert [one.id for one in log.recent()] == ["lasts"]


def test_log_is_bounded_and_finds_the_open_incident() -> None:
    log = IncidentLog()
    most = KINDS["incidents_kept"].most
    for number in range(most + 20):
        log.put(replace(INCIDENT, id=f"{number:03}", began=float(number)))
    log.put(replace(INCIDENT, id="open", began=999.0, ended=None))

    assert len(log.heads()) == most
    assert (log.heads()[0].id, log.heads()[0].timeline) == ("open", ())
    assert log.find("000") is None
    assert log.find("open") == replace(INCIDENT, id="open", began=999.0, ended=None)
    assert log.current_id("ram") == "open"
    assert log.current_id("kernel") == "open"
    assert log.current_id("gpu0.vram") is None


# A code span of Markdown: between as many backticks before as after it.
CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")
HOSTILE = "@admin admin@evil.example #12 GH-3 !4 https://evil.example www.evil.example ![x](//evil.example) [a](b)"


def test_markdown_has_names_as_code() -> None:
    """A row of a table is split at its bars before its code is read."""
    text = render(INCIDENT)

    assert r"| ` x\|* ` | 7 |" in text
    assert text.startswith("# ` x|* took 1.0 GiB in System RAM `\n")
    assert "| Incident | 20261121T102233Z |" in text
    assert "OK → critical" in text


def test_client_reads_the_incident_that_the_api_sends() -> None:
    """The clock of JSON counts milliseconds, so its times are compared as the report writes them."""
    sent = loads(to_bytes(incident_json(INCIDENT)))

    assert render(read_incident(sent)) == render(INCIDENT)
    assert replace(read_incident(sent), began=INCIDENT.began, ended=INCIDENT.ended) == replace(
        INCIDENT, cause=read_incident(sent).cause
    )
    with pytest.raises(ValueError, match="isoformat"):
        read_incident({**sent, "began": "yesterday"})


def test_process_without_an_owner_has_an_empty_cell_in_markdown() -> None:
    assert INCIDENT.cause is not None
    text = render(replace(INCIDENT, cause=replace(INCIDENT.cause, unit=None, container=None)))

    assert r"| ` x\|* ` | 7 |  |" in text


@pytest.mark.parametrize(
    "name", [HOSTILE, f"` {HOSTILE}", f"`` {HOSTILE} `", f"```\n{HOSTILE}\n```", r"<b>|</b>\`|"]
)
def test_names_make_no_link_and_no_mention_in_markdown(name: str) -> None:
    """A forge makes links of URLs, of numbers and of users in any text except code."""
    assert INCIDENT.cause is not None
    named = replace(
        INCIDENT,
        label=name,
        target=name,
        evidence=(name,),
        cause=replace(INCIDENT.cause, who=name, unit=name, container=name),
        victim=Victim(name, 7, None, None, None, 1005.0, "kernel_oom"),
        timeline=tuple(replace(entry, text=name) for entry in INCIDENT.timeline),
    )

    def outside(incident: Incident) -> str:
        return "\n".join(CODE.sub("", line) for line in render(incident).splitlines())

    hostile, usual = outside(named), outside(INCIDENT)
    assert [hostile.count(sign) for sign in "@#!<[`"] == [usual.count(sign) for sign in "@#!<[`"]
    assert "evil" not in hostile
