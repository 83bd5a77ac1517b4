"""Test that what a guardian did reaches a daemon of its machine, and its clients from there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from memwatch.core.guardian_report import PATH, GuardianReport
from memwatchd.guardian.journal import Journal, Record, VictimRecord
from memwatchd.guardian.records import Config, Match
from memwatchd.guardian.telling import TOLD_NAME, Teller, send
from support.alert_machine import quick_config
from support.daemon_process import RunningDaemon, running_daemon
from support.guardian_machine import QUICK, GuardianMachine, guardian_machine
from support.http_site import http, site
from support.other_user import CAN_SWITCH, MARKED, OTHER_UID, build_request, connect_as
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving

GIB, MIB = 1 << 30, 1 << 20
# A machine that a process of a test can fill: 5 % of it are less than this process takes. `BEFORE` is high.
SIZE, HELD, SHORT, BEFORE, ROOMY = 2 * GIB, 300 * MIB, 4 * MIB, 350 * MIB, GIB
GROWS = f"""exec {sys.executable} -c "
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print('ready', flush=True)
signal.sigwait([signal.SIGUSR1])
held = b'x' * {HELD}
print('grown', flush=True)
time.sleep(600)
" """
REPORT = GuardianReport("1.5", 0.0, "act", False, "because", 42, "train.py", 3 * GIB, ("sigterm",), True, True)


@contextmanager
def watched(tmp_path: Path, config: str = "") -> Iterator[tuple[GuardianMachine, RunningDaemon]]:
    """Run a daemon that watches the machine of a guardian."""
    (tmp_path / "root").mkdir()
    with guardian_machine(tmp_path, SIZE) as box:
        box.set_available(ROOMY)
        roots = [f"--procfs={box.proc}", f"--sysfs={box.sys}", f"--rootfs={tmp_path}/root"]
        with running_daemon(tmp_path, *roots, "--listen", f"unix:{tmp_path}/socket", config=config) as daemon:
            box.config = replace(box.config, daemon=f"unix:{tmp_path}/socket")
            yield box, daemon


def start_and_fall(box: GuardianMachine, daemon: RunningDaemon, config: Config) -> subprocess.Popen[str]:
    """Start a process and a guardian; once the daemon's figures arrived, the process grows and memory falls.

    The daemon stands still meanwhile: a scan of half of the growth would be one of memory that has not fallen.
    """
    victim = box.start_victim(GROWS)
    box.set_available(BEFORE)
    box.start(config)
    wait_until(lambda: box.status().daemon == "in time", describe=box.log)
    # It asks once a second, and writes its state every five.
    seen = box.status().unix
    wait_until(lambda: box.status().unix > seen, describe=box.log)
    os.kill(daemon.pid, signal.SIGSTOP)
    victim.send_signal(signal.SIGUSR1)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "grown\n"
    box.set_available(SHORT)
    os.kill(daemon.pid, signal.SIGCONT)
    return victim


def events_of(daemon: RunningDaemon) -> list[tuple[str, str]]:
    found = daemon.get("/api/v1/events?limit=1000").json
    return [(one["kind"], one["text"]) for one in found if one["kind"].startswith("guardian.")]


def wait_for_event(daemon: RunningDaemon, box: GuardianMachine, kind: str) -> str:
    """Return the text of the event. Before it, the guardian may have had no figures to decide on, and say so."""
    wait_until(lambda: kind in dict(events_of(daemon)), describe=box.log)
    return dict(events_of(daemon))[kind]


def count_of(daemon: RunningDaemon, decision: str, dry_run: str) -> float:
    name = f'memwatch_guardian_decisions_total{{decision="{decision}",dry_run="{dry_run}"}} '
    lines = daemon.get("/metrics").text.splitlines()
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def test_victim_of_a_guardian_is_an_event_and_counted(tmp_path: Path) -> None:
    with watched(tmp_path) as (box, daemon):
        victim = start_and_fall(box, daemon, box.config)
        box.free_on_end(victim, ROOMY)
        text = wait_for_event(daemon, box, "guardian.acted")
        # It falls so fast that SIGTERM has half a second, which a busy machine may exceed.
        assert victim.wait(MAX_WAIT_SECONDS) in (-signal.SIGTERM, -signal.SIGKILL)
        assert re.fullmatch(
            rf"killed by memwatch-guardian: \S+ \({victim.pid}\), 30\d\.\d MiB; "
            r"steps: (sigterm(, sigkill)?|sigkill)",
            text,
        )
        wait_until(lambda: (count_of(daemon, "act", "false"), count_of(daemon, "act", "true")) == (1, 0))


