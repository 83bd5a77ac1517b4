"""Test the characters of terminals without UTF-8."""

from __future__ import annotations

import pytest

from memwatch.cli.charset import needs_ascii, to_ascii
from memwatch.cli.tables import BLOCKS
from memwatch.cli.terminal.style import cells


@pytest.mark.parametrize(
    ("environ", "is_ascii"),
    [
        ({"TERM": "xterm", "LC_ALL": "C"}, True),
        ({"TERM": "xterm", "LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "xterm", "LC_ALL": "C.UTF-8"}, False),
        ({"TERM": "xterm", "LANG": "de_DE.utf8"}, False),
        ({"TERM": "xterm", "LANG": "de_DE.ISO-8859-1"}, True),
        ({"TERM": "xterm", "LC_CTYPE": "UTF-8"}, False),
        ({"TERM": "xterm"}, False),
        ({"TERM": "xterm", "LC_CTYPE": "C.UTF-8"}, False),
        ({"TERM": "xterm", "LC_CTYPE": "C.UTF-8", "LANG": "C"}, True),
        ({"TERM": "linux", "LANG": "C.UTF-8"}, True),
        ({"TERM": "dumb", "LANG": "C.UTF-8"}, True),
    ],
)
def test_characters_follow_locale_and_terminal(environ: dict[str, str], is_ascii: bool) -> None:
    """Python itself sets LC_CTYPE to C.UTF-8 where it finds no other locale: that says nothing of the terminal."""
    assert needs_ascii(True, environ) is is_ascii


def test_terminal_does_not_count_for_a_pipe() -> None:
    assert not needs_ascii(False, {"TERM": "linux", "LANG": "C.UTF-8"})
    assert needs_ascii(False, {"TERM": "xterm", "LC_ALL": "C"})


def test_characters_of_pictures_keep_their_width_and_stay_different() -> None:
    parts = "█▓▒░·▚▞▤"
    assert to_ascii(parts) == "#=%:.x/&"
    assert len(set(to_ascii(BLOCKS))) == len(BLOCKS) == len(to_ascii(BLOCKS))
    assert len(set(to_ascii("●◆▲⬣↑↓"))) == 6
    assert to_ascii("├─ used │ └─ free") == "|- used | `- free"


def test_names_keep_their_cells_and_nothing_reaches_the_terminal() -> None:
    name = "Zoë 漢字 e\u0301 \U0001f600"

    assert to_ascii("CUDA Pool ⊂ System RAM → 64 °C") == "CUDA Pool in System RAM -> 64 C"
    assert to_ascii(name) == "Zoe ???? e ??"
    assert cells(to_ascii(name)) == cells(name)
    assert to_ascii("\x1b[2J") == "\x1b[2J"  # names are escaped where they are read
