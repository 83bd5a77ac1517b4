"""`memwatch top` on a terminal: the interface, or one picture of it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

from memwatch.cli.context import EXIT_OK, ClientContext, check_shape
from memwatch.cli.terminal.app import Store, run_interface
from memwatch.cli.terminal.feed import read_history
from memwatch.cli.terminal.frame import View
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.state import State
from memwatch.cli.terminal.style import Depth, find_depth, paint
from memwatch.core.snapshot import Snapshot


def run(context: ClientContext, interval: float, count: int | None) -> int:
    """Show the interface. The first snapshot is read before, so that errors do not disturb the terminal."""
    first, read, has_history = _open(context)
    with check_shape(context.address):
        depth = find_depth(True, os.environ)
        return run_interface(context.address, first, read, interval, depth, has_history, count)


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
            view = View(moment, State(), width, height, time.time(), depth > Depth.NONE)
            lines = [
                paint(line, depth, attributes=sys.stdout.isatty()).rstrip() for line in render(view).lines[:-1]
            ]
            print("\n".join(lines).rstrip())
    return EXIT_OK


def _open(context: ClientContext) -> tuple[Snapshot, Callable[[], Snapshot], bool]:
    """Return a snapshot, a function that reads the next one, and True if a daemon keeps a history."""
    first, here = context.first_snapshot(0.0)
    with check_shape(context.address):
        if here is not None:
            return first.snapshot, lambda: next(here).snapshot, False
        return first.snapshot, context.read_snapshot, True
