"""Files of the kernel that stay open."""

import gc
import os
from pathlib import Path

import pytest

from memwatch.core.linux.files import KeptFile


def test_file_whose_owner_is_dropped_is_closed(tmp_path: Path) -> None:
    """A collector whose second file is missing raises, and leaves the first one to this."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 1 kB\n")

    def fails() -> None:
        kept = KeptFile(path)
        KeptFile(path.with_name(kept.read().decode().split(":")[0]))

    with pytest.raises(FileNotFoundError):
        fails()
    gc.collect()

    assert not any(is_link_to(path, entry) for entry in Path("/proc/self/fd").iterdir())


def test_closed_file_is_not_closed_again(tmp_path: Path) -> None:
    """Its number may be that of another file by then."""
    path = tmp_path / "meminfo"
    path.write_text("")
    kept = KeptFile(path)
    kept.close()
    other = os.open(path, os.O_RDONLY)
    del kept
    gc.collect()

    os.close(other)


def test_file_that_the_program_has_closed_is_dropped_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that becomes a daemon closes all files. The error would be on its stderr."""
    path = tmp_path / "meminfo"
    path.write_text("")
    kept = KeptFile(path)
    os.close(kept._fd)
    del kept
    gc.collect()

    assert capsys.readouterr().err == ""


def is_link_to(path: Path, entry: Path) -> bool:
    return entry.is_symlink() and os.readlink(entry) == str(path)
