"""The configuration file: settings, or messages of one line that name the file; never another error."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fuzz.oracle import as_file
from memwatchd.settings.load import PREFIX, SettingsError, load
from memwatchd.settings.schema import Settings
from memwatchd.settings.toml import ConfigFileError, read_toml

MAX_SENTENCE_LENGTH = 1000
# Mutations must not read other files.
NOT_TRIED = (b"file:", b"procfs", b"apprise")


def check(data: bytes) -> None:
    """Check a file, and environment variables after `---`."""
    if any(word in data.lower() for word in NOT_TRIED):
        return
    file, _, rest = data.partition(b"---\n")
    with as_file(file, ".toml") as path:
        found = loaded(path, variables_in(rest))
        if isinstance(found, SettingsError):
            assert found.problems
            assert not found.usage
            assert all("\n" not in one and len(one) <= MAX_SENTENCE_LENGTH for one in found.problems), (
                found.problems
            )
        else:
            assert found.file == path
            assert all(str(path) in origin or PREFIX in origin for origin in found.origins.values())
        with suppress(ConfigFileError):
            lines = read_toml(path).lines.values()
            assert all(1 <= number <= file.count(b"\n") + 1 for number in lines)


def variables_in(data: bytes) -> dict[str, str]:
    lines = (os.fsdecode(line).partition("=") for line in data.replace(b"\0", b"").split(b"\n"))
    return {name: value for name, sign, value in lines if sign and name.startswith(PREFIX)}


def loaded(path: Path, environ: dict[str, str]) -> Settings | SettingsError:
    try:
        return load({"config": str(path)}, {"X": "x", **environ})
    except SettingsError as error:
        return error
