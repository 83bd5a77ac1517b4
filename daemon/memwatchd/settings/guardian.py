"""The section [guardian]: which processes memwatch-guardian may end, and how."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, get_args

from memwatch.core.doc import Doc
from memwatch.core.options import (
    Accepts,
    Bounds,
    Converter,
    Duration,
    InvalidValueError,
    Section,
    Size,
    parse_size,
    seconds,
)
from memwatchd.guardian.records import Limits, LoadLimits, Match, MatchKind, Others
from memwatchd.settings.keys import AT_START_OF_GUARDIAN, parse_new_folder, parse_tuple

KINDS: tuple[MatchKind, ...] = get_args(MatchKind)
_MATCH = re.compile(rf"({'|'.join(KINDS)}):(\S.*)")
StepTime = Annotated[Duration, Bounds(seconds(0), seconds(60))]


def parse_match(value: object) -> str:
    """Check a pattern, such as "unit:ollama*.service"."""
    if isinstance(value, str) and len(value) <= 256 and value.isprintable() and _MATCH.fullmatch(value):
        return value
    raise InvalidValueError


def parse_program(value: object) -> tuple[object, ...]:
    """Check a program and its arguments: no shell splits or looks for them."""
    found = parse_tuple(value)
    if found and not (isinstance(found[0], str) and os.path.isabs(found[0])):
        raise InvalidValueError("does not begin with the absolute path of a program")
    return found


Pattern = Annotated[str, Converter(parse_match), Accepts("KIND:PATTERN", '"unit:ollama.service"')]
Patterns = Annotated[
    tuple[Pattern, ...],
    Converter(parse_tuple),
    Accepts(f"a list of KIND:PATTERN with the kinds {', '.join(KINDS)}", '["unit:ollama.service"]'),
]


class GuardianSection(Section, frozen=True, kw_only=True):
    dry_run: Annotated[
        bool, Doc("Record what would be done, and end no process. Read its journal for a week before false.")
    ] = True
    prefer: Annotated[
        Patterns,
        Doc(
            'Processes that end first: "unit:PATTERN", "user:PATTERN", "command:PATTERN" or "container:PATTERN". '
            "* and ? stand for any characters. A command is the name or the script of a process."
        ),
    ] = ()
    avoid: Annotated[Patterns, Doc("Processes that end last.")] = ()
    never: Annotated[
        Patterns,
        Doc(
            "Processes that never end. Logins, session managers, container runtimes and memwatchd never do, "
            "without being listed."
        ),
    ] = ()
    others: Annotated[
        Others,
        Doc(
            "Processes that may end in place of the one that causes the shortage, where that may not end or would "
            'not free enough: "none" except those of prefer in its slice, "slice" those of its slice, "any".'
        ),
    ] = "none"
    hook: Annotated[
        tuple[str, ...],
        Converter(parse_program),
        Accepts("a list of a program and its arguments", '["/usr/local/bin/free-memory"]'),
        Doc(
            "Program that frees memory, with its arguments, run first and without a shell. Its variables "
            "MEMWATCH_PID, _NAME, _UNIT, _USER, _CONTAINER and _BYTES describe the process that would end."
        ),
    ] = ()
    hook_time: Annotated[
        StepTime,
        Doc(
            "Times that the steps are waited for, {bounds}: the hook, a request to the model server, reclaim in "
            "the cgroup, SIGTERM, SIGKILL. 0s leaves out a step, except SIGKILL. No step takes more than a quarter "
            "of the time to full; below 2 s to full only SIGKILL is left."
        ),
    ] = seconds(5)
    engine_time: StepTime = seconds(5)
    reclaim_time: StepTime = seconds(2)
    sigterm_time: StepTime = seconds(5)
    sigkill_time: StepTime = seconds(5)
    load_guard: Annotated[
        bool,
        Doc(
            "Freeze a program for seconds while it loads a model into a GPU faster than memory is reclaimed, and "
            "thaw it. Needs cgroup v2. In a dry run it only records."
        ),
    ] = False
    freeze: Annotated[
        Patterns,
        Doc(
            "Processes whose unit or container the load guard may freeze, as in prefer. The whole control group "
            "freezes. By default none, and never one of never, or one beside a login."
        ),
    ] = ()
    load_floor: Annotated[
        Size,
        Converter(parse_size),
        Bounds(Size(64 << 20), Size(1 << 40)),
        Doc("Free and reclaimable memory, {bounds}, below which the load guard freezes a loader."),
    ] = Size(4 << 30)
    freeze_time: Annotated[
        Duration, Bounds(seconds(0.2), seconds(10)), Doc("Longest time of one freeze, {bounds}.")
    ] = seconds(3)
    freeze_total: Annotated[
        Duration, Bounds(seconds(1), seconds(120)), Doc("Longest time of all freezes during one load, {bounds}.")
    ] = seconds(30)
    state_dir: Annotated[
        Path,
        Converter(parse_new_folder),
        Accepts("the path of a directory"),
        AT_START_OF_GUARDIAN,
        Doc("Directory of its journal, which must exist. The unit creates it."),
    ] = Path("/var/lib/memwatchd-guardian")

    @property
    def limits(self) -> Limits:
        return Limits(
            prefer=_matches(self.prefer),
            avoid=_matches(self.avoid),
            never=_matches(self.never),
            others=self.others,
            has_hook=bool(self.hook),
            hook_seconds=self.hook_time.total_seconds(),
            engine_seconds=self.engine_time.total_seconds(),
            reclaim_seconds=self.reclaim_time.total_seconds(),
            sigterm_seconds=self.sigterm_time.total_seconds(),
            sigkill_seconds=self.sigkill_time.total_seconds(),
        )

    @property
    def load_limits(self) -> LoadLimits:
        return LoadLimits(
            enabled=self.load_guard,
            units=_matches(self.freeze),
            floor_bytes=int(self.load_floor),
            freeze_seconds=self.freeze_time.total_seconds(),
            total_seconds=self.freeze_total.total_seconds(),
        )


def _matches(patterns: tuple[str, ...]) -> tuple[Match, ...]:
    parts = [one.partition(":") for one in patterns]
    return tuple(Match(kind, pattern) for one, _, pattern in parts for kind in KINDS if kind == one)
