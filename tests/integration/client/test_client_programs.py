"""Commands that follow a machine or a program: watch, top, history, advise, run, wait, completion."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.cli.headroom import read_room
from memwatch.cli.holders import sparkline
from memwatch.cli.run import Peaks, read_tree
from memwatch.core.model import Absent
from memwatch.core.snapshot_json import build_snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from support.client_process import OBSERVED, SCRIPT, memwatch
from support.daemon_process import RunningDaemon, clean_environment, running_daemon
from support.dead_address import dead_address
from support.library_process import roots_environment
from support.other_user import CAN_SWITCH, OTHER_UID
from support.sample_snapshots import critical_gb10
from support.waiting import MAX_WAIT_SECONDS, wait_readable

MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon on this machine, since it must find the programs that the tests run."""
    with running_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon on a GB10 with a simulated driver."""
    folder = tmp_path_factory.mktemp("spark")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running


def test_watch_prints_one_line_per_tick(spark: RunningDaemon) -> None:
    """A header, then pools, shares and the highest level. With a short interval, no tick is printed twice."""
    done = memwatch("--url", spark.url, "watch", "--interval", "0.1", "--count", "2")

    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, len(lines)) == (0, "", 3)
    assert lines[0].split()[:5] == ["GiB", "used", "RAM", "⊂CUDA", "avail"]
    assert lines[1].split()[2:5] == ["77.4", "62.5", "44.3"]
    assert lines[1].endswith("  medium")
    twice = memwatch("--url", spark.url, "watch", "--interval", "0.1", "--count", "2", "--json").stdout.splitlines()
    assert json.loads(twice[0])["seq"] < json.loads(twice[1])["seq"]


def test_watch_prints_csv_and_json(spark: RunningDaemon) -> None:
    """CSV has a header and whole bytes. JSON has one snapshot per line."""
    as_csv = memwatch("--url", spark.url, "watch", "--count", "2", "--csv").stdout
    as_json = memwatch("--url", spark.url, "watch", "--count", "1", "--json").stdout

    rows = list(csv.DictReader(io.StringIO(as_csv)))
    pool = json.loads(as_json)["pools"][0]
    assert len(rows) == 2
    assert int(rows[0]["ram.used_bytes"]) + int(rows[0]["ram.available_bytes"]) == pool["size_bytes"]
    assert memwatch("watch", "--csv", "--json").returncode == 2


def test_watch_without_a_daemon_reads_this_machine() -> None:
    """The notice appears once, and the collectors stay open between lines."""
    url = f"http://{dead_address()}"
    done = memwatch("watch", "--count", "2", "--interval", "0.2", MEMWATCH_URL=url)

    assert (done.returncode, done.stdout.count("\n"), done.stderr.count("\n")) == (0, 3, 1)
    assert done.stdout.startswith("GiB used")


def test_top_shows_pools_and_processes(spark: RunningDaemon) -> None:
    """Into a pipe it prints once, without control characters."""
    spark.wait_for("/api/v1/processes", lambda processes: any(one["device_bytes"] for one in processes))
    done = memwatch("--url", spark.url, "top")

    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"└ CUDA Pool +62\.5 GiB +⊂ System RAM", done.stdout)
    assert "VLLM::EngineCor" in done.stdout
    assert "\x1b" not in done.stdout


def test_top_restores_the_terminal(spark: RunningDaemon) -> None:
    """Ctrl-C leaves the alternate screen and shows the cursor again, without an error message."""
    ours, theirs = pty.openpty()
    command = [*SCRIPT, "--url", spark.url, "top", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=clean_environment()) as process:
        os.close(theirs)
        try:
            seen = read_until(ours, lambda data: b"CUDA Pool" in data)
            process.send_signal(signal.SIGINT)
            seen += read_until(ours, lambda data: data.endswith(b"\x1b[?1049l"))
            _, errors = process.communicate(timeout=MAX_WAIT_SECONDS)
        finally:
            process.kill()
    os.close(ours)

    assert seen.startswith(b"\x1b[?1049h\x1b[?25l")
    assert seen.endswith(b"\x1b[?25h\x1b[?1049l")
    assert (process.returncode, errors.strip()) == (130, b"")


def read_until(descriptor: int, is_enough: Callable[[bytes], bool], seconds: float = MAX_WAIT_SECONDS) -> bytes:
    seen, until = b"", time.monotonic() + seconds
    while not is_enough(seen):
        assert wait_readable(descriptor, max(0.0, until - time.monotonic())), (
            f"nothing more within {seconds:g} s after {seen[-200:]!r}"
        )
        seen += os.read(descriptor, 65536)
    return seen


def test_history_shows_pools_and_rejects_unknown_series(spark: RunningDaemon) -> None:
    """Each pool has a sparkline and a table. For an unknown series the daemon's error is shown."""
    spark.wait_for("/api/v1/history?points=10", lambda found: found["series"] and found["series"][0]["unix"])
    done = memwatch("--url", spark.url, "history", "--last", "1m", "--points", "5")
    unknown = memwatch("--url", spark.url, "history", "--series", "pool.nonsense")
    as_json = memwatch("--url", spark.url, "history", "--json")

    assert done.returncode == 0
    assert done.stdout.startswith("pool.ram.used_bytes")
    assert "77.4 GiB" in done.stdout
    assert unknown.returncode == 1
    assert "no such series" in unknown.stderr
    assert json.loads(as_json.stdout)["series"]
    assert memwatch("history", "--last", "soon").returncode == 2


