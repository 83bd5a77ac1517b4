"""Corrupt single fields: of the answers of model servers (JSON and Prometheus texts), and of the kernel's files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Corrupted = tuple[str, str, bytes]  # name of the field, kind of corruption, the whole answer
NO_NUMBER = "n/a"
SAMPLE = re.compile(r"(?P<name>[a-z_:A-Z0-9]+)(?P<labels>\{.*\})? (?P<value>\S+)")
LABEL = re.compile(r'(?P<key>\w+)="(?P<value>[^"]*)"')
GONE = object()
# A line of a file in /proc or /sys: its key, if it has one. Numbers of it stand alone, or before a unit.
LINE = re.compile(rb"(?:Node \d+ )?(?:(?P<key>[A-Za-z_][^:\s]*)(?::\s*|\s+))?")
NUMBER = re.compile(rb"(?<![\w.-])\d+(?![\w.])")
LAST_NUMBER = re.compile(rb"\s(\d+)\s*$")
# A line of tegrastats: words, each with its numbers.
WORD_AND_NUMBERS = re.compile(rb"(?P<word>[A-Za-z][\w.-]*?)(?=[\s@\[(])|(?<![A-Za-z\d_.-])(?P<number>\d+)")


def corrupt(body: bytes) -> Iterator[Corrupted]:
    """Yield the answer with each field corrupted in each way."""
    yield from corrupt_json(json.loads(body)) if body.startswith(b"{") else corrupt_text(body.decode())


def corrupt_json(whole: Any) -> Iterator[Corrupted]:
    for steps, value in walk(whole, ()):
        name = ".".join(step for step in steps if isinstance(step, str))
        for change, changed in change_json(value):
            kind = "entry missing" if change == "missing" and isinstance(steps[-1], int) else change
            yield name, kind, json.dumps(put(whole, steps, changed)).encode()
        if isinstance(steps[-1], int):
            yield name, "repeated", json.dumps(put(whole, steps[:-1], [value], insert=True)).encode()


def walk(value: Any, steps: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if steps:
        yield steps, value
    children: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from walk(child, (*steps, key))


def change_json(value: Any) -> Iterator[tuple[str, Any]]:
    yield from (("missing", GONE), ("null", None), ("no number", NO_NUMBER if value != NO_NUMBER else 7))
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, (int, float)):
        yield from (("zero", 0), ("doubled", 2 * value), ("wrapped", (1 << 64) - 1 - value), ("huge", 10**400))
        yield "negative", -value
    elif isinstance(value, str):
        yield from (("empty", ""), ("doubled", 2 * value), ("number", 7))
    else:
        yield from (("number", 7), ("empty list", []), ("empty object", {}))


def put(whole: Any, steps: tuple[str | int, ...], changed: Any, insert: bool = False) -> Any:
    """Return a copy with one value changed. `insert`: the values are added to the list there."""
    if not steps:
        return [*whole, *changed] if insert else changed
    copy: Any = dict(whole) if isinstance(whole, dict) else list(whole)
    copy[steps[0]] = put(copy[steps[0]], steps[1:], changed, insert)
    if isinstance(copy, dict):
        return {key: value for key, value in copy.items() if value is not GONE}
    return [value for value in copy if value is not GONE]


def corrupt_text(text: str) -> Iterator[Corrupted]:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        found = SAMPLE.match(line)
        if found is None:
            continue
        before, after = "".join(lines[:number]), "".join(lines[number + 1 :])
        for kind, changed in change_line(line, found):
            yield found["name"], kind, f"{before}{changed}{after}".encode()


def change_line(line: str, found: re.Match[str]) -> Iterator[tuple[str, str]]:
    yield from (("missing", ""), ("repeated", line + line))
    start, end = found.span("value")
    for kind, value in change_number(found["value"]):
        yield kind, line[:start] + value + line[end:]
    for label in LABEL.finditer(line):
        begin, stop = label.span("value")
        values: Mapping[str, str] = {"empty": "", **dict(change_number(label["value"]))}
        for kind, value in values.items():
            yield f"{label['key']} {kind}", line[:begin] + value + line[stop:]


def change_number(text: str) -> Iterator[tuple[str, str]]:
    yield "no number", "none"
    try:
        value = float(text)
    except ValueError:
        return
    yield from (("zero", "0"), ("doubled", f"{2 * value:g}"), ("wrapped", f"{2.0**64 - value:g}"))
    yield from (("negative", f"-{text}"), ("NaN", "NaN"), ("infinite", "+Inf"))


def corrupt_lines(data: bytes) -> Iterator[Corrupted]:
    """Yield a file of the kernel with each number of each line corrupted in each way.

    A field is named by the key of its line; further numbers of a line have their place as well.
    """
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines):
        start = LINE.match(line)
        assert start is not None
        key = (start["key"] or b"").decode()
        spans = [found.span() for found in NUMBER.finditer(line, start.end())]
        before, after = b"".join(lines[:number]), b"".join(lines[number + 1 :])
        for place, span in enumerate(spans):
            field = key if place == 0 and (key or len(spans) == 1) else f"{key}[{place}]"
            for kind, changed in change_figure(line, span):
                yield field, kind, before + changed + after
        if spans:
            yield key, "missing", before + after
            yield key, "repeated", before + line + line + after


def corrupt_values(data: bytes) -> Iterator[Corrupted]:
    """Yield a file of names and figures, such as dmem.current, with each figure corrupted in each way."""
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines):
        found = LAST_NUMBER.search(line)
        if found is None:
            continue
        before, after = b"".join(lines[:number]), b"".join(lines[number + 1 :])
        for kind, changed in (*change_figure(line, found.span(1)), ("missing", b""), ("repeated", line + line)):
            yield "", kind, before + changed + after


def corrupt_words(data: bytes) -> Iterator[Corrupted]:
    """Yield a line of words and numbers, such as that of tegrastats, with each number corrupted in each way."""
    word, place = "", 0
    for found in WORD_AND_NUMBERS.finditer(data):
        if found["word"]:
            word, place = found["word"].decode(), 0
            continue
        for kind, changed in change_figure(data, found.span("number")):
            yield f"{word}[{place}]", kind, changed
        begin, end = found.span("number")
        yield f"{word}[{place}]", "missing", data[:begin] + data[end:]
        place += 1


def change_figure(line: bytes, span: tuple[int, int]) -> Iterator[tuple[str, bytes]]:
    """Yield a line with the number at `span` corrupted: wrapped below zero in bytes, and in KiB, among others."""
    value = int(line[slice(*span)])
    ways = {
        "zero": 0,
        "doubled": 2 * value,
        "wrapped": (1 << 64) - 1 - value,
        "wrapped in KiB": (1 << 54) - 1 - value,
        "negative": -value,
        "no number": "none",
    }
    for kind, changed in ways.items():
        yield kind, line[: span[0]] + str(changed).encode() + line[span[1] :]
