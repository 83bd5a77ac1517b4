"""Test `memwatch top` in a pseudo terminal: the screen as a user sees it, keys, sizes, and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import RecordingFile
from memwatch.reporting.render.json import snapshot_json
from support.budget import within
from support.client_process import SCRIPT, memwatch
from support.daemon_process import RunningDaemon, clean_environment, running_daemon
from support.dead_address import dead_address
from support.sample_mig import eight_by_seven
from support.terminal_screen import TerminalProgram, in_terminal
from support.terminal_sizes import SIZES
from support.waiting import wait_until

TERMINAL = {"TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": "", "CLICOLOR_FORCE": ""}
# Text that each demo must show in every size.
DEMOS = {
    "dgx-spark": ("CUDA Pool", "GB10", "VLLM::EngineCor"),
    "gh200": ("GH200", "python3"),
    "h100x8-mig": ("GPU0", "GPU7", "train.py"),
    "jetson-orin": ("CUDA Pool", "Orin", "gpu_burn"),
    "macbook": ("Metal working set", "M3 Pro"),
    "rtx4090": ("RTX 4090", "python3"),
    "strix-halo": ("GTT", "Radeon"),
}


@pytest.fixture(scope="module", params=DEMOS)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    name = str(request.param)
    with running_daemon(tmp_path_factory.mktemp(name), "--demo", name) as running:
        yield running


# Not one of `shared_daemons`: after some minutes its programs are killed, and the screens lack their names.
@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("spark"), "--demo", "dgx-spark", "--at", "0s") as running:
        yield running


def top(daemon: RunningDaemon, *arguments: str, **environ: str) -> AbstractContextManager[TerminalProgram]:
    """Start it in 80×24, or with LINES in another height."""
    command = [*SCRIPT, "--url", daemon.url, "top", *arguments]
    height = int(environ.pop("LINES", "24"))
    return in_terminal(command, 80, height, clean_environment(**{**TERMINAL, **environ}))


def is_complete(text: str, height: int, words: Sequence[str]) -> bool:
    """Check that a screen of this height is drawn, with all words."""
    lines = text.split("\n")
    return len(lines) == height and "q quit" in lines[-1] and all(word in text for word in words)


def test_demo_fits_its_screen_in_five_sizes(demo: RunningDaemon, request: pytest.FixtureRequest) -> None:
    """The map, the GPUs and processes are visible in each size, and a resize draws the whole screen again."""
    words = (*DEMOS[request.node.callspec.params["demo"]], "↓", "1 overview")
    with top(demo) as program:
        for width, height in SIZES:
            program.resize(width, height)
            screen = program.wait_for(partial(is_complete, height=height, words=words))
            assert max(map(len, screen.split("\n"))) >= width - 12  # the screen is used
        program.send("q")
        assert program.end() == 0


def test_process_opens_by_keys_in_five_sizes(spark: RunningDaemon) -> None:
    """Arrows mark a row, Enter shows the process, Esc goes back to the marked row."""
    with top(spark) as program:
        program.wait_for("q quit")
        program.send("/engine\r\x1b[B")
        program.wait_for(lambda text: "Xorg" not in text and "VLLM" in text)
        program.wait_for(lambda _text: program.screen.style_of("3921").startswith("7"))
        program.send("\r")
        words = "VLLM::EngineCor  PID 3921", "of GPU0 NVIDIA GB10", "demo data (simulated", "OOM score", "container"
        for width, height in SIZES:
            program.resize(width, height)
            screen = program.wait_for(partial(is_complete, height=height, words=words))
            assert max(map(len, screen.split("\n"))) <= width
        program.send("\x1b")
        program.wait_for("FOOTPRINT")
        assert "7" in program.screen.style_of("3921")
        program.send("q")
        assert program.end() == 0


@pytest.mark.host
def test_process_of_this_machine_has_its_pss_and_oom_score(tmp_path: Path) -> None:
    """The daemon reads the PSS, and the score comes from /proc of the same machine."""
    with running_daemon(tmp_path, watches_this_machine=True) as daemon, top(daemon) as program:
        program.wait_for("q quit")
        program.wait_for(lambda text: re.search(r"^ +\d+ \w+ ", text, re.MULTILINE) is not None)
        program.send("\r")
        program.wait_for(lambda text: re.search(r"PSS +[\d.]+ .iB", text) is not None)
        assert re.search(r"OOM score +\d+  oom_score_adj", program.screen.text)
        program.send("q")
        assert program.end() == 0


def test_rows_open_by_two_clicks(spark: RunningDaemon) -> None:
    with top(spark) as program:
        screen = program.wait_for("gnome-shell")
        click(program, *reversed(find(screen, "gnome-shell")))
        program.wait_for(lambda _text: program.screen.style_of("gnome-shell").startswith("7"))
        click(program, *reversed(find(program.screen.text, "gnome-shell")))
        program.wait_for("gnome-shell  PID 3105")
        click(program, *reversed(find(program.screen.text, "Esc back")))
        program.wait_for("FOOTPRINT")


def test_storm_of_sizes_ends_in_a_whole_screen(spark: RunningDaemon) -> None:
    """Down to a single cell and back. The screen is as large as any of the frames that may still arrive."""
    with top(spark) as program:
        program.wait_for("q quit")
        for number in range(60):
            program.resize(1 + number * 37 % 150, 1 + number * 13 % 50)
            program.screen.resize(200, 60)
            program.read(0.01)
        program.resize(200, 60)
        program.wait_for(partial(is_complete, height=60, words=("CUDA Pool", "↓", "? help")))
        program.send("q")
        assert program.end() == 0


def test_wheel_scrolls_the_table(spark: RunningDaemon) -> None:
    with top(spark, LINES="12") as program:
        screen = program.wait_for(lambda text: "VLLM" in text and "q quit" in text)
        assert "systemd" not in screen
        program.send("\x1b[<65;10;10M" * 3)
        program.wait_for(lambda text: "systemd" in text and "VLLM" not in table_of(text))
        program.send("\x1b[<64;10;10M" * 3)
        program.wait_for(lambda text: "VLLM" in table_of(text))


def table_of(screen: str) -> str:
    return screen.partition("FOOTPRINT")[2]


def test_thresholds_of_the_settings_are_drawn(tmp_path: Path) -> None:
    config = "[pressure]\nmedium_percent = 45\nhigh_percent = 70\n"
    with running_daemon(tmp_path, "--demo", "dgx-spark", config=config) as daemon, top(daemon) as program:
        program.wait_for("q quit")
        program.resize(132, 43)
        screen = program.wait_for("◆45%")
        assert "▲70%" in screen
        assert "◆60%" not in screen


def test_eight_gpus_of_seven_slices_are_visible(tmp_path: Path) -> None:
    """All 56 names are on one screen of 200×50, and scrolling shows the last of them in 80×24."""
    recording = RecordingFile(tmp_path / "mig.memwatch", host="dgx", simulated=True)
    for second in range(3):
        snapshot = eight_by_seven()
        later = replace(snapshot, unix=snapshot.unix + second, seq=snapshot.seq + second)
        recording.write(to_bytes(snapshot_json(later)))
    recording.close()
    with running_daemon(tmp_path, "--replay", str(tmp_path / "mig.memwatch")) as daemon, top(daemon) as program:
        program.wait_for("GPU7 ")
        program.send("2")
        program.wait_for("GPU 0 · MIG 13")
        program.send("G")
        program.wait_for("GPU 7 · MIG 13")
        program.resize(200, 50)
        names = [f"GPU {gpu} · MIG {number} " for gpu in range(8) for number in range(7, 14)]
        program.wait_for(lambda text: all(name in text for name in names))
        program.send("q")
        assert program.end() == 0


@pytest.mark.measure
def test_first_picture_appears_soon_after_the_start(spark: RunningDaemon) -> None:
    """0.3 s of CPU time at most, or 25 times that of an empty Python where that is slower; below 40 MiB of RSS."""
    used = []
    for _ in range(5):
        with top(spark) as program:
            program.wait_for("q quit")
            used.append(cpu_seconds_of(program.pid))
            status = Path(f"/proc/{program.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)

    within("CPU time until the first picture of memwatch top", min(used), max(0.3, 25 * bare_cpu_seconds()), "s")
    assert resident is not None
    within("RSS of memwatch top", int(resident[1]), 40 * 1024, "kB")


def cpu_seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare_cpu_seconds() -> float:
    """Return the least CPU time of five empty Python processes."""
    found = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        after = os.times()
        found.append(after[2] + after[3] - before[2] - before[3])
    return min(found)


def test_keys_select_pages_filter_and_order(spark: RunningDaemon) -> None:
    with top(spark) as program:
        program.wait_for("q quit")
        program.send("2")
        program.wait_for("can allocate")
        program.send("3")
        program.wait_for("Last 10 min")
        program.send("+")
        program.wait_for("Last 1 h")
        program.send("4")
        program.wait_for(lambda text: "NAME" not in text and "Last" not in text)
        program.send("?")
        program.wait_for("key closes")
        program.send("x1/gnome")
        program.wait_for("filter: gnome")
        filtered = program.wait_for(lambda text: "gnome-shell" in text and "VLLM" not in table_of(text))
        assert "Xorg" not in filtered
        program.send("\x1b")
        program.wait_for(lambda text: "VLLM" in table_of(text))
        program.send("s")
        program.wait_for("RSS↓")
        program.send("t")
        program.wait_for("├ VLLM")
        program.send("q")
        assert program.end() == 0


def test_mouse_sorts_and_changes_the_page(spark: RunningDaemon) -> None:
    with top(spark) as program:
        screen = program.wait_for("q quit")
        line, column = find(screen, "RSS")
        click(program, column, line)
        screen = program.wait_for("RSS↓")
        click(program, *reversed(find(screen, "3 history")))
        program.wait_for(lambda text: "Last 10 min" in text and "+ longer" in text and text.endswith("q quit"))
        click(program, *reversed(find(program.screen.text, "q quit")))
        assert program.end() == 0


def find(screen: str, word: str) -> tuple[int, int]:
    lines = screen.split("\n")
    line = next(number for number, text in enumerate(lines) if word in text)
    return line, lines[line].index(word)


def click(program: TerminalProgram, column: int, line: int) -> None:
    program.send(f"\x1b[<0;{column + 1};{line + 1}M\x1b[<0;{column + 1};{line + 1}m")


def test_pause_shows_the_past_of_the_daemon(spark: RunningDaemon) -> None:
    """A time before the start of `top` comes from the history, with processes of a tick. Esc is live again."""
    spark.wait_for("/api/v1/history?points=100", lambda found: len(found["series"][0]["unix"]) > 12)
    with top(spark) as program:
        program.wait_for("q quit")
        program.send("\x1b[D")
        paused = program.wait_for("the nearest in the history")
        assert "paused" in paused
        assert "RAM" in paused
        program.wait_for("VLLM")
        program.send("\x1b")
        program.wait_for(lambda text: "paused" not in text and "VLLM" in text)
        program.send(" ")
        program.wait_for(lambda text: "paused" in text and "VLLM" in text)
        program.send("q")
        assert program.end() == 0


def test_only_changed_lines_are_written_once_per_frame(spark: RunningDaemon) -> None:
    """Each frame is one synchronized update. Without a change of the processes, their lines are not written."""
    with top(spark) as program:
        program.wait_for(lambda text: re.search(r"systemd .* 0 init", text) is not None)  # growth has arrived
        program.written = b""
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            program.read(0.1)
        frames = [part for part in program.written.split(b"\x1b[?2026h") if part]
        assert 1 <= len(frames) <= 8
        assert all(frame.endswith(b"\x1b[?2026l") for frame in frames)
        assert b"systemd" not in program.written
        assert len(program.written) < 2.5 * 6000


@pytest.mark.parametrize(
    ("environ", "wanted", "unwanted"),
    [
        ({"COLORTERM": "truecolor"}, b"\x1b[38;2;", b"38;5;"),
        ({}, b"\x1b[38;5;", b"38;2;"),
        ({"TERM": "xterm"}, b"\x1b[92m", b"38;"),
        ({"NO_COLOR": "1"}, b"\x1b[1m", b"\x1b[38;"),
    ],
)
def test_colours_follow_the_terminal(
    spark: RunningDaemon, environ: dict[str, str], wanted: bytes, unwanted: bytes
) -> None:
    with top(spark, **environ) as program:
        program.wait_for("q quit")
        assert wanted in program.written
        assert unwanted not in program.written
        if "NO_COLOR" in environ:
            assert set(re.findall(rb"\x1b\[([0-9;]*)m", program.written)) <= {b"0", b"1", b"7", b"1;7", b"7;1"}


@pytest.mark.parametrize(
    ("send", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), ("\x03", 130)]
)
def test_terminal_is_restored_at_every_end(spark: RunningDaemon, send: signal.Signals | str, code: int) -> None:
    """The main screen, the cursor, line wrap, the mouse and the modes of the keyboard are as they were."""
    with top(spark) as program:
        before = program.terminal_flags()
        program.wait_for("q quit")
        assert program.screen.modes >= {"1049", "1000", "1006"}
        assert program.terminal_flags() != before
        if isinstance(send, str):
            program.send(send)
        else:
            os.kill(program.pid, send)
        assert program.end() == code
        assert program.screen.modes == {"25", "7"}


def test_suspended_program_gives_the_terminal_back_and_draws_again(spark: RunningDaemon) -> None:
    """Ctrl-Z restores the terminal and stops the process. After SIGCONT, as from fg, the screen is whole."""
    with top(spark) as program:
        program.wait_for("q quit")
        program.send("\x1a")
        wait_until(program.is_stopped)
        program.read(0.2)
        assert "1049" not in program.screen.modes
        program.screen.resize(80, 24)
        os.kill(program.pid, signal.SIGCONT)
        program.wait_for("q quit")
        assert "1049" in program.screen.modes
        program.send("q")
        assert program.end() == 0


def test_daemon_that_stops_leaves_the_last_picture_and_a_notice(tmp_path: Path) -> None:
    """The interface waits for it, and its keys still work."""
    with running_daemon(tmp_path, "--demo", "rtx4090") as daemon, top(daemon, "--interval", "0.1") as program:
        program.wait_for("q quit")
        daemon.terminate()
        program.wait_for("cannot reach memwatchd")
        assert "python3" in program.screen.text
        program.send("q")
        assert program.end() == 0


def test_dead_address_is_an_error_before_the_terminal_changes() -> None:
    url = f"http://{dead_address()}"
    with in_terminal([*SCRIPT, "--url", url, "top"], 80, 24, clean_environment(**TERMINAL)) as program:
        assert program.end() == 1
        assert "cannot reach memwatchd" in " ".join(program.screen.text.split())
        assert b"\x1b" not in program.written


def test_once_prints_one_frame_in_the_size_of_the_terminal(spark: RunningDaemon) -> None:
    """With colours on a terminal only. The keys are not in it."""
    command = ["--url", spark.url, "top", "--once"]
    environ = {**TERMINAL, "COLUMNS": "100", "LINES": "30"}
    done = memwatch(*command, **environ)

    assert done.returncode == 0
    assert "CUDA Pool" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    assert "q quit" not in done.stdout
    forced = memwatch(*command, **{**environ, "CLICOLOR_FORCE": "1"})
    assert "\x1b[38;5;" in forced.stdout


@pytest.mark.parametrize(
    "environ",
    [{"LC_ALL": "C"}, {"LC_ALL": "en_US.ISO-8859-1"}, {"TERM": "linux"}],
    ids=["locale C", "Latin-1", "Linux console"],
)
def test_terminal_without_utf8_gets_ascii_only(spark: RunningDaemon, environ: dict[str, str]) -> None:
    """The same words and sizes on every page, and colours where the terminal has them."""
    with top(spark, **environ) as program:
        for width, height in ((80, 24), (40, 10), (132, 43)):
            program.resize(width, height)
            program.wait_for(lambda text, wanted=height: "q quit" in text and text.count("\n") == wanted - 1)  # type: ignore[misc]
        program.wait_for(lambda text: "CUDA Pool" in text and "in System RAM" in text and "VLLM::EngineCor" in text)
        for key, words in (("2", "can allocate"), ("3", "Last 10 min"), ("?", "Keys")):
            program.send(key)
            program.wait_for(words)
        program.send("xq")
        assert program.end() == 0
    assert program.written.isascii()
    assert b"\x1b[" in program.written


def test_terminal_that_cannot_move_its_cursor_gets_one_picture(spark: RunningDaemon) -> None:
    with top(spark, TERM="dumb") as program:
        assert program.end() == 0
    assert b"CUDA Pool" in program.written
    assert b"\x1b" not in program.written
    assert program.written.isascii()


@pytest.mark.parametrize("command", ["status", "status --tree", "devices", "watch --count 1", "top --once"])
def test_commands_print_ascii_in_the_locale_c(spark: RunningDaemon, command: str) -> None:
    done = memwatch("--url", spark.url, *command.split(), LC_ALL="C", LANG="")

    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "?" not in done.stdout
