"""`memwatch top`: data and keys come in, and one frame a change goes out."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from memwatch.cli.charset import stdout_is_ascii
from memwatch.cli.context import EXIT_OK, ClientContext, check_shape
from memwatch.cli.terminal.feed import Feed, read_history
from memwatch.cli.terminal.figures import Trend
from memwatch.cli.terminal.frame import Frame, View
from memwatch.cli.terminal.moment import Json, Moment, ProcessReading
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.past import RECENT_SECONDS, Recent, nearest_tick, note_of, past_snapshot
from memwatch.cli.terminal.screen import Screen
from memwatch.cli.terminal.state import Facts, State, press
from memwatch.cli.terminal.style import Depth, find_depth, paint
from memwatch.core.events import Event
from memwatch.core.snapshot import Snapshot

# A lone Esc is told from the start of a sequence by the time that follows it.
ESCAPE_SECONDS = 0.05
# Without new data the clock of a lost connection still runs.
IDLE_SECONDS = 1.0
PAST_POINTS = 300
READ_BYTES = 4096
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
