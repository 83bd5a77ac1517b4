"""Check that each open of a file, folder, program or socket is of a known kind: python -m scripts.check_opens.

A path that another user's process names may lead to any file, FIFO or device. Only `core.linux.user_files` and
`core.runtime.regular_file` open such a path. `tests/opens.toml` counts all other places by module, below the
reason why no other user chooses the path. A new open changes a number, so that its reason is looked at.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLACES = ("daemon", "web")
TABLE = ROOT / "tests" / "opens.toml"
# These open a path of another user safely.
READERS = frozenset({"daemon/memwatch/core/linux/user_files.py", "daemon/memwatch/core/runtime/regular_file.py"})
_OS = """access chmod chown execl execv execve execvp execvpe fwalk getxattr lchown link listdir listxattr lstat
makedirs mkdir mkfifo mknod open popen posix_spawn posix_spawnp readlink remove removedirs rename renames replace
rmdir scandir setxattr spawnv stat statvfs symlink system truncate unlink utime walk"""
_OS_PATH = "exists getatime getctime getmtime getsize isdir isfile islink ismount lexists realpath samefile"
_SHUTIL = "copy copy2 copyfile copytree disk_usage move rmtree which"
FUNCTIONS = frozenset(
    {
        "open",
        "io.open",
        *(f"os.{name}" for name in _OS.split()),
        *(f"os.path.{name}" for name in _OS_PATH.split()),
        *(f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")),
        *(f"asyncio.create_subprocess_{name}" for name in ("exec", "shell")),
        *(f"ctypes.{name}" for name in ("CDLL", "PyDLL", "cdll", "util.find_library")),
        *(f"shutil.{name}" for name in _SHUTIL.split()),
        *(f"tempfile.{name}" for name in ("mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory")),
        *("gzip.open", "tarfile.open", "zipfile.ZipFile", "sqlite3.connect", "importlib.import_module"),
        *(
            f"memwatch.core.linux.files.{name}"
            for name in ("KeptFile", "inode_of", "kept_file", "look_for", "names_in", "read_once")
        ),
        "memwatch.core.linux.cgroup_mounts.list_children",
        *("memwatch.core.linux.process_files.read_at", "memwatch.core.linux.process_files.open_folder"),
        *("memwatch.core.backends.probes.read_head", "memwatch.core.backends.probes.list_names"),
    }
)
# Of paths, sockets and TLS contexts, whatever they are called on.
_METHODS = """bind connect connect_ex exists glob hardlink_to is_block_device is_char_device is_dir is_fifo is_file
is_mount is_socket is_symlink iterdir load_cert_chain load_verify_locations lstat mkdir open read_bytes read_text
readlink resolve rglob rmdir samefile stat symlink_to touch unlink write_bytes write_text"""
METHODS = frozenset(_METHODS.split())


class Open(NamedTuple):
    """A place that opens something."""

    module: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"


def find_opens(module: str, source: str) -> Iterator[Open]:
    """Yield each use of a function that opens, lists, examines or runs what a path leads to.

    A path that is written in the source itself is left out.
    """
    tree = ast.parse(source)
    names, lines = {**_own_names(tree, module), **dict(_imports(tree))}, source.splitlines()
    left_out = {id(node) for node in _left_out(tree, names)}
    for node in ast.walk(tree):
        if id(node) not in left_out and (_is_function(node, names) or _is_method(node, names)):
            line = getattr(node, "lineno", 0)
            yield Open(module, line, lines[line - 1].strip())


def _own_names(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the full names of a module's own functions."""
    dotted = module.partition("/")[2].removesuffix(".py").replace("/", ".")
    return {node.name: f"{dotted}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                first = one.name.partition(".")[0]
                yield (one.asname, one.name) if one.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _left_out(tree: ast.AST, names: Mapping[str, str]) -> Iterator[ast.AST]:
    """Yield annotations, and calls with a constant path."""
    for node in ast.walk(tree):
        annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
        yield from (part for one in annotations if isinstance(one, ast.AST) for part in ast.walk(one))
        if isinstance(node, ast.Call) and node.args and _is_constant(node.args[0], names):
            yield from ast.walk(node.func)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            made = node.func.value
            if isinstance(made, ast.Call) and _full_name(made.func, names) == "pathlib.Path" and made.args:
                yield from [node] if all(_is_constant(one, names) for one in made.args) else []


def _is_constant(node: ast.expr, names: Mapping[str, str]) -> bool:
    return isinstance(node, ast.Constant) or _full_name(node, names) == "os.devnull"


def _is_function(node: ast.AST, names: Mapping[str, str]) -> bool:
    """Return True for a function by its name, called or passed on."""
    return isinstance(node, ast.Name | ast.Attribute) and _full_name(node, names) in FUNCTIONS


def _is_method(node: ast.AST, names: Mapping[str, str]) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in METHODS and _full_name(node.func, names) not in FUNCTIONS


def _full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, names)}.{node.attr}"
    return ""


def check(found: Iterable[Open], table: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a sentence for each module whose opens are not those of the table."""
    by_module: dict[str, list[Open]] = {}
    for one in found:
        by_module.setdefault(one.module, []).append(one)
    listed: Counter[str] = Counter()
    for modules in table.values():
        listed.update(modules)
    for module in sorted({*by_module, *listed}):
        opens = by_module.get(module, [])
        if len(opens) == listed[module]:
            continue
        yield (
            f"{module}: {len(opens)} opens, {listed[module]} in {TABLE.name}; a path that another user's process "
            f"names needs memwatch.core.linux.user_files, any other one a reason and the new number in {TABLE.name}"
        )
        yield from (f"  {one}" for one in opens)


def read_table(path: Path = TABLE) -> dict[str, dict[str, int]]:
    """Return the numbers of opens by reason and module."""
    groups = tomllib.loads(path.read_text("utf-8"))
    return {group["reason"]: group["modules"] for group in groups.values()}


def sources(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield the modules of the product and their text."""
    for place in PLACES:
        for path in sorted((root / place).rglob("*.py")):
            module = path.relative_to(root).as_posix()
            if module not in READERS and "__pycache__" not in path.parts:
                yield module, path.read_text("utf-8")


def main() -> int:
    found = [one for module, source in sources() for one in find_opens(module, source)]
    findings = list(check(found, read_table()))
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
