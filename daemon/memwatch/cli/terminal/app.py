"""`memwatch top`: data and keys come in, and one frame a change goes out.

The terminal is in raw mode on the alternate screen; of a frame only changed lines are written.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from memwatch.cli.charset import encode, stdout_is_ascii
from memwatch.cli.context import EXIT_OK, ClientContext, check_shape
from memwatch.cli.terminal.feed import Feed, read_history
from memwatch.cli.terminal.figures import Trend
from memwatch.cli.terminal.frame import Frame, View
from memwatch.cli.terminal.moment import Moment, ProcessReading
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.past import RECENT_SECONDS, Recent, nearest_tick, note_of, past_snapshot
from memwatch.cli.terminal.state import Facts, State, press
from memwatch.cli.terminal.style import Depth, Line, find_depth, paint
from memwatch.core.events import Event
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json

# Decode the bytes that a terminal sends for keys and the mouse. Pure functions.

NAMES = {
    "\x03": "ctrl-c",
    "\x1a": "ctrl-z",
    "\x0c": "ctrl-l",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "esc",
}
FINALS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "P": "f1"}
TILDES = {"1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end", "11": "f1"}
MOUSE = re.compile(r"\x1b\[<(\d+);(\d+);(\d+)([Mm])")
ESCAPE = re.compile(r"\x1b[\[O]([0-9;?]*)([A-Za-z~])")
# The start of a sequence whose rest is still to come.
PARTIAL = re.compile(r"\x1b(\[[<0-9;?]*|O)?\Z")
LEFT_BUTTON, WHEEL_UP, WHEEL_DOWN = 0, 64, 65


def decode(text: str) -> tuple[list[str], str]:
    """Return the keys in `text`, and the start of a sequence at its end that is not complete."""
    keys: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\x1b":
            key = NAMES.get(text[at], text[at] if text[at].isprintable() else "")
            at += 1
        elif PARTIAL.match(text, at):
            return keys, text[at:]
        else:
            key, at = _sequence(text, at)
        if key:
            keys.append(key)
    return keys, ""


def _sequence(text: str, at: int) -> tuple[str, int]:
    mouse = MOUSE.match(text, at)
    if mouse:
        return _mouse(mouse), mouse.end()
    found = ESCAPE.match(text, at)
    if found is None:  # Alt and a key: the key alone counts
        return "", at + 1
    numbers, final = found[1].split(";"), found[2]
    name = TILDES.get(numbers[0], "") if final == "~" else FINALS.get(final, "")
    has_shift = len(numbers) > 1 and numbers[1] in ("2", "5")
    return f"shift-{name}" if has_shift and name in ("left", "right") else name, found.end()


def _mouse(found: re.Match[str]) -> str:
    button, column, line = int(found[1]), int(found[2]) - 1, int(found[3]) - 1
    if button == WHEEL_UP:
        return "wheel-up"
    if button == WHEEL_DOWN:
        return "wheel-down"
    return f"click {column} {line}" if button == LEFT_BUTTON and found[4] == "M" else ""


# Alternate screen, hidden cursor, no line wrap, mouse clicks and wheel in SGR form.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?1000h\x1b[?1006h\x1b[2J"
LEAVE = "\x1b[?1006l\x1b[?1000l\x1b[?7h\x1b[0m\x1b[?25h\x1b[?1049l"
# The terminal shows the frame at its end, not while it is drawn. Terminals without this mode ignore it.
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
CLEAR_LINE = "\x1b[K"
READ_BYTES = 4096


def changed_lines(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the escape sequences that turn the painted lines of one frame into those of the next."""
    parts = [
        f"\x1b[{number};1H{line}{CLEAR_LINE}"
        for number, line in enumerate(after, 1)
        if number > len(before) or before[number - 1] != line
    ]
    return "".join(parts)


