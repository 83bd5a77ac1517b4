"""The process that holds GPU memory: `python -m hardware.holder API INDEX`.

One line of JSON per request and answer: `{"do": "allocate", "kind": "device", "size_bytes": 1}`, `{"do": "free"}`,
`{"do": "facts"}`. It ends with its input. The driver returns what a process holds when it ends, in any way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from msgspec import Struct, json

from hardware.cuda import Cuda
from hardware.hip import Hip
from hardware.level_zero import LevelZero
from hardware.native import DriverApi, DriverApiError, GpuFacts, Memory

APIS: Mapping[str, type[Cuda] | type[Hip] | type[LevelZero]] = {"cuda": Cuda, "hip": Hip, "level-zero": LevelZero}


class Request(Struct, frozen=True):
    """Operation on the memory of the process."""

    do: str
    kind: str = ""
    size_bytes: int = 0


class Reply(Struct, frozen=True):
    """Result of a request. `error` is empty on success."""

    error: str = ""
    facts: GpuFacts | None = None
    kinds: tuple[str, ...] = ()


def answer(request: Request, api: DriverApi, held: list[Memory]) -> Reply:
    """Carry out a request. Raises `DriverApiError`."""
    if request.do == "allocate":
        held.append(api.allocate(request.kind, request.size_bytes))
    while request.do == "free" and held:
        api.free(held[-1])
        held.pop()
    return Reply(facts=api.facts(), kinds=tuple(api.kinds))


def main(name: str, index: int) -> None:
    held: list[Memory] = []
    try:
        api = APIS[name](index)
        _print(Reply(facts=api.facts(), kinds=tuple(api.kinds)))
    except DriverApiError as error:
        return _print(Reply(error=str(error)))
    for line in sys.stdin:
        try:
            reply = answer(json.decode(line, type=Request), api, held)
        except DriverApiError as error:
            reply = Reply(error=str(error))
        _print(reply)
    return None


def _print(reply: Reply) -> None:
    sys.stdout.write(json.encode(reply).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
