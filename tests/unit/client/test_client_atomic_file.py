"""Test files that another program reads while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.cli.http import CommandError
from memwatch.cli.output import write_atomically


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("missing", "no such file or directory; name a file in a folder that exists"),
        ("file", "not a directory; name a file in a folder that this user may write to"),
    ],
)
def test_error_has_the_remedy_of_its_cause(tmp_path: Path, folder: str, sentence: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CommandError, match=f"cannot write .*: {sentence}$"):
        write_atomically(tmp_path / folder / "labels", "")