def test_incident_names_the_guardian_as_the_killer(tmp_path: Path) -> None:
    with watched(tmp_path) as (box, daemon):
        victim = start_and_fall(box, daemon, box.config)
        box.free_on_end(victim, ROOMY)
        text = wait_for_event(daemon, box, "guardian.acted")

        (head,) = daemon.wait_for("/api/v1/incidents", lambda found: found and found[0]["killer"])
        found = daemon.get(f"/api/v1/incidents/{head['id']}").json
        page = daemon.get(f"/incidents/{head['id']}").text
        assert (found["target"], found["killer"]["kind"]) == ("ram", "memwatch_guardian")
        assert found["killer"]["evidence"].startswith("report of memwatch-guardian: ram is critical: ")
        assert found["victim"]["pid"] == victim.pid
        assert f"memwatch-guardian killed {found['victim']['who']}" in found["sentence"]
        assert text in found["evidence"]
        assert ("guardian.acted", text) in [(one["kind"], one["text"]) for one in found["timeline"]]
        assert text in page


def test_dry_run_says_what_it_would_have_done(tmp_path: Path) -> None:
    with watched(tmp_path) as (box, daemon):
        victim = start_and_fall(box, daemon, replace(box.config, dry_run=True))
        text = wait_for_event(daemon, box, "guardian.would_have_acted")
        assert text.startswith("dry run: memwatch-guardian would have ended ")
        assert text.endswith("; steps: sigterm, sigkill")
        assert victim.poll() is None
        (head,) = daemon.wait_for("/api/v1/incidents", lambda found: found and text in found[0]["evidence"])
        assert (head["kind"], head["killer"], head["victims"]) == ("critical", None, [])
        wait_until(lambda: (count_of(daemon, "act", "false"), count_of(daemon, "act", "true")) == (0, 1))


def test_dry_run_is_judged_by_what_followed(tmp_path: Path) -> None:
    """On pages, in events and in the history; it is not counted as another decision."""
    with watched(tmp_path) as (box, daemon):
        victim = start_and_fall(box, daemon, replace(box.config, dry_run=True))
        wait_for_event(daemon, box, "guardian.would_have_acted")
        box.set_kills(1)
        victim.kill()
        victim.wait()
        box.set_available(ROOMY)
        text = wait_for_event(daemon, box, "guardian.judged")
        assert re.match(
            rf"dry run: memwatch-guardian would have ended \S+ \({victim.pid}\), and that end would have been "
            r"right: the kernel killed a process \S+ m?s later, ",
            text,
        )
        assert text in daemon.get("/").text
        daemon.wait_for("/api/v1/incidents", lambda found: found and text in found[0]["evidence"])
        (record,) = [one for one in box.records() if one.victim]
        assert record.outcome is not None
        assert record.outcome.verdict == "right"
        wait_until(lambda: count_of(daemon, "act", "true") == 1)


def test_dry_run_that_no_guardian_followed_is_not_known(tmp_path: Path) -> None:
    with guardian_machine(tmp_path) as box:
        box.start_victim()
        config = replace(box.config, dry_run=True)
        guardian = box.start_and_fall(config)
        box.wait_for_record()
        guardian.kill()
        guardian.wait()
        (box.run / "status.json").unlink()
        box.set_available(ROOMY)
        box.start(config)
        wait_until(lambda: box.records()[0].outcome, describe=box.log)

        outcome = box.records()[0].outcome
        assert outcome is not None
        assert (outcome.verdict, outcome.evidence) == (
            "unknown",
            "the guardian stopped before the shortage was over",
        )


def test_guardian_that_finds_no_victim_says_so(tmp_path: Path) -> None:
    with watched(tmp_path) as (box, daemon):
        start_and_fall(box, daemon, replace(box.config, limits=replace(QUICK, never=(Match("command", "*"),))))
        text = wait_for_event(daemon, box, "guardian.declined")
        assert text.startswith("memwatch-guardian found no process to end: ram is critical: ")
        wait_until(lambda: count_of(daemon, "nothing", "false") == 1)


def test_action_is_one_message_and_a_dry_run_none_unless_asked_for(tmp_path: Path) -> None:
    with receiving() as usual, receiving() as asked:
        config = quick_config(usual, asked, extra='events = ["guardian.would_have_acted"]\n')
        with running_daemon(tmp_path, "--listen", f"unix:{tmp_path}/socket", config=config):
            dry, real = now_report(dry_run=True, name="dry.py"), now_report(id="real", name="real.py")
            assert ask(tmp_path / "socket", dry)[0] == 200
            wait_until(lambda: asked.accepted)
            assert ask(tmp_path / "socket", real)[0] == 200
            wait_until(lambda: usual.accepted)

    assert messages_of(asked) == [("guardian.would_have_acted", dry.text)]
    assert messages_of(usual) == [("guardian.acted", real.text)]


def messages_of(receiver: Site) -> list[tuple[str, str]]:
    bodies = [json.loads(one.body) for one in receiver.deliveries]
    return [(one["event"], reason["text"]) for one in bodies for reason in one["reasons"]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, Path]]:
    folder = tmp_path_factory.mktemp("daemon")
    folder.chmod(0o755)
    with running_daemon(folder, "--listen", f"unix:{folder}/socket") as running:
        (folder / "socket").chmod(0o666)
        yield running, folder / "socket"


def now_report(**changes: Any) -> GuardianReport:
    unix = time.time()
    return replace(REPORT, **{"id": f"{unix:.6f}", "unix": unix, **changes})


