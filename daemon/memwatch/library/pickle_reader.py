"""Reader of pickles that hold only plain values: an allow-list of opcodes, none of which calls anything.

A pickle can name any function to call. Here, opcodes that import, call or build objects are refused before anything
of theirs is read, and sizes, operations and containers are bounded.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from memwatch.planning.sizes import InvalidInputError

MAX_BYTES = 256 << 20
MAX_OPERATIONS = 40_000_000
MAX_CONTAINERS = 4_000_000
MAX_TEXT_BYTES = 1 << 20
MAX_INTEGER_BYTES = 16


class PickleRefusedError(InvalidInputError):
    """A pickle that is damaged, too large, or holds more than plain values."""


class PickleReader:
    """Reads one pickle: None, booleans, numbers, text, bytes, lists, tuples, and dicts with text as keys."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise PickleRefusedError(f"it has more than {MAX_BYTES >> 20} MiB, the most that is read")
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._containers = 0

    def read(self) -> object:
        """Return the value. Raises PickleRefusedError."""
        try:
            for _ in range(MAX_OPERATIONS):
                code = self._data[self._at]
                self._at += 1
                if code == STOP:
                    return self._stack.pop()
                handler = HANDLERS[code]
                if handler is None:
                    self._refuse(code)
                handler(self)
        except (IndexError, UnicodeDecodeError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, PickleRefusedError):
                raise
            raise PickleRefusedError(f"it is no pickle or is damaged at byte {self._at:,}") from None
        raise PickleRefusedError(f"it has more than {MAX_OPERATIONS:,} operations, the most that are read")

    def _refuse(self, code: int) -> NoReturn:
        at = self._at - 1
        if code not in NAMES:
            raise PickleRefusedError(f"it is no pickle or is damaged at byte {at:,}")
        name = NAMES[code]
        danger = ", which can run code" if name in CAN_RUN_CODE else ""
        raise PickleRefusedError(f"it has the operation {name} at byte {at:,}{danger}; only plain values are read")

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise PickleRefusedError(f"it ends at byte {len(self._data):,}, within a value")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, form: str, size: int) -> int:
        return int(struct.unpack(form, self.take(size))[0])

    def push(self, value: object) -> None:
        self._stack.append(value)

    def push_container(self, value: object) -> None:
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise PickleRefusedError(f"it has more than {MAX_CONTAINERS:,} lists and dicts, the most that are read")
        self._stack.append(value)

    def text_bytes(self, count: int) -> bytes:
        if count > MAX_TEXT_BYTES:
            raise PickleRefusedError(f"it has a text of {count:,} bytes, above {MAX_TEXT_BYTES:,}")
        return self.take(count)

    def text(self, count: int) -> None:
        self._stack.append(self.text_bytes(count).decode("utf-8", "surrogatepass"))

    def integer(self, count: int) -> None:
        if not 0 <= count <= MAX_INTEGER_BYTES:
            raise PickleRefusedError(f"it has an integer of {count:,} bytes, above {MAX_INTEGER_BYTES}")
        self._stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_mark(self) -> list[Any]:
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Set pairs of a dict. Only text is hashed, whose hash an attacker cannot choose."""
        target = self._stack[-1]
        keys = values[::2]
        if type(target) is not dict or len(values) % 2 or any(type(key) is not str for key in keys):
            raise TypeError
        target.update(zip(keys, values[1::2], strict=True))

    def pop(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise IndexError
        found = self._stack[-count:]
        del self._stack[-count:]
        return found

    def put(self, index: int) -> None:
        """Store the top of the stack. Indexes count up, so that none makes the memo large."""
        if index == len(self._memo):
            self._memo.append(self._stack[-1])
        else:
            self._memo[index] = self._stack[-1]

    def memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])


Handler = Callable[[PickleReader], object]
STOP = ord(".")
BY_NAME: dict[str, Handler] = {
    "PROTO": lambda one: one.take(1),
    "FRAME": lambda one: one.take(8),
    "MARK": lambda one: one.mark(),
    "NONE": lambda one: one.push(None),
    "NEWTRUE": lambda one: one.push(True),
    "NEWFALSE": lambda one: one.push(False),
    "BININT": lambda one: one.push(one.number("<i", 4)),
    "BININT1": lambda one: one.push(one.take(1)[0]),
    "BININT2": lambda one: one.push(one.number("<H", 2)),
    "LONG1": lambda one: one.integer(one.take(1)[0]),
    "LONG4": lambda one: one.integer(one.number("<i", 4)),
    "BINFLOAT": lambda one: one.push(struct.unpack(">d", one.take(8))[0]),
    "SHORT_BINUNICODE": lambda one: one.text(one.take(1)[0]),
    "BINUNICODE": lambda one: one.text(one.number("<I", 4)),
    "BINUNICODE8": lambda one: one.text(one.number("<Q", 8)),
    "SHORT_BINBYTES": lambda one: one.push(one.take(one.take(1)[0])),
    "BINBYTES": lambda one: one.push(one.text_bytes(one.number("<I", 4))),
    "EMPTY_LIST": lambda one: one.push_container([]),
    "APPEND": lambda one: one.append(one.pop(1)),
    "APPENDS": lambda one: one.append(one.pop_mark()),
    "EMPTY_DICT": lambda one: one.push_container({}),
    "SETITEM": lambda one: one.set_items(one.pop(2)),
    "SETITEMS": lambda one: one.set_items(one.pop_mark()),
    "EMPTY_TUPLE": lambda one: one.push(()),
    "TUPLE": lambda one: one.push_container(tuple(one.pop_mark())),
    "TUPLE1": lambda one: one.push_container(tuple(one.pop(1))),
    "TUPLE2": lambda one: one.push_container(tuple(one.pop(2))),
    "TUPLE3": lambda one: one.push_container(tuple(one.pop(3))),
    "POP": lambda one: one.pop(1),
    "MEMOIZE": lambda one: one.memoize(),
    "BINPUT": lambda one: one.put(one.take(1)[0]),
    "LONG_BINPUT": lambda one: one.put(one.number("<I", 4)),
    "BINGET": lambda one: one.get(one.take(1)[0]),
    "LONG_BINGET": lambda one: one.get(one.number("<I", 4)),
}
CAN_RUN_CODE = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
    | {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
)
NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
HANDLERS: list[Handler | None] = [BY_NAME.get(NAMES.get(code, "")) for code in range(256)]
