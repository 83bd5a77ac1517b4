"""State of the interface, and its change by keys. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

PAGES = ("overview", "GPUs", "history", "events")
SORTS = ("footprint", "rss", "gpu", "growth", "pid", "user", "name")
RANGES = (600, 3600, 6 * 3600, 86_400, 7 * 86_400)
STEP_SECONDS, LONG_STEP_SECONDS = 10.0, 60.0
MAX_FILTER = 60


class State(Struct, frozen=True):
    """Choices of the user. `paused_at`: Unix time of the moment that is shown, None for the newest.

    `selected`: PID of the marked row, `opened`: PID of the process whose page is shown, 0 for none.
    """

    page: int = 1
    sort: str = "footprint"
    descending: bool = True
    filter: str = ""
    is_editing: bool = False
    is_tree: bool = False
    has_help: bool = False
    offset: int = 0
    help_offset: int = 0
    paused_at: float | None = None
    range_seconds: int = RANGES[0]
    selected: int = 0
    opened: int = 0
    is_over: bool = False


class Region(Struct, frozen=True):
    """Cells of a line that act as a key when they are clicked."""

    line: int
    start: int
    end: int
    key: str


class Facts(Struct, frozen=True):
    """Facts of the last frame that keys depend on. `rows`: visible rows of the list, of `total`.

    `pids`: the process of each row of the table, 0 for a group.
    """

    now: float
    oldest: float
    rows: int = 1
    total: int = 0
    regions: Sequence[Region] = ()
    pids: Sequence[int] = ()

    @property
    def max_offset(self) -> int:
        return max(0, self.total - self.rows)


def press(state: State, key: str, facts: Facts) -> State:
    """Return the state after a key: a character or a name such as "up" or "click 10 3"."""
    if key == "ctrl-c":
        return replace(state, is_over=True)
    if key.startswith("click "):
        return _click(state, key, facts)
    if state.is_editing:
        return _edit(state, key)
    if state.has_help:
        moved = _scroll_to(state.help_offset, key, facts)
        if moved is not None and facts.max_offset:
            return replace(state, help_offset=moved)
        return replace(state, has_help=False, is_over=key == "q")
    if key == "q":
        return replace(state, is_over=True)
    if state.opened and key in ("esc", "enter", "backspace"):
        return replace(state, opened=0, offset=0)
    return (
        _choose(state, key)
        or _select(state, key, facts)
        or _scroll(state, key, facts)
        or _travel(state, key, facts)
        or state
    )


def _click(state: State, key: str, facts: Facts) -> State:
    column, line = map(int, key.split()[1:])
    for region in facts.regions:
        if region.line == line and region.start <= column < region.end:
            return press(replace(state, is_editing=False, has_help=False), region.key, facts)
    return replace(state, has_help=False)


def _edit(state: State, key: str) -> State:
    if key == "enter":
        return replace(state, is_editing=False)
    if key == "esc":
        return replace(state, is_editing=False, filter="", offset=0)
    if key == "backspace":
        return replace(state, filter=state.filter[:-1], offset=0)
    if len(key) == 1 and key.isprintable() and len(state.filter) < MAX_FILTER:
        return replace(state, filter=state.filter + key, offset=0)
    return state


def _choose(state: State, key: str) -> State | None:
    """Return the state after a key that selects a page, a sort order, a filter, a range or help."""
    if key in ("1", "2", "3", "4"):
        return replace(state, page=int(key), offset=0, opened=0)
    if key == "tab":
        return replace(state, page=state.page % len(PAGES) + 1, offset=0, opened=0)
    if key in ("?", "h", "f1"):
        return replace(state, has_help=True, help_offset=0)
    if key in ("/", "f"):
        return replace(state, page=1, is_editing=True, offset=0, opened=0)
    if key == "t":
        return replace(state, is_tree=not state.is_tree, offset=0)
    if key == "r":
        return replace(state, descending=not state.descending)
    if key in ("+", "-"):
        return replace(state, range_seconds=_next_range(state.range_seconds, 1 if key == "+" else -1))
    if key == "esc":
        return replace(state, filter="", paused_at=None, offset=0, selected=0)
    return _sort(state, key)


def _sort(state: State, key: str) -> State | None:
    if key in ("s", ">"):
        return _sort_by(state, SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)])
    if key == "<":
        return _sort_by(state, SORTS[(SORTS.index(state.sort) - 1) % len(SORTS)])
    if key.startswith("sort "):
        name = key.removeprefix("sort ")
        same = name == state.sort
        return replace(state, descending=not state.descending) if same else _sort_by(state, name)
    return None


def _sort_by(state: State, name: str) -> State:
    return replace(state, sort=name, descending=name not in ("pid", "user", "name"), offset=0)


def _next_range(seconds: int, step: int) -> int:
    return RANGES[max(0, min(len(RANGES) - 1, RANGES.index(seconds) + step))]


def _select(state: State, key: str, facts: Facts) -> State | None:
    """Return the state after a key that marks or opens a process of the table."""
    if key.startswith("row "):
        pid = int(key.removeprefix("row "))
        return replace(state, opened=pid, offset=0) if pid == state.selected else replace(state, selected=pid)
    if state.page != 1 or state.opened or not any(facts.pids):
        return None
    if key == "enter":
        pid = facts.pids[_marked_row(state, facts)]
        return replace(state, selected=pid, opened=pid, offset=0)
    step = {"up": -1, "k": -1, "down": 1, "j": 1}.get(key)
    return _mark(state, step, facts) if step else None


def _mark(state: State, step: int, facts: Facts) -> State:
    """Mark the next or previous process, the first visible one at first, and keep it in view."""
    at = _marked_row(state, facts)
    if facts.pids[at] == state.selected:
        places = [place for place, pid in enumerate(facts.pids) if pid]
        at = places[max(0, min(len(places) - 1, places.index(at) + step))]
    first = max(0, min(state.offset, facts.max_offset, at), at - facts.rows + 1)
    return replace(state, selected=facts.pids[at], offset=first)


def _marked_row(state: State, facts: Facts) -> int:
    """Return the row of the marked process, without one the first visible process. There is at least one."""
    if state.selected and state.selected in facts.pids:
        return facts.pids.index(state.selected)
    places = [place for place, pid in enumerate(facts.pids) if pid]
    return next((place for place in places if place >= min(state.offset, facts.max_offset)), places[-1])


def _scroll(state: State, key: str, facts: Facts) -> State | None:
    moved = _scroll_to(state.offset, key, facts)
    return None if moved is None else replace(state, offset=moved)


def _scroll_to(offset: int, key: str, facts: Facts) -> int | None:
    """Return the first row after a key that scrolls, None for another key."""
    page = max(1, facts.rows - 1)
    steps = {"up": -1, "down": 1, "k": -1, "j": 1, "pgup": -page, "pgdn": page, "wheel-up": -3, "wheel-down": 3}
    if key in ("home", "g"):
        return 0
    if key in ("end", "G"):
        return facts.max_offset
    return max(0, min(facts.max_offset, offset + steps[key])) if key in steps else None


def _travel(state: State, key: str, facts: Facts) -> State | None:
    """Return the state after a key that moves in time. The newest moment ends the pause."""
    if key in (" ", "p"):
        return replace(state, paused_at=facts.now if state.paused_at is None else None)
    steps = {
        "left": -STEP_SECONDS,
        "right": STEP_SECONDS,
        "shift-left": -LONG_STEP_SECONDS,
        "shift-right": LONG_STEP_SECONDS,
        "[": -LONG_STEP_SECONDS,
        "]": LONG_STEP_SECONDS,
    }
    if key not in steps or (state.paused_at is None and steps[key] > 0):
        return None
    scale = state.range_seconds / RANGES[0] if state.page == 3 else 1.0
    moment = (facts.now if state.paused_at is None else state.paused_at) + steps[key] * scale
    return replace(state, paused_at=None if moment >= facts.now else max(facts.oldest, moment))
