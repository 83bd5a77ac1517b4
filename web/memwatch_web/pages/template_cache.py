"""Templates as Jinja2 compiled them, kept where Python keeps compiled modules: half a second of the first page."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

from jinja2.bccache import Bucket, BytecodeCache


class CompiledTemplates(BytecodeCache):
    """A folder `__pycache__` beside the templates, or below PYTHONPYCACHEPREFIX.

    What cannot be read, or was made of another template, by another Jinja2 or another Python, is made anew. It is
    written where that is possible and Python would write its modules as well; whoever can write there could put
    other modules there, so it is trusted as they are.
    """

    def __init__(self, templates: Path) -> None:
        self.folder = Path(cache_from_source(str(templates / "template.py"))).parent
        self._ending = f"{sys.implementation.cache_tag}.jinja2-{version('jinja2')}"

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            with self._file_of(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except FileNotFoundError:
            pass
        except Exception:  # noqa: BLE001  what damaged bytes raise in pickle is anybody's guess
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        file = self._file_of(bucket)
        written = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a folder that others own, a full disk
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with written.open("wb") as into:
                    bucket.write_bytecode(into)
                written.replace(file)
            finally:
                written.unlink(missing_ok=True)

    def _file_of(self, bucket: Bucket) -> Path:
        return self.folder / f"{bucket.key}.{self._ending}"
