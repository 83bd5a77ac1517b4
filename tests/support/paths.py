"""Paths of the repository that tests and scripts read."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
DEPLOY = ROOT / "deploy"
SYSTEMD = ROOT / "systemd"
STATIC = ROOT / "web" / "memwatch_web" / "static"
MACHINES = TESTS / "machines"
