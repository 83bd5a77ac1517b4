"""Test keys of `memwatch top`: bytes to keys, and keys to states."""

from __future__ import annotations

import pytest

from memwatch.cli.terminal.app import decode
from memwatch.cli.terminal.state import Facts, Region, State, press

FACTS = Facts(now=1000.0, oldest=400.0, rows=10, total=100, regions=(Region(5, 10, 16, "sort rss"),))


def after(keys: list[str], state: State | None = None, facts: Facts = FACTS) -> State:
    state = state or State()
    for key in keys:
        state = press(state, key, facts)
    return state


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q1/", ["q", "1", "/"]),
        ("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "pgup", "pgdn", "home", "end"]),
        ("\x1b[1;2D\x1b[1;5C\x1b[D", ["shift-left", "shift-right", "left"]),
        ("\x1b[<0;11;6M\x1b[<0;11;6m\x1b[<64;1;1M\x1b[<65;1;1M", ["click 10 5", "wheel-up", "wheel-down"]),
        ("\x1b[<2;1;1M\x1b[99~\x1b[Z", []),
        ("\x03\x1a\x0c\r\t\x7f\x01", ["ctrl-c", "ctrl-z", "ctrl-l", "enter", "tab", "backspace"]),
        ("é漢", ["é", "漢"]),
    ],
)
def test_sequences_decode_to_keys(sent: str, keys: list[str]) -> None:
    assert decode(sent) == (keys, "")


@pytest.mark.parametrize("cut", ["\x1b", "\x1b[", "\x1b[<0;11", "\x1bO", "\x1b[1;"])
def test_cut_sequence_waits_for_its_rest(cut: str) -> None:
    assert decode(f"a{cut}") == (["a"], cut)


def test_pages_and_order_follow_keys() -> None:
    assert [after([key]).page for key in ("1", "2", "3", "4", "tab")] == [1, 2, 3, 4, 2]
    assert after(["s"]).sort == "rss"
    assert after(["<"]) == State(sort="name", descending=False)
    assert after(["<", ">"]).sort == "footprint"
    assert not after(["r"]).descending
    assert after(["t"]).is_tree


def test_filter_takes_letters_until_enter_or_escape() -> None:
    """While it is typed, no letter is a command."""
    typed = after(["3", "/", *"quit", "backspace"])

    assert (typed.filter, typed.is_editing, typed.page, typed.is_over) == ("qui", True, 1, False)
    assert not after(["enter"], typed).is_editing
    assert after(["esc"], typed).filter == ""
    assert after(["enter", "esc"], typed).filter == ""
    assert len(after(["/", *("x" * 200)]).filter) == 60
    assert after(["ctrl-c"], typed).is_over


def test_scrolling_stays_within_the_list() -> None:
    assert after(["up"]).offset == 0
    assert after(["down", "j", "wheel-down"]).offset == 5
    assert after(["pgdn", "pgdn", "pgup"]).offset == 9
    assert after(["end"]).offset == after(["G", "pgdn"]).offset == 90
    assert after(["end", "home"]).offset == 0
    assert after(["end", "4"]).offset == 0


def test_rows_are_marked_opened_and_kept_in_view() -> None:
    """Arrows skip groups, begin at the first visible row, and scroll with the marked one. Enter opens it."""
    facts = Facts(now=1000.0, oldest=400.0, rows=3, total=6, pids=(0, 11, 12, 0, 13, 14))

    assert [after(["down"] * count, facts=facts).selected for count in (1, 2, 3, 9)] == [11, 12, 13, 14]
    assert after(["down"] * 3, facts=facts).offset == 2
    assert after([*["j"] * 4, *["k"] * 3], facts=facts) == State(selected=11, offset=1)
    assert after(["wheel-down", "down"], facts=facts).selected == 13
    assert after(["enter"], facts=facts).opened == 11
    opened = after(["down", "down", "enter"], facts=facts)
    assert (opened.opened, opened.offset) == (12, 0)
    assert [after([key], opened, facts).opened for key in ("esc", "enter", "backspace", "2", "/")] == [0] * 5
    assert after(["u", "?", "x"], opened, facts).opened == 12
    assert after(["esc"], after(["down"], facts=facts), facts).selected == 0
    assert after(["row 14"], facts=facts) == State(selected=14)
    assert after(["row 14", "row 14"], facts=facts).opened == 14


def test_time_moves_back_and_forth_and_ends_at_the_newest() -> None:
    assert after(["left"]).paused_at == 990.0
    assert after(["left", "left", "right"]).paused_at == 990.0
    assert after(["left", "right"]).paused_at is None
    assert after(["right"]).paused_at is None
    assert after(["shift-left"] * 20).paused_at == 400.0
    assert after([" "]).paused_at == 1000.0
    assert after([" ", " "]).paused_at is None
    assert after(["left", "esc"]).paused_at is None
    long = after(["3", "+", "left"], facts=Facts(now=10_000.0, oldest=0.0))
    assert (long.range_seconds, long.paused_at) == (3600, 9940.0)
    assert after(["-"]).range_seconds == 600


def test_click_acts_as_the_key_of_its_cell() -> None:
    assert after(["click 12 5"]).sort == "rss"
    assert not after(["click 12 5", "click 12 5"]).descending
    assert after(["click 60 20"]) == State()


def test_help_closes_at_any_key() -> None:
    assert after(["?"]).has_help
    assert after(["?", "x"]) == State()
    assert after(["?", "q"]).is_over
    assert after(["q"]).is_over
