"""The configuration file: settings, or sentences that name the file, each on one line; never another error."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fuzz.oracle import as_file
from memwatchd.settings.model import Settings
from memwatchd.settings.sources import BadSettings, load
from memwatchd.settings.toml import BadFile, read_toml

LONGEST_SENTENCE = 1000
# Others' files must not be read on account of mutations.
NOT_TRIED = (b"file:", b"procfs", b"apprise")


def check(data: bytes) -> None:
    if any(word in data for word in NOT_TRIED):
        return
    with as_file(data, ".toml") as path:
        found = loaded(path)
        if isinstance(found, BadSettings):
            assert found.problems
            assert not found.usage
            assert all("\n" not in one and len(one) <= LONGEST_SENTENCE for one in found.problems), found.problems
        else:
            assert found.file == path
            assert all(str(path) in origin for origin in found.origins.values())
        with suppress(BadFile):
            lines = read_toml(path).lines.values()
            assert all(1 <= number <= data.count(b"\n") + 1 for number in lines)


def loaded(path: Path) -> Settings | BadSettings:
    try:
        return load({"config": str(path)}, {"X": "x"})
    except BadSettings as error:
        return error
