"""The targets: `check` of `fuzz_NAME.py`, seeds in `corpus/NAME`, and a dictionary for mutations in `words`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem.removeprefix("fuzz_") for path in FOLDER.glob("fuzz_*.py")))
MAX_BYTES = 4096


class Target(Struct, frozen=True):
    """Fuzz target; `max_bytes` is the maximum length of inputs."""

    name: str
    check: Callable[[bytes], None]
    max_bytes: int

    @property
    def seeds(self) -> Path:
        return FOLDER / "corpus" / self.name

    @property
    def words(self) -> str:
        """Return libFuzzer's dictionary: words of this format, and numbers that are critical in any."""
        return "".join((FOLDER / "words" / f"{name}.dict").read_text() for name in (self.name, "usual"))


def target(name: str) -> Target:
    module = importlib.import_module(f"fuzz.fuzz_{name}")
    return Target(name, module.check, getattr(module, "MAX_BYTES", MAX_BYTES))
