"""Reader of pickles that hold only plain values: an allow-list of opcodes, none of which calls anything.

A pickle can name any function to call. Here, opcodes that import, call or build objects are refused before anything
of theirs is read. Operations, containers and sizes are bounded: refusing takes at most two seconds and 200 MiB.

`pickle.Unpickler` with a `find_class` that refuses everything runs no code either, but has no other bound. Measured
on CPython 3.11: nine bytes with a large index of the memo take 1 GiB, a dict whose key is a tuple nested 26 times
takes 1 s, and each further level twice that. It also builds the history, which PyTorch keeps without a limit: for
400,000 entries 282 MiB, of which 29 MiB are needed here.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from memwatch.planning.arguments import InvalidInputError

CHUNK_BYTES = 4 << 20
# Before an operation, this many bytes are in the window, or all that the file has left.
MAX_OPERATION_BYTES = (1 << 20) + 16
# Bytes that stay in the window behind the current one.
KEPT_BYTES = 32


class PickleWindow:
    """Bytes `data`, of which `at` is the next one. `passed`: bytes of the file before `data`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.data: bytes = file.read(CHUNK_BYTES)
        self.at: int = 0
        self.passed: int = 0
        self.refill_at: int = 0
        self._set_limit(CHUNK_BYTES)

    @property
    def position(self) -> int:
        """Offset of the next byte in the file."""
        return self.passed + self.at

    def move(self) -> None:
        """Move the window on. Call it when `at` is `refill_at` or above."""
        kept = max(0, self.at - KEPT_BYTES)
        more = self._file.read(CHUNK_BYTES)
        self.data, self.at, self.passed = self.data[kept:] + more, self.at - kept, self.passed + kept
        self._set_limit(len(more))

    def _set_limit(self, count: int) -> None:
        is_whole = count < CHUNK_BYTES
        self.refill_at = len(self.data) + 1 if is_whole else max(1, len(self.data) - MAX_OPERATION_BYTES)


# A block of PyTorch with a stack of 32 frames takes some 50 operations: two containers and three numbers.
MAX_OPERATIONS = 4_000_000
MAX_CONTAINERS = 400_000
# Containers, numbers and texts.
MAX_VALUES = 1_500_000
MAX_TEXT_BYTES = MAX_OPERATION_BYTES - 16
# All texts together.
MAX_ALL_TEXT_BYTES = 32 << 20
MAX_INTEGER_BYTES = 16
# Frames of a stack, each a dict that was read before: taken at once, as they are most of a snapshot.
REFERENCES = re.compile(rb"(?:j....){2,4000}", re.DOTALL)
INDEXES = struct.Struct("<xI")


class PickleRefusedError(InvalidInputError):
    """A pickle that is damaged, too large, or holds more than plain values."""


