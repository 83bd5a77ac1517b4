"""Name of the script that an interpreter runs, and the rank of its process in a distributed run. Not a collector.

Of a command line only the name is kept, of an environment only the rank: both may contain secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memwatch.core.engines.command import INTERPRETER, Command, base_name
from memwatch.core.printable import decode, printable

# PyTorch names the main thread of its processes so, and with it the process (torch/multiprocessing, since 2.4).
TORCH_MAIN = b"pt_main_thread"
MAX_SCRIPT_CHARACTERS = 64
# Enough for the script and its first options, and for the variables of a job.
ARGUMENT_BYTES, ENVIRONMENT_BYTES = 4096, 32768
# Options of CPython that take the next argument as their value.
_WITH_VALUE = frozenset("WX")
_LONG_WITH_VALUE = "--check-hash-based-pycs"
# torchrun, DeepSpeed and Accelerate set the first, Open MPI and Slurm's srun the others.
RANK_VARIABLES = (b"RANK", b"LOCAL_RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
RANK_OPTIONS = ("--local-rank", "--node-rank")
MAX_RANK_DIGITS = 7


def is_generic(name: bytes) -> bool:
    """Return True if a process name says only which interpreter runs, not what."""
    return name == TORCH_MAIN or INTERPRETER.fullmatch(decode(name)) is not None


def split_arguments(data: bytes) -> tuple[str, ...]:
    """Return the arguments in the content of /proc/<pid>/cmdline."""
    return tuple(part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0"))


def find_script(argv: Sequence[str]) -> str | None:
    """Return the script or module of a Python command line, None for code on the command line or from stdin.

    A program that is no interpreter runs one inside, or wrote its own title: then it is the first word.
    """
    program = base_name(argv[0]) if argv else ""
    if not INTERPRETER.fullmatch(program):
        return _shorten(base_name(argv[0].partition(" ")[0])) if argv else None
    rest = iter(argv[1:])
    for argument in rest:
        if argument == "-" or not argument.startswith("-"):
            return None if argument == "-" else _shorten(base_name(argument))
        if argument == _LONG_WITH_VALUE:
            next(rest, "")
        for at, letter in enumerate(argument[1:] if not argument.startswith("--") else ""):
            if letter == "c":
                return None
            if letter == "m":
                return _shorten(argument[at + 2 :] or next(rest, ""))
            if letter in _WITH_VALUE:
                if not argument[at + 2 :]:
                    next(rest, "")
                break
    return None


def find_rank(argv: Sequence[str], environment: Iterable[bytes] = ()) -> int | None:
    """Return the rank in a distributed run. A rank of all machines comes before one of this machine."""
    variables = dict(one.partition(b"=")[::2] for one in environment)
    found = [variables.get(name, b"").decode("ascii", "replace") for name in RANK_VARIABLES]
    command = Command(tuple(argv))
    for text in (*found, *(command.option(name) for name in RANK_OPTIONS)):
        if text.isascii() and text.isdigit() and len(text) <= MAX_RANK_DIGITS:
            return int(text)
    return None


def _shorten(name: str) -> str | None:
    text = printable(name)
    return (text if len(text) <= MAX_SCRIPT_CHARACTERS else text[: MAX_SCRIPT_CHARACTERS - 1] + "…") or None
