"""The options of memwatchd against the keys that they set: one declaration, the key's."""

from __future__ import annotations

from datetime import timedelta
from typing import get_origin

import click
import pytest

from memwatchd.cli import OPTIONS, SettingOption
from memwatchd.settings.keys import documentation
from memwatchd.settings.load import DEFAULT_FILE, FLAGS, flag_key

CONTEXT = click.Context(click.Command("memwatchd"))
BY_NAME = {option.name or "": option for option in OPTIONS}
HELP = {name: (option.get_help_record(CONTEXT) or ("", ""))[1] for name, option in BY_NAME.items()}


def test_each_flag_has_an_option_and_no_other_option_sets_a_key() -> None:
    assert {name for name, option in BY_NAME.items() if isinstance(option, SettingOption)} == FLAGS.keys()


@pytest.mark.parametrize("flag", FLAGS)
def test_help_of_an_option_is_the_documentation_of_its_key(flag: str) -> None:
    key = flag_key(flag)

    assert documentation(key)
    assert HELP[flag].startswith(documentation(key))
    assert "[default: " in HELP[flag] or key.default in (None, False)


@pytest.mark.parametrize("flag", FLAGS)
def test_option_takes_as_many_values_as_its_key(flag: str) -> None:
    key, option = flag_key(flag), BY_NAME[flag]

    assert option.multiple == (get_origin(key.kind) is tuple)
    assert option.is_flag == (key.kind is bool)
    assert isinstance(option.type, click.types.FloatParamType) == (key.kind is float)


def test_defaults_are_written_as_on_a_command_line() -> None:
    assert flag_key("interval").default == timedelta(seconds=1)
    assert HELP["interval"].endswith("[default: 1s]")
    assert HELP["listen"].endswith("May be repeated.  [default: 127.0.0.1:6360]")
    assert HELP["config"].endswith(f"[default: {DEFAULT_FILE}]")