class Screen:
    """A terminal in raw mode. `leave` restores it, and may be called more than once."""

    def __init__(self, output: int, keyboard: int | None, depth: Depth, is_ascii: bool = False) -> None:
        self._output, self._keyboard, self._depth, self._is_ascii = output, keyboard, depth, is_ascii
        self._saved: list[Any] | None = None
        self._shown: list[str] = []
        self._rest = ""
        self._is_entered = False

    def size(self) -> tuple[int, int]:
        """Return the width and height."""
        try:
            width, height = os.get_terminal_size(self._output)
        except OSError:
            return 80, 24
        return (width, height) if width and height else (80, 24)

    def enter(self) -> None:
        self._is_entered = True
        if self._keyboard is not None:
            self._saved = self._saved or termios.tcgetattr(self._keyboard)
            tty.setraw(self._keyboard, termios.TCSANOW)
        self._write(ENTER)
        self.forget()

    def leave(self) -> None:
        if not self._is_entered:
            return
        self._is_entered = False
        try:
            self._write(LEAVE)
        finally:
            if self._keyboard is not None and self._saved is not None:
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._saved)

    def forget(self) -> None:
        """Draw the whole next frame: the terminal was resized, or another program has written to it."""
        self._shown = []

    def show(self, lines: Sequence[Line]) -> int:
        """Write the changed lines in one go. Return the number of bytes."""
        painted = [paint(line, self._depth) for line in lines]
        changes = changed_lines(self._shown, painted)
        if not self._shown:
            changes = f"\x1b[2J{changes}"
        self._shown = painted
        return self._write(f"{BEGIN_FRAME}{changes}{END_FRAME}") if changes else 0

    def keys(self) -> list[str]:
        """Read the keys that have been pressed. Raises EOFError if the terminal is gone."""
        if self._keyboard is None:
            return []
        data = os.read(self._keyboard, READ_BYTES)
        if not data:
            raise EOFError
        keys, self._rest = decode(self._rest + data.decode("utf-8", "ignore"))
        return keys

    def pending_keys(self) -> list[str]:
        """Return the Esc key if nothing has followed it."""
        rest, self._rest = self._rest, ""
        return ["esc"] if rest == "\x1b" else []

    @property
    def has_pending(self) -> bool:
        return bool(self._rest)

    def _write(self, text: str) -> int:
        data = encode(text, self._is_ascii)
        left = memoryview(data)
        while left:
            left = left[os.write(self._output, left) :]
        return len(data)


# A lone Esc is told from the start of a sequence by the time that follows it.
ESCAPE_SECONDS = 0.05
# Without new data the clock of a lost connection still runs.
IDLE_SECONDS = 1.0
PAST_POINTS = 300
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Store:
    """Everything that was received."""

    def __init__(self, has_history: bool) -> None:
        self.latest: Snapshot | None = None
        self.recent: Recent = Recent()
        self.growth: dict[int, Json] = {}
        self.events: tuple[Event, ...] = ()
        self.charts: dict[str, Trend] = {}
        self.chart_span: tuple[float, float] = (0.0, 0.0)
        self.ticks: list[Json] = []
        self.reading: ProcessReading | None = None
        self.error: str = ""
        self.has_history = has_history

    def take(self, kind: str, answer: Any) -> None:  # noqa: ANN401  by kind
        if kind == "snapshot":
            self.latest, self.error = answer, ""
            self.recent.add(answer)
        elif kind == "recent":
            self.recent.prepend(answer[2])
        elif kind == "past":
            start, end, self.charts = answer
            self.chart_span = start, end
        elif kind == "growth":
            self.growth = {one["pid"]: one for one in answer["processes"]}
        elif kind == "events":
            self.events = answer
        elif kind == "ticks":
            self.ticks = answer
        elif kind == "reading":
            self.reading = answer
        elif kind == "error":
            self.error = answer
        elif kind == "failure":
            raise answer

    def moment(self, state: State) -> Moment | None:
        """Return the data of the moment that the user has chosen."""
        latest, paused = self.latest, state.paused_at
        if latest is None:
            return None
        snapshot, note = latest, ""
        trends = self.recent.trends()
        if paused is not None:
            kept = self.recent.snapshot_at(paused)
            tolerance = max(15.0, state.range_seconds / 100)
            tick = None if kept else nearest_tick(self.ticks, paused)
            figures = {**trends, **self._charts_at(paused)}
            snapshot = kept or past_snapshot(latest, figures, paused, tolerance, tick)
            note = "" if kept else note_of(tick)
        is_long = state.page == 3 and (paused is not None or state.range_seconds > RECENT_SECONDS)
        return Moment(
            snapshot=snapshot,
            trends=trends,
            growth=self.growth if paused is None else {},
            events=self.events,
            charts=self.charts if is_long else {},
            chart_span=self.chart_span if is_long else (0.0, 0.0),
            error=self.error,
            note=note,
            has_history=self.has_history,
            sizes=self.recent.sizes(state.opened) if state.opened else {},
            reading=self.reading,
        )

    def _charts_at(self, unix: float) -> Mapping[str, Trend]:
        start, end = self.chart_span
        return self.charts if start <= unix <= end else {}


