"""Paths of the repository that tests and scripts read."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
DEPLOY = ROOT / "deploy"
SYSTEMD = ROOT / "systemd"
STATIC = ROOT / "web" / "memwatch_web" / "static"
MACHINES = TESTS / "machines"

PRODUCT = ("daemon", "web")


def is_tested_here(root: Path) -> bool:
    """Check that Python imports the product of the checkout `root`. A folder without a product passes."""
    found = find_spec("memwatchd")
    has_product = (root / PRODUCT[0] / "memwatchd").is_dir()
    return not has_product or (found is not None and Path(found.origin or "/").is_relative_to(root))


def environment_of_tests(root: Path) -> dict[str, str]:
    """Return this environment as of a pytest that a shell starts in the checkout `root`.

    Daemons of tests must not find the modules of tests. A virtual environment that was made in another checkout,
    such as the first of two git worktrees, has the product of that one, which PYTHONPATH then replaces.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    here = {} if is_tested_here(root) else {"PYTHONPATH": os.pathsep.join(str(root / one) for one in PRODUCT)}
    return environ | here
