"""Random loss of TCP segments by the kernel, in a network namespace."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def own_network() -> bool:
    """Return True if this process is alone in its network: rules here change nothing else."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines} == {"lo"}


@contextmanager
def losing(port: int, ratio: float) -> Iterator[Callable[[], int]]:
    """Lose this part of the segments from and to a port. Yield a function that counts them.

    netem of tc(8) does the same, but many kernels lack it.
    """
    assert own_network(), "the rule is for a network namespace: run make test-neighbours"
    chance = ("-m", "statistic", "--mode", "random", "--probability", str(ratio))
    rules = [("INPUT", "-p", "tcp", way, str(port), *chance, "-j", "DROP") for way in ("--sport", "--dport")]
    for rule in rules:
        _iptables("-A", *rule)
    try:
        yield lambda: sum(map(int, re.findall(r"^\s*(\d+)\s+\d+ DROP", _iptables("-nvxL", "INPUT"), re.MULTILINE)))
    finally:
        with suppress(subprocess.CalledProcessError):
            for rule in rules:
                _iptables("-D", *rule)


def _iptables(*arguments: str) -> str:
    return subprocess.run(
        ["iptables", "--wait", "20", *arguments], check=True, capture_output=True, text=True
    ).stdout
