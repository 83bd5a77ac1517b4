"""Test what errors advise about files that cannot be read or written."""

from __future__ import annotations

import errno

import pytest

from memwatch.core.runtime.own_files import remedy_to_read, remedy_to_write


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOENT, "check the name"),
        (errno.EISDIR, "name a file in it"),
        (errno.EACCES, "let the user of memwatchd read it"),
        (errno.EIO, "check the disk, or name another file"),
    ],
)
def test_unreadable_file_has_the_remedy_of_its_cause(number: int, remedy: str) -> None:
    assert remedy_to_read(OSError(number, "why"), "the user of memwatchd") == remedy


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOENT, "name a file in a folder that exists"),
        (errno.EISDIR, "name a file in it"),
        (errno.ENOSPC, "free some space, or name a file on another disk"),
        (errno.EDQUOT, "free some space, or name a file on another disk"),
        (errno.EACCES, "name a file in a folder that this user may write to"),
        (errno.EROFS, "name a file in a folder that this user may write to"),
    ],
)
def test_unwritable_file_has_the_remedy_of_its_cause(number: int, remedy: str) -> None:
    assert remedy_to_write(OSError(number, "why")) == remedy
