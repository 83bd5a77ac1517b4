"""This process: its limits (ulimit, LimitNOFILE=, TasksMax=), its heap, and descriptors 0 to 2.

A failed allocation, thread or file raises another exception in each place. Here each becomes a sentence, which
names a limit that is too small.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
import threading
from typing import IO

# glibc takes `ulimit -s` otherwise, 8 MiB for each of 20 to 60 threads. With 1 MiB, Python 3.13.0 crashes on nested
# JSON: its limit of 10,000 levels supposes a larger stack.
STACK_BYTES = 2 << 20
# With 64, a daemon serves its pages and the API. With fewer, files of collectors cannot be opened.
MIN_DESCRIPTORS = 64
# A daemon without a GPU uses 130 MiB of address space with the API and 23 threads (November 2026). Below the first
# number it is not started: Python may wait for ever for a thread that has no memory to begin.
NEEDED_ADDRESS_MIB, MIN_ADDRESS_MIB = 128, 200
NO_MEMORY = ("cannot allocate memory", "failed to map segment")
NO_FILE = "too many open files"
NO_THREAD = "can't start new thread"


def fit_into_limits() -> None:
    """Let threads take little memory and address space. For programs, before their first thread."""
    threading.stack_size(STACK_BYTES)
    use_one_arena()


def require_limits() -> None:
    """Raise OSError or MemoryError if a daemon would run out of descriptors or memory at its start."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < MIN_DESCRIPTORS:
        raise OSError(errno.EMFILE, "Too many open files")
    if (_address_mib() or MIN_ADDRESS_MIB) < NEEDED_ADDRESS_MIB:
        raise MemoryError


def explain_shortage(error: BaseException) -> str | None:
    """Return a sentence with a remedy if a limit of this process or a lack of memory is the reason, else None."""
    code, text = getattr(error, "errno", None), str(error).lower()
    if code == errno.EMFILE or NO_FILE in text:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = MIN_DESCRIPTORS if allowed < MIN_DESCRIPTORS else 2 * allowed
        return f"too many open files: {allowed} are allowed; allow at least {wanted} (ulimit -n, LimitNOFILE=)"
    if isinstance(error, MemoryError) or code == errno.ENOMEM or any(part in text for part in NO_MEMORY):
        return f"out of memory: {_explain_memory('free memory, or raise MemoryMax= or memory.max')}"
    if code == errno.EAGAIN or NO_THREAD in text:
        remedy = "raise the limit of processes (ulimit -u, TasksMax=, pids.max)"
        return f"no further thread or process can be started: {_explain_memory(f'{remedy}, or free memory')}"
    if (_address_mib() or MIN_ADDRESS_MIB) < MIN_ADDRESS_MIB and not isinstance(error, OSError):
        # An import without memory fails in many ways, such as a SystemError or a name that is missing.
        return f"failed ({type(error).__name__}), probably out of memory: {_explain_memory('')}"
    return None


def _explain_memory(otherwise: str) -> str:
    allowed = _address_mib()
    if allowed is None:
        return otherwise
    wanted = MIN_ADDRESS_MIB if allowed < MIN_ADDRESS_MIB else 2 * allowed
    return f"the address space is limited to {allowed} MiB (ulimit -v); allow at least {wanted} MiB"


def _address_mib() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit >> 20


# The heap of the C library.

_M_ARENA_MAX = -8
# linux/prctl.h
_PR_SET_THP_DISABLE = 41


def trim_heap() -> bool:
    """Return free memory of the heap to the kernel. False if the C library has no malloc_trim, as musl."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        return False
    trim(0)
    return True


def use_one_arena() -> None:
    """Let all threads of glibc use one arena: each further one takes 20 KiB, and 64 MiB of address space."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(_M_ARENA_MAX, 1)


def refuse_huge_pages() -> None:
    """Have the kernel give this process, and those that it starts, no transparent huge pages.

    With `enabled` = always, as Debian has it, the first byte of a new thread's stack takes 2 MiB: a daemon with 23
    threads has an RSS of 121 MiB in place of 71 (November 2026, all of its stacks and its heap in huge pages). Not
    for programs that start others at a user's request, which would be without huge pages as well.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


# Descriptors 0 to 2, which every program expects to be open.

STANDARD = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY))


def open_standard_files() -> None:
    """Open descriptors 0 to 2 on /dev/null if they are closed. Call before any other file is opened.

    open(2) returns the lowest free number. With descriptor 2 closed, a socket or a state file would get it, and log
    lines would be written there. Python sets the stream of a closed descriptor to None, and `print` to None writes
    to stdout.
    """
    for descriptor, name, flags in STANDARD:
        if not _is_open(descriptor):
            _open_null(descriptor, flags)
        if getattr(sys, name) is None:
            setattr(sys, name, _stream(descriptor, flags))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _open_null(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    os.set_inheritable(descriptor, True)


def _stream(descriptor: int, flags: int) -> IO[str]:
    mode = "r" if flags == os.O_RDONLY else "w"
    return open(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
