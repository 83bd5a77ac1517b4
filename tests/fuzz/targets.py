"""The targets: `check` of `fuzz_NAME.py`, seeds in `corpus/NAME`, and in `words` what a mutation may put in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem.removeprefix("fuzz_") for path in FOLDER.glob("fuzz_*.py")))
MOST_BYTES = 4096


class Target(Struct, frozen=True):
    """`most_bytes` is as long as inputs become."""

    name: str
    check: Callable[[bytes], None]
    most_bytes: int

    @property
    def seeds(self) -> Path:
        return FOLDER / "corpus" / self.name

    @property
    def words(self) -> str:
        """A dictionary as libFuzzer reads it: words of this format, and numbers that are trouble in any."""
        return "".join((FOLDER / "words" / f"{name}.dict").read_text() for name in (self.name, "usual"))


def target(name: str) -> Target:
    module = importlib.import_module(f"fuzz.fuzz_{name}")
    return Target(name, module.check, getattr(module, "MOST_BYTES", MOST_BYTES))