def ask(path: Path, report: GuardianReport) -> tuple[int, Any]:
    status, body = send(str(path), report)
    return status, json.loads(body)


def test_record_that_is_sent_twice_counts_once(daemon: tuple[RunningDaemon, Path]) -> None:
    running, path = daemon
    before, report = count_of(running, "act", "false"), now_report(name="once.py")

    assert ask(path, report) == (200, {"is_new": True})
    assert ask(path, report) == (200, {"is_new": False})
    assert ask(path, now_report(decision="nothing"))[0] == 200
    wait_until(lambda: count_of(running, "nothing", "false"))  # metrics are those of the last tick
    assert count_of(running, "act", "false") == before + 1
    assert [text for _, text in events_of(running)].count(report.text) == 1


def test_hostile_name_is_made_printable(daemon: tuple[RunningDaemon, Path]) -> None:
    running, path = daemon

    assert ask(path, now_report(name="\x1b[2Jevil\n"))[0] == 200
    assert any("\\u001b[2Jevil\\u000a (42)" in text for _, text in events_of(running))


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": None},
        {"name": "x" * 201},
        {"reason": "x" * 1001},
        {"reason": ""},
        {"steps": ("x",) * 9},
        {"steps": ("<b>",)},
        {"unix": 1.0},
        {"id": ""},
        {"decision": "explode"},
        {"footprint_bytes": -1},
    ],
)
def test_report_out_of_bounds_is_refused(daemon: tuple[RunningDaemon, Path], changes: dict[str, Any]) -> None:
    running, path = daemon
    before = events_of(running)

    status, answer = ask(path, now_report(**changes))

    assert (status, events_of(running)) == (422, before)
    assert answer["detail"]


def test_report_over_tcp_is_refused(daemon: tuple[RunningDaemon, Path]) -> None:
    running, _ = daemon
    before = events_of(running)
    request = build_request(PATH, msgspec.to_builtins(now_report()), "POST", {})

    with connect_as(0, running.port) as connection:
        status, answer = exchange(connection, request)

    assert (status, events_of(running)) == (403, before)
    assert "they are taken only over the socket file" in answer["detail"]


def test_report_of_another_user_is_refused(daemon: tuple[RunningDaemon, Path]) -> None:
    """A member of the group of the socket file may change other things, but does not say what the guardian did."""
    running, path = daemon
    before = events_of(running)
    request = build_request(PATH, msgspec.to_builtins(now_report()), "POST", MARKED)

    with connect_as(OTHER_UID, path) as connection:
        status, answer = exchange(connection, request)

    assert (status, events_of(running)) == (403, before)
    if CAN_SWITCH:  # else it is the request of a proxy
        assert f"uid {OTHER_UID} may not report decisions of memwatch-guardian" in answer["detail"]


def exchange(connection: Any, request: bytes) -> tuple[int, Any]:
    connection.sendall(request)
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_daemon_that_hangs_does_not_delay_the_guardian(tmp_path: Path) -> None:
    """While its report of the first victim has no answer, the second one ends."""
    with guardian_machine(tmp_path) as box:
        box.hangs_on_reports = True
        for _ in range(2):
            victim = box.start_victim()
            box.free_on_end(victim)
            if not box.reports:
                box.start_and_fall()
            else:
                box.fall()
            assert victim.wait(MAX_WAIT_SECONDS) == -signal.SIGTERM
            wait_until(lambda: box.reports, describe=box.log)

        assert box.reports == 1


def test_what_a_daemon_did_not_take_is_sent_after_a_restart(tmp_path: Path) -> None:
    """Records of the journal, but no old ones, and none that was told before."""
    at = round(time.time(), 3)
    victim = VictimRecord(42, 1.0, "train.py", GIB, 0, None, None)
    journal = Journal(tmp_path)
    for unix in (at - 7200.0, at - 30.0, at - 20.0, at - 10.0):
        journal.append(Record(unix, "act", "because", True, 1, 1, victim=victim))
    journal.close()
    (tmp_path / TOLD_NAME).write_text(f"{at - 30.0:.3f}")
    bodies = []

    def answer(request: bytes) -> bytes:
        bodies.append(json.loads(request.partition(b"\r\n\r\n")[2]))
        return http(b"{}")

    complaints: list[str] = []
    with site(answer, str(tmp_path / "socket")):
        teller = Teller(f"unix:{tmp_path}/socket", tmp_path, complaints.append)
        wait_until(
            lambda: (tmp_path / TOLD_NAME).read_text() == f"{at - 10.0:.3f}", describe=lambda: str(complaints)
        )
        teller.close()

    assert [one["unix"] for one in bodies] == [at - 20.0, at - 10.0]


def test_daemon_at_a_port_is_told_nothing_and_the_log_says_so(tmp_path: Path) -> None:
    complaints: list[str] = []

    teller = Teller("http://127.0.0.1:1", tmp_path, complaints.append)
    teller.tell(Record(time.time(), "nothing", "because", True, 1, 1))
    teller.close()

    assert complaints == [
        "decisions are not reported to http://127.0.0.1:1: the daemon takes them at its socket file only"
    ]