def test_sparkline_has_gaps_and_starts_at_zero() -> None:
    assert sparkline([0.0, None, 7.0, 3.5]) == "▁ █▅"
    assert sparkline([None]) == " "


def test_advice_has_reasons_and_sources(spark: RunningDaemon) -> None:
    """For a GB10, advice with contradicting reports is marked and is not part of the environment."""
    done = memwatch("--url", spark.url, "advise")
    found = json.loads(memwatch("--url", spark.url, "advise", "--json").stdout)

    assert "? pin_memory=False (try both)" in done.stdout
    assert "✓ low_vram=False" in done.stdout
    assert found["environment"] == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    assert all(one["reason"] and one["sources"] for one in found["advice"])
    assert "num_workers" not in {one["name"] for one in found["advice"]}, (
        "the simulated machine's CPUs are not ours"
    )


PROGRAM = f"""{OBSERVED}
import memwatch
memwatch.log_memory_usage('loaded')
x = b'x' * (100 << 20)
wait_for_samples(above=2)
wait_for_mark()
exit(7)
"""


def test_run_reports_peaks_and_stages_and_returns_the_exit_code(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A child of the shell holds 100 MiB and sets a mark. The report has all processes, the pools and the stage."""
    command = ["run", "--output", str(tmp_path / "report"), "--", "sh", "-c", '"$0" -c "$1"; exit $?']
    done = memwatch("--url", daemon.url, *command, sys.executable, PROGRAM, MEMWATCH_URL=daemon.url)
    report = (tmp_path / "report").read_text()

    assert done.returncode == 7
    assert report.startswith("sh -c ")
    assert ": exit code 7 after " in report
    assert "peak of System RAM, whole machine" in report
    assert "[loaded] Free: " in report


def test_output_of_run_is_checked_before_the_program_starts(tmp_path: Path) -> None:
    """The program is not started otherwise. The check creates no file and truncates none."""
    url, kept = f"http://{dead_address()}", tmp_path / "kept"
    kept.write_text("the last one")
    nowhere = ["--output", str(tmp_path / "no/such")]
    rejected = memwatch("--url", url, "run", *nowhere, "--", "touch", str(tmp_path / "started"))
    for name in ("kept", "new"):
        memwatch("--url", url, "run", "--output", str(tmp_path / name), "--", "/no/such/program")

    assert (rejected.returncode, rejected.stderr.count("\n")) == (2, 1)
    assert 'no/such", which cannot be written (no such file or directory); use a file in a w' in rejected.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "the last one"


def test_root_writes_no_report_through_a_link(tmp_path: Path) -> None:
    """A user puts it into the own folder, where root wants the report. For users a link is their own."""
    target, link = tmp_path / "target", tmp_path / "report"
    target.write_text("kept")
    link.symlink_to(target)
    done = memwatch("run", "--output", str(link), "--", "true", MEMWATCH_URL=f"http://{dead_address()}")

    assert (target.read_text() == "kept") is CAN_SWITCH
    assert done.returncode == (2 if CAN_SWITCH else 0)
    assert ('report", which cannot be written (is a link); use' in done.stderr) is CAN_SWITCH


@pytest.mark.parametrize("is_root", [True, False], ids=["of root", "of a user"])
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_root_writes_no_report_through_a_folder_that_is_a_link_of_a_user(
    tmp_path: Path, is_root: bool, command: str
) -> None:
    """The user exchanges a folder on the way for it. A link of root is root's wish."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "elsewhere")
    if CAN_SWITCH and not is_root:
        os.lchown(tmp_path / "work", OTHER_UID, OTHER_UID)
    report = str(tmp_path / "work/report")
    arguments = {
        "run": ["run", "--output", report, "--", "true"],
        "doctor": ["doctor", "--report", report, "--for", "1s"],
    }
    done = memwatch(*arguments[command], MEMWATCH_URL=f"http://{dead_address()}")

    is_refused = CAN_SWITCH and not is_root
    assert (tmp_path / "elsewhere/report").exists() is not is_refused
    assert ("leads through a link of another user" in done.stderr) is is_refused


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """Yield a pipe that has a reader: to open it does not wait."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield tmp_path / "pipe"
    os.close(reader)


@pytest.mark.parametrize("target", ["missing", "pipe", ""], ids=["link to nothing", "link to a pipe", "pipe"])
def test_root_writes_no_report_to_a_special_file_of_a_user(tmp_path: Path, pipe: Path, target: str) -> None:
    """A user puts it into the own folder, where root wants the report. For users it is their own."""
    output = tmp_path / "report"
    if target:
        output.symlink_to(tmp_path / target)
    else:
        pipe.rename(output)
    done = memwatch("run", "--output", str(output), "--", "true", MEMWATCH_URL=f"http://{dead_address()}")

    why = "is a link" if target else "is not a file"
    assert done.returncode == (2 if CAN_SWITCH else 0)
    assert (f'report", which cannot be written ({why}); use' in done.stderr) is CAN_SWITCH
    assert (tmp_path / "missing").exists() is (target == "missing" and not CAN_SWITCH)


@pytest.mark.parametrize("target", ["kept", "missing", "pipe"])
@pytest.mark.usefixtures("pipe")
def test_link_that_replaces_the_report_while_the_program_runs_is_not_followed(tmp_path: Path, target: str) -> None:
    """The check before the start has passed. The report is printed."""
    report = tmp_path / "report"
    report.touch()
    (tmp_path / "kept").write_text("kept")
    swap = ["ln", "-sf", str(tmp_path / target), str(report)]
    done = memwatch("run", "--output", str(report), "--", *swap, MEMWATCH_URL=f"http://{dead_address()}")

    assert done.returncode == 0
    assert ("report (is a link); the report is:" in done.stderr) is CAN_SWITCH
    assert ((tmp_path / "kept").read_text() == "kept") is (CAN_SWITCH or target != "kept")
    assert (tmp_path / "missing").exists() is (target == "missing" and not CAN_SWITCH)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/2", "/dev/null"])
def test_report_goes_to_a_descriptor_of_the_command_also_for_root(name: str) -> None:
    """Only root makes links in these folders."""
    done = memwatch("run", "--output", name, "--", "true", MEMWATCH_URL=f"http://{dead_address()}")

    assert done.returncode == 0
    assert ("true: exit code 0" in done.stdout + done.stderr) is (name != "/dev/null")


def test_report_that_cannot_be_written_is_printed(tmp_path: Path) -> None:
    """Neither the report nor the program's exit code is lost."""
    (tmp_path / "folder").mkdir()
    output, program = str(tmp_path / "folder/report"), f"rm -r {tmp_path}/folder; exit 7"
    url = f"http://{dead_address()}"
    done = memwatch("--url", url, "run", "--output", output, "--", "sh", "-c", program)

    assert done.returncode == 7
    assert f"memwatch: cannot write {output} (no such file or directory)" in done.stderr
    assert ": exit code 7 after " in done.stderr


@pytest.mark.parametrize("command", [["run"], ["wait", "--free", "1KiB"]], ids=["run", "wait"])
def test_program_that_cannot_be_started_has_the_exit_code_of_shells(command: list[str], tmp_path: Path) -> None:
    """127 if it is not found, 126 if it is not executable or its interpreter is missing."""
    plain, script = tmp_path / "plain", tmp_path / "script"
    plain.write_text("")
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    url = f"http://{dead_address()}"
    done = [memwatch(*command, "--", str(one), MEMWATCH_URL=url) for one in ("nosuchprogram", plain, script)]

    assert [one.returncode for one in done] == [127, 126, 126]
    assert "nosuchprogram was not found" in done[0].stderr
    assert "cannot be run (permission denied)" in done[1].stderr
    assert "cannot be run (the interpreter in its first line was not found)" in done[2].stderr


SLOW = f"""{OBSERVED}
import signal, sys, memwatch
memwatch.log_memory_usage('loaded')
x = b'x' * (100 << 20)
wait_for_samples()
del x
time.sleep(2)
os.kill(int(sys.argv[1]), signal.SIGCONT)
wait_for_mark()
"""


def test_run_keeps_sampling_while_the_daemon_does_not_respond(daemon: RunningDaemon) -> None:
    """Memory used while the daemon does not respond for two seconds is counted. Later responses are used again."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        command = ["--json", "run", "--", sys.executable, "-c", SLOW, str(daemon.pid)]
        done = memwatch("--url", daemon.url, *command, MEMWATCH_URL=daemon.url)
    finally:
        daemon.process.send_signal(signal.SIGCONT)

    found = json.loads(done.stderr.splitlines()[-1])
    assert found["peak_rss_bytes"] > 100 * MIB
    assert [one["text"].split("]")[0] for one in found["stages"]] == ["[loaded"]


def test_run_as_json_counts_children() -> None:
    """Also without a daemon. A signal gives the exit code 128 plus its number."""
    url = f"http://{dead_address()}"
    program = f"{OBSERVED}\nx = b'x' * (100 << 20)\nwait_for_samples(above=2)"
    done = memwatch("--url", url, "--json", "run", "--", "sh", "-c", '"$0" -c "$1"; true', sys.executable, program)
    killed = memwatch("--url", url, "run", "--", "sh", "-c", "kill -9 $$")

    found = json.loads(done.stderr)
    assert (done.returncode, found["exit_code"], found["processes"], found["stages"]) == (0, 0, 2, [])
    assert found["peak_rss_bytes"] > 100 * MIB
    assert found["peak_used_bytes"]["System RAM"] > found["peak_rss_bytes"]
    assert killed.returncode == 137


def test_run_forwards_sigterm(tmp_path: Path) -> None:
    """The program may exit later. Its exit code is returned."""
    script = f'trap "exit 5" TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done'
    command = [*SCRIPT, "--url", f"http://{dead_address()}", "run", "--", "sh", "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=clean_environment()) as process:
        until = time.monotonic() + MAX_WAIT_SECONDS
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        process.terminate()
        process.communicate(timeout=MAX_WAIT_SECONDS)

    assert process.returncode == 5


def test_wait_executes_the_program_when_memory_is_available(daemon: RunningDaemon, spark: RunningDaemon) -> None:
    """At once if there is enough. After the timeout: exit code 1 and the available memory."""
    ready = memwatch("--url", daemon.url, "wait", "--free", "1MiB", "--", "sh", "-c", "echo started; exit 3")
    late = memwatch("--url", spark.url, "wait", "--free", "100GiB", "--timeout", "1s")
    alone = memwatch("--url", daemon.url, "wait", "--free", "1MiB")

    assert (ready.returncode, ready.stdout, ready.stderr) == (3, "started\n", "")
    assert late.returncode == 1
    assert "100GiB did not become available within 1 s: 44.3 GiB available" in late.stderr.replace("1.0 s", "1 s")
    assert " GiB available" in alone.stdout


@pytest.mark.parametrize(("device", "name"), [([], "System RAM"), (["--device", "gpu0"], "gpu0")])
def test_wait_rejects_more_than_the_total_memory(spark: RunningDaemon, device: list[str], name: str) -> None:
    """At once, with the total, and with another exit code than a timeout. The program is not run."""
    done = memwatch("--url", spark.url, "wait", "--free", "900GiB", *device, "--", "echo", "started")
    no_daemon = f"http://{dead_address()}"
    directly = memwatch("wait", "--free", "512TiB", MEMWATCH_URL=no_daemon, **roots_environment("zram-laptop"))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'memwatch: --free is "900GiB", but {name} has 121.7 GiB in total: short by 778.3 GiB\n'
    assert directly.returncode == 2
    assert 'memwatch: --free is "512TiB", but System RAM has ' in directly.stderr


def test_gpu_capacity_is_its_limit() -> None:
    """As for its headroom, also where the pool is not known. If the daemon reports none, it is None."""
    snapshot = json.loads(to_bytes(snapshot_json(critical_gb10())))
    (device,) = snapshot["devices"]
    limited = {**snapshot["shares"][0], "id": "working_set", "within": "ram", "limit_bytes": 27 << 30, "absent": {}}
    snapshot["shares"].append(limited)
    snapshot["devices"] = [{**device, "allocates_from": ["working_set"]}]

    found = build_snapshot(snapshot)
    assert read_room(found, device["id"]).whole_bytes == 27 << 30
    assert read_room(found, None).whole_bytes == found.pools[0].size_bytes
    assert read_room(found, "gpu7") == (None, None, None)
    assert read_room(replace(found, pools=(), shares=(), devices=()), None) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run"], 2, "COMMAND is missing; for example memwatch run -- python train.py"),
        (["run", "--", "/nonexistent/program"], 127, "/nonexistent/program was not found"),
        (["run", "--", "/etc"], 126, "/etc cannot be run (permission denied)"),
        (["wait", "--free", "20 potatoes"], 2, '--free is "20 potatoes"'),
        (["wait", "--free", "1GiB", "--timeout", "soon"], 2, '--timeout is "soon"'),
        (["wait"], 2, "--free"),
        (
            ["watch", "--interval", "0"],
            2,
            '--interval is "0", which is not a duration from 100ms to 1h; for example',
        ),
        (["top", "--interval", "1d"], 2, '--interval is "1d"'),
        (["watch", "--count", "0"], 2, '--count is "0", which is not a whole number from 1 to'),
        (
            ["events", "--limit", "few"],
            2,
            '--limit is "few", which is not a whole number from 1 to 1000; for example',
        ),
        (["fit", "7B", "--context", "8k"], 2, '--context is "8k"'),
        (
            ["history", "--last", "2y"],
            2,
            '--last is "2y", which is not a duration from 1s to 366d; for example 10m',
        ),
        (["release", "--for", "0s"], 2, '--for is "0s"'),
        (["completion", "dos"], 2, "dos"),
    ],
)
def test_invalid_arguments_print_one_line(arguments: list[str], code: int, words: str) -> None:
    """Exit code 2 for the command line, 126 and 127 for a program, as in shells. No traceback."""
    done = memwatch(*arguments)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words in done.stderr


def test_unknown_device_is_rejected_with_the_known_ones(spark: RunningDaemon) -> None:
    """On a unified machine the GPU's headroom is that of System RAM."""
    wrong = memwatch("--url", spark.url, "wait", "--free", "1GiB", "--device", "gpu7")
    right = memwatch("--url", spark.url, "wait", "--free", "40GiB", "--device", "gpu0")

    assert (wrong.returncode, right.returncode) == (2, 0)
    assert '--device is "gpu7", which is not one of gpu0' in wrong.stderr
    assert right.stdout == "44.3 GiB available after reclaim, 13.4 GiB at once\n"


def test_wait_counts_only_free_memory_if_asked(spark: RunningDaemon) -> None:
    """40 GiB are available after reclaim of page cache, 13 GiB at once. Both are in the JSON."""
    late = memwatch(
        "--url", spark.url, "wait", "--free", "40GiB", "--device", "gpu0", "--certain", "--timeout", "1s"
    )
    ready = memwatch("--url", spark.url, "wait", "--free", "13GiB", "--certain")
    answer = json.loads(memwatch("--url", spark.url, "wait", "--free", "13GiB", "--json").stdout)

    assert (late.returncode, ready.returncode) == (1, 0)
    assert late.stderr.endswith(": 13.4 GiB available at once, 44.3 GiB after reclaim\n")
    assert ready.stdout == "13.4 GiB available at once, 44.3 GiB after reclaim\n"
    assert [answer[name] >> 30 for name in ("free_certain_bytes", "free_bytes")] == [13, 44]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_suggests_commands(shell: str) -> None:
    """The script is printed, and the command that it calls returns suggestions."""
    script = memwatch("completion", shell)
    at = "wat" if shell == "fish" else "1"
    asked = memwatch(_MEMWATCH_COMPLETE=f"{shell}_complete", COMP_WORDS="memwatch wat", COMP_CWORD=at)

    assert script.returncode == 0
    assert "_MEMWATCH_COMPLETE" in script.stdout
    assert "watch" in asked.stdout


def test_process_tree_is_read_from_procfs(tmp_path: Path) -> None:
    """Children of all threads count. Ended processes and invalid files are left out."""
    for pid, pages, children in ((1, "9 10 x", "2 3"), (2, "9 20", "4"), (4, "nonsense", "")):
        (tmp_path / f"{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"{pid}/statm").write_text(pages)
        (tmp_path / f"{pid}/task/{pid}/children").write_text(children)
    page = os.sysconf("SC_PAGE_SIZE")

    assert read_tree(1, tmp_path) == {1: 10 * page, 2: 20 * page}


def test_peaks_sum_gpu_memory_of_the_process_tree() -> None:
    """Other processes are left out, and the maximum over time is kept."""
    peaks = Peaks()
    peaks.see_tree({7: 5, 8: 6})
    (pool,), (share,), (process, *_) = (getattr(critical_gb10(), name) for name in ("pools", "shares", "processes"))
    pool = replace(pool, size_bytes=120, used_bytes=100, available_bytes=20, contents=())
    share = replace(share, used_bytes=Absent.STALE)
    for held in (30, 20):
        processes = tuple(replace(process, pid=pid, device_bytes={share.id: held}) for pid in (7, 8, 9))
        peaks.see_snapshot(replace(critical_gb10(), pools=(pool,), shares=(share,), processes=processes))
    peaks.see_tree({7: 1})

    assert (peaks.rss_bytes, peaks.device_bytes, peaks.used_bytes) == (11, {"CUDA Pool": 60}, {"System RAM": 100})