class App:
    """The interface on one terminal."""

    def __init__(self, screen: Screen, feed: Feed, store: Store, depth: Depth, count: int | None) -> None:
        self._screen, self._feed, self._store, self._depth = screen, feed, store, depth
        self._state = State()
        self._frame = Frame(())
        self._left = None if count is None else count - 1
        self._asked: tuple[float, float] = (0.0, 0.0)
        self._signal = 0
        self._is_stale = self._is_stopping = self._is_resumed = False

    def run(self, keyboard: int | None) -> int:
        """Run until a key, a signal or the end of the samples. Return the exit code."""
        wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        with _signals(self._note_signal, wake_end):
            self._screen.enter()
            self._draw()
            self._feed.start()
            inputs = [wake, self._feed.wake_fd, *([] if keyboard is None else [keyboard])]
            while not self._state.is_over and not self._signal and (self._left is None or self._left > 0):
                seconds = ESCAPE_SECONDS if self._screen.has_pending else IDLE_SECONDS
                ready, _, _ = select.select(inputs, [], [], seconds)
                for ours in {wake, self._feed.wake_fd} & set(ready):
                    os.read(ours, READ_BYTES)
                if self._is_stopping:
                    self._suspend()
                self._take_data()
                self._take_keys(keyboard in ready)
                self._draw()
        return 128 + self._signal if self._signal else 0

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        if number in SIGNALS:
            self._signal = number
        self._is_stopping = self._is_stopping or number == signal.SIGTSTP
        self._is_resumed = self._is_resumed or number == signal.SIGCONT
        self._is_stale = True

    def _take_data(self) -> None:
        while not self._feed.answers.empty():
            kind, answer = self._feed.answers.get()
            self._store.take(kind, answer)
            if kind == "snapshot" and self._left is not None:
                self._draw()
                self._left -= 1

    def _take_keys(self, is_ready: bool) -> None:
        try:
            keys = self._screen.keys() if is_ready else self._screen.pending_keys()
        except (EOFError, OSError):  # the terminal is gone
            self._signal = signal.SIGHUP
            return
        for key in keys:
            if key == "ctrl-z":
                self._suspend()
            elif key == "ctrl-l":
                self._screen.forget()
            else:
                before, self._state = self._state, press(self._state, key, self._facts())
                opened = self._state.opened
                if opened and (opened != before.opened or key == "u"):
                    self._feed.want_process(opened)
                if key == "ctrl-c":
                    self._signal = signal.SIGINT
        self._want_past()

    def _facts(self) -> Facts:
        latest = self._store.latest
        now = latest.unix if latest else time.time()
        oldest = self._store.recent.oldest or now
        if self._state.page == 3 or self._store.has_history:
            oldest = min(oldest, now - self._state.range_seconds)
        frame = self._frame
        return Facts(now, oldest, frame.rows, frame.total, frame.regions, frame.pids)

    def _want_past(self) -> None:
        """Request the history of the range that is shown, or around the moment that is shown."""
        latest, state = self._store.latest, self._state
        if latest is None or not self._store.has_history:
            return
        is_long = state.page == 3 and state.range_seconds > RECENT_SECONDS
        if not is_long and state.paused_at is None:
            return
        end = latest.unix
        if state.paused_at is not None and end - state.paused_at > state.range_seconds * 0.9:
            end = state.paused_at + state.range_seconds * 0.1
        wanted = (round(end / max(10.0, state.range_seconds / 100)), float(state.range_seconds))
        if wanted != self._asked:
            self._asked = wanted
            self._feed.want_history(max(0.0, end - state.range_seconds), end, PAST_POINTS)

    def _draw(self) -> None:
        if self._is_resumed:  # the shell has used the terminal
            self._screen.enter()
        if self._is_stale:
            self._screen.forget()
        self._is_stale = self._is_resumed = False
        moment = self._store.moment(self._state)
        if moment is None:
            return
        width, height = self._screen.size()
        now = time.time()
        self._frame = render(build_view(moment, self._state, width, height, now, self._depth))
        self._screen.show(self._frame.lines)
        self._want_past()

    def _suspend(self) -> None:
        """Restore the terminal, stop like any program that gets Ctrl-Z, and draw again after fg."""
        self._is_stopping = False
        self._screen.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._is_resumed = True


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None], wake_fd: int) -> Iterator[None]:
    """Handle signals in the loop: each writes a byte to `wake_fd`."""
    numbers = (*SIGNALS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
    before = {number: signal.signal(number, handler) for number in numbers}
    fd = signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd)
        for number, old in before.items():
            signal.signal(number, old)


