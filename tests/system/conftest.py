"""Session fixtures: a machine for checks in the order of an administrator's work, another with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import Machine, base_of, booted

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Run a fresh Debian with the package in /root, not installed."""
    work = ROOT / "out" / "system"
    work.mkdir(parents=True, exist_ok=True)
    package = (ROOT / "dist/memwatchd.deb").resolve()
    with booted(base_of(work), work / "machine") as running:
        (running.root / "root" / "memwatchd.deb").write_bytes(package.read_bytes())
        yield running


@pytest.fixture(scope="session")
def installed() -> Iterator[Machine]:
    """Run a second machine, with the package: other checks upgrade and purge it on the first."""
    work = ROOT / "out" / "system"
    work.mkdir(parents=True, exist_ok=True)
    package = (ROOT / "dist/memwatchd.deb").resolve()
    with booted(base_of(work), work / "pages") as running:
        (running.root / "root" / "memwatchd.deb").write_bytes(package.read_bytes())
        running.run("cd /root && apt-get install --yes ./memwatchd.deb")
        yield running
