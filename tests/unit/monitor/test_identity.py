"""Identity of a machine."""

from __future__ import annotations

import platform
from pathlib import Path

from memwatch.core.linux.files import Roots
from memwatch.core.reading.identity import read_identity


def test_identity_has_kernel_and_cpu_of_the_machine(tmp_path: Path) -> None:
    """From the procfs of the host, which need not be that of this process."""
    folder = tmp_path / "proc/sys/kernel"
    folder.mkdir(parents=True)
    for name, text in (("hostname", "spark-1"), ("osrelease", "6.17.0-nvidia"), ("arch", "aarch64")):
        (folder / name).write_text(text + "\n")

    identity = read_identity(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path))

    assert (identity.host, identity.kernel, identity.cpu) == ("spark-1", "6.17.0-nvidia", "aarch64")


def test_cpu_of_an_older_kernel_is_that_of_this_process(tmp_path: Path) -> None:
    """Linux has the file since 6.1."""
    assert read_identity(Roots(tmp_path, tmp_path, tmp_path)).cpu == platform.machine()