def open_keyboard() -> int | None:
    """Return a descriptor for keys: stdin if it is a terminal, else the controlling terminal, else None."""
    if sys.stdin is not None and sys.stdin.isatty():
        return sys.stdin.fileno()
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def run_top(context: ClientContext, interval: float, count: int | None) -> int:
    """Show the interface until the user ends it, and restore the terminal whatever happens.

    The first snapshot is read before, so that errors do not disturb the terminal.
    """
    first, read, has_history = _open(context)
    with check_shape(context.address):
        depth, keyboard = find_depth(True, os.environ), open_keyboard()
        screen = Screen(sys.stdout.fileno(), keyboard, depth, stdout_is_ascii())
        feed = Feed(context.address, interval, read, has_history)
        store = Store(has_history)
        store.take("snapshot", first)
        try:
            return App(screen, feed, store, depth, count).run(keyboard)
        finally:
            screen.leave()
            feed.stop()


def print_once(context: ClientContext) -> int:
    """Print the overview as it is now, in the size of the terminal, without the line of keys."""
    first, _, has_history = _open(context)
    with check_shape(context.address):
        store = Store(has_history)
        store.take("snapshot", first)
        if has_history:
            store.recent.prepend(read_history(context.address, first))
        moment = store.moment(State())
        depth = find_depth(sys.stdout.isatty(), os.environ)
        width, height = shutil.get_terminal_size()
        if moment is not None:
            view = build_view(moment, State(), width, height, time.time(), depth)
            lines = [
                paint(line, depth, attributes=sys.stdout.isatty()).rstrip() for line in render(view).lines[:-1]
            ]
            print("\n".join(lines).rstrip())
    return EXIT_OK


def build_view(moment: Moment, state: State, width: int, height: int, now: float, depth: Depth) -> View:
    return View(moment, state, width, height, now, depth > Depth.NONE, stdout_is_ascii())


def _open(context: ClientContext) -> tuple[Snapshot, Callable[[], Snapshot], bool]:
    """Return a snapshot, a function that reads the next one, and True if a daemon keeps a history."""
    first, here = context.first_snapshot(0.0)
    with check_shape(context.address):
        if here is not None:
            return first.snapshot, lambda: next(here).snapshot, False
        return first.snapshot, context.read_snapshot, True
