"""On-disk cache of compiled Jinja2 templates. It saves half a second of the first page."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

from jinja2.bccache import Bucket, BytecodeCache


class CompiledTemplates(BytecodeCache):
    """Cache in `__pycache__` beside the templates, or below PYTHONPYCACHEPREFIX.

    Files that are unreadable, outdated, or from another version of Jinja2 or Python are compiled again. Files are
    written only where Python would write its compiled modules, and have the same trust: an account that can write
    there could also replace modules. Jinja's FileSystemBytecodeCache (3.1) writes files with mode 0600, which the
    service's user could not read after root compiled them.
    """

    def __init__(self, templates: Path) -> None:
        self.folder = Path(cache_from_source(str(templates / "template.py"))).parent
        self._ending = f"{sys.implementation.cache_tag}.jinja2-{version('jinja2')}"

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            with self._cache_path(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except FileNotFoundError:
            pass
        except Exception:  # noqa: BLE001  pickle may raise any exception on damaged bytes
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        file = self._cache_path(bucket)
        written = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # not writable, or the disk is full
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with written.open("wb") as into:
                    bucket.write_bytecode(into)
                written.replace(file)
            finally:
                written.unlink(missing_ok=True)

    def _cache_path(self, bucket: Bucket) -> Path:
        return self.folder / f"{bucket.key}.{self._ending}"
