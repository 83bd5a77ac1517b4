"""Compiled Jinja templates: of a wheel, from its build, and of a checkout, from a cache on disk.

Parsing takes three quarters of the time of a template. Imports nothing of memwatch, because the build of the wheel
(deploy/package/shared_files.py) imports this module.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType

from jinja2 import Environment, FileSystemLoader, StrictUndefined, nodes
from jinja2.bccache import Bucket, BytecodeCache

TEMPLATES = Path(__file__).parent.parent / "templates"


class CompiledTemplates(BytecodeCache):
    """Templates that the build compiled to Python, or a cache in `__pycache__` beside the templates.

    Python keeps the byte code of the former as of any module, and an installation writes it. The latter is below
    PYTHONPYCACHEPREFIX if that is set. Files that are unreadable, outdated, or from another version of Jinja2 or
    Python are compiled again. Files are written only where Python would write its compiled modules, and have the
    same trust: an account that can write there could also replace modules. Jinja's FileSystemBytecodeCache (3.1)
    writes files with mode 0600, which the service's user could not read after root compiled them.
    """

    def __init__(self, templates: Path) -> None:
        self.folder = Path(cache_from_source(str(templates / "template.py"))).parent
        self._built = templates / "compiled"
        self._ending = f"{sys.implementation.cache_tag}.jinja2-{version('jinja2')}"

    def get_bucket(self, environment: Environment, name: str, filename: str | None, source: str) -> Bucket:
        bucket = super().get_bucket(environment, name, filename, source)
        if bucket.code is None:
            code = self._load_built(name, bucket.checksum)
            # Jinja takes the file in a traceback from it.
            bucket.code = code.replace(co_filename=filename) if code and filename else code
        return bucket

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

    def _load_built(self, name: str, checksum: str) -> CodeType | None:
        try:
            return SourceFileLoader(name, str(self._built / _name_built(name, checksum))).get_code(name)
        except OSError:  # another source, another Jinja2, or a checkout
            return None

    def _cache_path(self, bucket: Bucket) -> Path:
        return self.folder / f"{bucket.key}.{self._ending}"


def _name_built(name: str, checksum: str) -> str:
    return f"{name}-{checksum}-jinja2-{version('jinja2')}.py"


def create_plain_environment(templates: Path = TEMPLATES) -> Environment:
    """Create the environment without filters, tests and names of ours: autoescape, undefined names raise."""
    return Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        optimized=False,  # keep results of filters out of compiled templates
        bytecode_cache=CompiledTemplates(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def write_compiled(into: Path, templates: Path = TEMPLATES) -> None:
    """Compile all templates to Python, for the folder `compiled` beside them in a wheel."""
    environment = create_plain_environment(templates)
    for name in environment.list_templates(("html", "svg")):
        source = (templates / name).read_text("utf-8")
        file = into / _name_built(name, CompiledTemplates(templates).get_source_checksum(source))
        file.write_text(_compile(environment, name, source), "utf-8")


def _compile(environment: Environment, name: str, source: str) -> str:
    """Compile a template without the functions of its filters and tests: the result has only their names."""
    tree = environment.parse(source, name)
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        known = environment.filters if isinstance(node, nodes.Filter) else environment.tests
        known.setdefault(node.name, _stand_in)
    return environment.compile(tree, name, raw=True)


def _stand_in(value: object) -> object:
    return value
