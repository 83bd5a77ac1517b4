"""Test that examples in messages match the place of the setting, and work as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memwatchd.settings.load import load, variables
from memwatchd.settings.validation import ValueOrigin, accepted_at
from support.settings_sample import problems_from


@pytest.mark.parametrize(
    ("flags", "environ", "end"),
    [
        ({"listen": ("foo",)}, {}, "or unix:/PATH; use for example --listen 127.0.0.1:6360"),
        ({"interval": "0"}, {}, "from 100ms to 1m; use for example --interval 1s"),
        ({"speed": 1000.0}, {}, "from 0.1 to 100; use for example --speed 1"),
        ({}, {"MEMWATCHD_LISTEN": "foo"}, "or unix:/PATH; use for example MEMWATCHD_LISTEN=127.0.0.1:6360"),
        ({}, {"MEMWATCHD_WEB_INSECURE": "perhaps"}, "use for example MEMWATCHD_WEB_INSECURE=false"),
        ({}, {"STATE_DIRECTORY": "\0"}, "use for example STATE_DIRECTORY=/var/lib/memwatchd"),
    ],
)
def test_example_is_written_for_its_source(
    tmp_path: Path, flags: dict[str, Any], environ: dict[str, str], end: str
) -> None:
    """The brackets and quotes of a file would be rejected in a flag and in a variable."""
    assert problems_from(tmp_path, flags=flags, environ=environ)[0].endswith(end)


def test_every_example_of_a_variable_is_valid() -> None:
    """An example works as written, unless it names a file that does not exist."""
    for variable, setting in variables().items():
        words = ValueOrigin(variable, from_variable=True).written(accepted_at(setting.path).example)
        name, _, value = words.partition("=")
        assert name == variable
        if "/etc/" not in value:
            assert load({}, {name: value}, default_file=Path("/nonexistent")), words
