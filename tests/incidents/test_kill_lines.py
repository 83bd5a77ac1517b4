"""Lines of services about kills, in the forms of their versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.collectors.journal import PARSERS, KillLineTracker
from memwatch.core.kernel_log import ServiceKill

ID = "9192cb33411ff69d015a3577db136757f5b145064a1703efea3d0e12e8a64987"
PRESSURE = "due to memory pressure for /user.slice being 51.07% > 50.00% for > 20s with reclaim activity"


def read(unit: str, *lines: str) -> tuple[ServiceKill, ...]:
    tracker = KillLineTracker()
    for line in lines:
        tracker.read(unit, line, 1_800_000_000.0)
    return tracker.kills


@pytest.mark.parametrize(
    ("unit", "line", "expected"),
    [
        (
            "earlyoom",
            'killing process 27541 "bash" with signal 15: badness 550, VmRSS 7609 MiB',
            ("earlyoom", 27541, "bash", ""),
        ),
        (
            "earlyoom",
            'sending SIGTERM to process 12006 "python3": badness 209, VmRSS 2891 MiB',
            ("earlyoom", 12006, "python3", ""),
        ),
        (
            "earlyoom",
            'sending SIGKILL to process 11279 uid 0 "a "b": c": badness 670, VmRSS 127 MiB',
            ("earlyoom", 11279, 'a "b": c', ""),
        ),
        (
            "earlyoom",
            'sending SIGTERM to process 906175 uid 1000 "java": oom_score 1170, VmRSS 43912 MiB, cmdline "java"',
            ("earlyoom", 906175, "java", ""),
        ),
        (
            "systemd-oomd",
            f"Killed /user.slice/a b.scope {PRESSURE}",
            ("systemd_oomd", None, "", "/user.slice/a b.scope"),
        ),
        (
            "systemd-oomd",
            f"Marked /system.slice/x.service for killing {PRESSURE}",
            ("systemd_oomd", None, "", "/system.slice/x.service"),
        ),
        (  # systemd 248
            "systemd-oomd",
            "Killed /a.scope due to swap used (2000000) / total (2097148) being more than 90.00%",
            ("systemd_oomd", None, "", "/a.scope"),
        ),
        (
            "systemd-oomd",
            "Killed /a.scope due to memory used (30000000000) / total (32000000000) and swap used (1) / total (1) "
            "being more than 90.00%",
            ("systemd_oomd", None, "", "/a.scope"),
        ),
        (
            "kubelet",
            'I1012 19:34:45.445172    2480 eviction_manager.go:595] "Eviction manager: pod is evicted '
            'successfully" pod="default/nginx"',
            ("kubelet", None, "", "default/nginx"),
        ),
        (
            "kubelet",
            "I0101 10:00:00.000000    1 eviction_manager.go:560] eviction manager: pod default/x_1 is evicted "
            "successfully",
            ("kubelet", None, "", "default/x_1"),
        ),
        ("containerd", f'level=info msg="TaskOOM event container_id:\\"{ID}\\""', ("runtime_oom", None, "", ID)),
        ("k3s", f"TaskOOM event &TaskOOM{{ContainerID:{ID},XXX_unrecognized:[],}}", ("runtime_oom", None, "", ID)),
        (
            "docker",
            f'msg="Container {ID} failed to exit within 30 seconds of signal 15 - using the force"',
            ("runtime", None, "", ID),
        ),
        (
            "docker",
            f'msg="Container failed to exit within 10s of signal 15 - using the force" container={ID}',
            ("runtime", None, "", ID),
        ),
    ],
)
def test_line_names_what_was_killed(unit: str, line: str, expected: tuple[object, ...]) -> None:
    (kill,) = read(f"{unit}.service", line)

    assert (kill.source, kill.pid, kill.name, kill.place) == expected
    assert kill.text == line


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("app.service: A process of this unit has been killed by the OOM killer.", "oom_report"),
        ("app.service: systemd-oomd killed 12 process(es) in this unit.", "systemd_oomd"),
        ("app.service: systemd-oomd killed some process(es) in this unit.", "systemd_oomd"),
        ("app.service: Main process exited, code=killed, status=9/KILL", "unit_end"),
    ],
)
def test_line_of_the_service_manager_names_the_unit(line: str, source: str) -> None:
    (kill,) = read("init.scope", line)

    assert (kill.source, kill.place) == (source, "app.service")


def test_nohang_names_its_victim_some_lines_before_the_action() -> None:
    """Version 0.2.0. A candidate without an action, as the levels have recovered, is no kill."""
    victim = "  PID: 903309, name: mysqld, badness: 849"

    assert read("nohang.service", victim, "Thresholds is not exceeded now") == ()
    (kill,) = read(
        "nohang-desktop.service", victim, "Implementing a corrective action:", "  Sending SIGKILL to the victim"
    )
    assert (kill.source, kill.pid, kill.name) == ("nohang", 903309, "mysqld")


def test_dry_run_of_earlyoom_is_no_kill() -> None:
    """Lines that earlyoom 1.7 printed."""
    kill = 'sending SIGKILL to process 11279 uid 0 "python": badness 670, VmRSS 127 MiB'

    assert read("earlyoom.service", kill, "dryrun, not actually sending any signal") == ()


@pytest.mark.parametrize(
    ("unit", "line"),
    [
        ("earlyoom.service", "low memory! at or below SIGTERM limits: mem 10.00%, swap 10.00%"),
        ("earlyoom.service", 'sending 0 (no-op signal) to process 1 uid 0 "a": badness 1, VmRSS 1 MiB'),
        ("systemd-oomd.service", "Considered 50 cgroups for killing, top candidates were:"),
        ("init.scope", "app.service: Main process exited, code=exited, status=1/FAILURE"),
        ("init.scope", "app.service: Main process exited, code=killed, status=15/TERM"),
        ("kubelet.service", '"Eviction manager: attempting to reclaim" resourceName="memory"'),
        ("docker.service", 'msg="Container failed to exit within 10s of signal 15 - using the force"'),
        ("evil.service", 'sending SIGKILL to process 1 uid 0 "init": badness 670, VmRSS 127 MiB'),
        ("kubelet.service", 'sending SIGKILL to process 1 uid 0 "init": badness 670, VmRSS 127 MiB'),
    ],
)
def test_other_line_is_no_kill(unit: str, line: str) -> None:
    """Also not the line of one service in the log of another."""
    assert read(unit, line) == ()


def test_latest_kills_are_kept_and_numbered() -> None:
    line = 'sending SIGKILL to process 1 uid 0 "a": badness 1, VmRSS 1 MiB'

    kills = read("earlyoom.service", *[line] * 50)

    assert (len(kills), kills[-1].number) == (KillLineTracker.MAX_KILLS, 50)


@given(st.sampled_from(sorted(PARSERS)), st.text(max_size=400))
def test_any_text_is_read_without_an_error(unit: str, text: str) -> None:
    assert len(read(unit, text)) <= 1


def test_control_characters_of_a_line_are_escaped() -> None:
    """Names of processes and control groups may have any character but a newline and a slash."""
    (kill,) = read("earlyoom.service", 'sending SIGTERM to process 12 uid 7 "\x1b[2J\u202e": oom_score 5, VmRSS 3')
    (other,) = read("systemd-oomd.service", f"Killed /a/\x1b[2J.scope {PRESSURE}")

    assert (kill.name, other.place) == ("\\u001b[2J\\u202e", "/a/\\u001b[2J.scope")
    assert kill.text.isprintable()
    assert other.text.isprintable()
