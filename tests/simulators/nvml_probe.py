"""Process that evaluates expressions with the unmodified binding, one at a time.

The binding loads the library once per process and keeps it, so each test uses a separate process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulators.nvml_machine import Simulator


class Raised(NamedTuple):
    """Exception raised by an expression; `code` is that of an NVMLError."""

    kind: str
    code: int | None


class Probe(NamedTuple):
    process: subprocess.Popen[str]

    def ask(self, expression: str) -> Any:
        """Return the value or what was raised. Names are pynvml's, and handles are `gpu(i)` and `mig(i, m)`."""
        self.begin(expression)
        return self.answer()

    def begin(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the probe has exited"
        value, raised = json.loads(line)
        return Raised(*raised) if raised else value


@contextmanager
def probe(environ: Mapping[str, str]) -> Iterator[Probe]:
    from support.daemon_process import clean_environment  # the process does without, which halves its cost
    from support.paths import TESTS

    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "simulators.nvml_probe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(**environ, PYTHONPATH=str(TESTS)),
    )
    with process:
        try:
            yield Probe(process)
        finally:
            process.kill()


@contextmanager
def ready(simulator: Simulator) -> Iterator[Probe]:
    """Yield a process in which NVML is initialized and no other call was made."""
    with probe(simulator.environ) as ready_probe:
        assert ready_probe.ask("nvmlInit()") is None
        simulator.clear_calls()
        yield ready_probe


def _serve() -> None:
    import pynvml  # type: ignore[import-untyped]

    names: dict[str, Any] = {name: getattr(pynvml, name) for name in dir(pynvml)}
    names["gpu"] = pynvml.nvmlDeviceGetHandleByIndex
    names["mig"] = lambda gpu, index: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(names["gpu"](gpu), index)
    names["pynvml"] = pynvml
    for line in sys.stdin:
        answer: tuple[Any, tuple[str, Any] | None]
        try:
            answer = _plain(eval(line, names)), None
        except Exception as error:
            answer = None, (type(error).__name__, getattr(error, "value", None))
        print(json.dumps(answer), flush=True)


def _plain(value: Any) -> Any:
    """Convert structures of the binding to dictionaries, and its arrays to lists."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "_length_"):
        return [_plain(part) for part in value]
    if hasattr(value, "_fields_"):
        return {name: _plain(getattr(value, name)) for name, _ in value._fields_}
    return vars(value) if hasattr(value, "__dict__") else value


if __name__ == "__main__":
    _serve()