class PickleReader:
    """Reads one pickle: None, booleans, numbers, text, bytes, lists, tuples, and dicts with text as keys."""

    def __init__(self, file: BinaryIO) -> None:
        self.window: PickleWindow = PickleWindow(file)
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._operations = 0
        self._containers = 0
        self._values = 0
        self._text_bytes = 0
        self._last_key: str | None = None
        self.is_at_last_key: bool = False

    @property
    def memo_size(self) -> int:
        return len(self._memo)

    def read(self, last_key: str | None = None) -> object:
        """Return the value. Raises PickleRefusedError.

        If the outermost dict has `last_key`, return its items before this key. `window` is then behind the key.
        """
        self._last_key = last_key
        try:
            return self._read()
        except (IndexError, UnicodeDecodeError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, PickleRefusedError):
                raise
            raise damaged(self.window.position) from None

    def _read(self) -> object:
        window = self.window
        for _ in range(MAX_OPERATIONS):
            if window.at >= window.refill_at:
                window.move()
            code = window.data[window.at]
            window.at += 1
            if code == STOP:
                return self._stack.pop()
            handler = HANDLERS[code]
            if handler is None:
                refuse(code, window.position - 1)
            handler(self)
            if self.is_at_last_key:
                self._stack.pop()
                self.set_items(self.pop_mark())
                return self._stack.pop()
            if self._operations > MAX_OPERATIONS:
                break
        raise PickleRefusedError(f"it has more than {MAX_OPERATIONS:,} operations, the most that are read")

    def take(self, count: int) -> bytes:
        window = self.window
        if count > len(window.data) - window.at:
            raise PickleRefusedError(f"it ends at byte {window.passed + len(window.data):,}, within a value")
        window.at += count
        return window.data[window.at - count : window.at]

    def number(self, form: str, size: int) -> int:
        return int(struct.unpack(form, self.take(size))[0])

    def push(self, value: object) -> None:
        self._stack.append(value)

    def push_value(self, value: object) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise PickleRefusedError(f"it has more than {MAX_VALUES:,} values, the most that are read")
        self._stack.append(value)

    def push_container(self, value: object) -> None:
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise PickleRefusedError(f"it has more than {MAX_CONTAINERS:,} lists and dicts, the most that are read")
        self.push_value(value)

    def text_bytes(self, count: int) -> bytes:
        if count > MAX_TEXT_BYTES:
            raise PickleRefusedError(f"it has a text of {count:,} bytes, above {MAX_TEXT_BYTES:,}")
        self._text_bytes += count
        if self._text_bytes > MAX_ALL_TEXT_BYTES:
            raise PickleRefusedError(
                f"its texts have more than {MAX_ALL_TEXT_BYTES >> 20} MiB, the most that is read"
            )
        return self.take(count)

    def text(self, count: int) -> None:
        text = self.text_bytes(count).decode("utf-8", "surrogatepass")
        self.push_value(text)
        # A key of the outermost dict: its mark is the only one, and whole pairs lie before it.
        self.is_at_last_key = text == self._last_key and self._marks == [1] and not len(self._stack) % 2

    def integer(self, count: int) -> None:
        if not 0 <= count <= MAX_INTEGER_BYTES:
            raise PickleRefusedError(f"it has an integer of {count:,} bytes, above {MAX_INTEGER_BYTES}")
        self.push_value(int.from_bytes(self.take(count), "little", signed=True))

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

    def get_run(self) -> None:
        """Take this reference and those that follow it directly."""
        window, memo = self.window, self._memo
        run = REFERENCES.match(window.data, window.at - 1)
        if run is None:
            self.get(self.number("<I", 4))
            return
        self._stack += [memo[index] for (index,) in INDEXES.iter_unpack(run[0])]
        self._operations += len(run[0]) // INDEXES.size
        window.at = run.end()


def damaged(position: int) -> PickleRefusedError:
    return PickleRefusedError(f"it is no pickle or is damaged at byte {position:,}")


def refuse(code: int, position: int) -> NoReturn:
    """Raise PickleRefusedError for an operation that is not in the allow-list."""
    if code not in NAMES:
        raise damaged(position)
    name = NAMES[code]
    danger = ", which can run code" if name in CAN_RUN_CODE else ""
    raise PickleRefusedError(
        f"it has the operation {name} at byte {position:,}{danger}; only plain values are read"
    )


Handler = Callable[[PickleReader], object]
STOP = ord(".")
BY_NAME: dict[str, Handler] = {
    "PROTO": lambda one: one.take(1),
    "FRAME": lambda one: one.take(8),
    "MARK": lambda one: one.mark(),
    "NONE": lambda one: one.push(None),
    "NEWTRUE": lambda one: one.push(True),
    "NEWFALSE": lambda one: one.push(False),
    "BININT": lambda one: one.push_value(one.number("<i", 4)),
    "BININT1": lambda one: one.push(one.take(1)[0]),
    "BININT2": lambda one: one.push_value(one.number("<H", 2)),
    "LONG1": lambda one: one.integer(one.take(1)[0]),
    "LONG4": lambda one: one.integer(one.number("<i", 4)),
    "BINFLOAT": lambda one: one.push_value(struct.unpack(">d", one.take(8))[0]),
    "SHORT_BINUNICODE": lambda one: one.text(one.take(1)[0]),
    "BINUNICODE": lambda one: one.text(one.number("<I", 4)),
    "BINUNICODE8": lambda one: one.text(one.number("<Q", 8)),
    "SHORT_BINBYTES": lambda one: one.push_value(one.text_bytes(one.take(1)[0])),
    "BINBYTES": lambda one: one.push_value(one.text_bytes(one.number("<I", 4))),
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
    "LONG_BINGET": lambda one: one.get_run(),
}
CAN_RUN_CODE = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
    | {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
)
NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
HANDLERS: list[Handler | None] = [BY_NAME.get(NAMES.get(code, "")) for code in range(256)]


MAX_SCAN_BYTES = 96 << 20
# PyTorch writes two lists or dicts for an entry of the history; each ends a step. A text is a step as well.
MAX_STEPS = 2_000_000
# Bytes of runs with the value, which are looked at one operation at a time.
MAX_CHECKED_BYTES = 4 << 20
_INTEGERS = b"|".join(rb"\x%02x.{%d}" % (count, count) for count in range(17))
# All operations of PickleReader except texts, MEMOIZE and STOP.
_OPERATION = rb"(?:j....|[hKq].|[()0Naestu\]}\x85-\x89]|\x8a(?:" + _INTEGERS + rb")|[Jr]....|M..|[G\x95].{8}|\x80.)"
# Python 3.10 keeps a state for each repetition, so their number is bounded.
_RUN = re.compile(_OPERATION + rb"{0,1000}(\x94)?", re.DOTALL)
_ANY = re.compile(_OPERATION + rb"|\x94", re.DOTALL)
_FOLLOWED = rb"(?:\x94|q.|r....)?(?:\x95.{8})?\Z"
# Operations with a length and that many bytes.
_SIZED = {0x8C: 1, ord("X"): 4, 0x8D: 8, ord("C"): 1, ord("B"): 4, 0x8B: 4}
_MEMOIZE, _PUT, _LONG_PUT = 0x94, ord("q"), ord("r")


class PairCounter:
    """Counter of a pair of texts, such as "action" and "oom", in the rest of a pickle, of which no value is built.

    PyTorch's history is most of its snapshot, and only the number of out-of-memory errors in it is shown. A regular
    expression passes over a million operations in 30 ms, a hundred times as fast as a reader of values. Each text
    is written once, then referred to.
    """

    def __init__(self, reader: PickleReader, key: bytes, value: bytes) -> None:
        self.count: int = 0
        self._window = reader.window
        self._memo_size = reader.memo_size
        self._key, self._value = key, value
        self._ends_with_key: re.Pattern[bytes] | None = None
        self._value_reference = b""
        self._checked_bytes = 0

    def scan(self) -> bool:
        """Scan to the end of the pickle. False if the rest is too long to scan. Raises PickleRefusedError."""
        window = self._window
        end = window.position + MAX_SCAN_BYTES
        for _ in range(MAX_STEPS):
            if window.position > end or self._checked_bytes > MAX_CHECKED_BYTES:
                break
            if window.at >= window.refill_at:
                window.move()
            run = _RUN.match(window.data, window.at)
            if run is None or run.end() == window.at:
                if window.data[window.at : window.at + 1] == b".":
                    return True
                self._take_text()
                continue
            if self._value_reference and window.data.find(self._value_reference, window.at, run.end()) >= 0:
                self._count_pairs(run[0])
            window.at = run.end()
            self._memo_size += run.lastindex or 0
        return False

    def _take_text(self) -> None:
        window = self._window
        code = window.data[window.at] if window.at < len(window.data) else -1
        start = window.at + 1 + _SIZED.get(code, 0)
        length = int.from_bytes(window.data[window.at + 1 : start], "little")
        if code not in _SIZED and NAMES.get(code) not in BY_NAME and code >= 0:
            refuse(code, window.position)
        if code not in _SIZED or length > MAX_TEXT_BYTES or start + length > len(window.data):
            raise damaged(window.position)
        text = window.data[start : start + length]
        if text == self._key and self._ends_with_key is None:
            reference = self._read_reference(start + length)
            written = re.escape(window.data[window.at : start + length])
            self._ends_with_key = re.compile(rb"(?:%b|%b)" % (re.escape(reference), written) + _FOLLOWED, re.DOTALL)
        elif text == self._value and not self._value_reference and self._is_after_key(window.at):
            self.count += 1
            self._value_reference = self._read_reference(start + length)
        window.at = start + length

    def _read_reference(self, at: int) -> bytes:
        """Return the operation that refers to the text before `at`. PyTorch's pickles remember each text."""
        data = self._window.data
        code = data[at] if at < len(data) else -1
        if code == _LONG_PUT:
            index = int.from_bytes(data[at + 1 : at + 5], "little")
        elif code == _PUT and at + 1 < len(data):
            index = data[at + 1]
        elif code == _MEMOIZE:
            index = self._memo_size
        else:
            raise damaged(self._window.passed + at)
        return b"h%c" % index if index < 256 else b"j" + index.to_bytes(4, "little")

    def _is_after_key(self, at: int) -> bool:
        before = self._window.data[max(0, at - KEPT_BYTES) : at]
        return self._ends_with_key is not None and self._ends_with_key.search(before) is not None

    def _count_pairs(self, run: bytes) -> None:
        self._checked_bytes += len(run)
        for one in _ANY.finditer(run):
            if one[0] == self._value_reference and self._is_after_key(self._window.at + one.start()):
                self.count += 1
