"""Files and variables of earlier versions: each starts, and a warning names the successor of a key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memwatchd.settings.fallback import load_for_start
from memwatchd.settings.load import load

EARLIER = Path(__file__).parent / "earlier_keys.toml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    copied = tmp_path / "memwatchd.toml"
    shutil.copy(EARLIER, copied)
    copied.chmod(0o600)
    return copied


@pytest.mark.process  # Apprise, once loaded, asks for the addresses of this machine
def test_file_with_every_earlier_key_starts_without_one_of_before(file: Path) -> None:
    """The first start after an upgrade: the state folder has no last good configuration."""
    settings = load_for_start({"config": str(file)}, {})

    assert settings.problems == ()
    assert [one.partition(": ")[2] for one in settings.warnings] == [
        "collectors.memory is now collectors.meminfo; rename it",
        "collectors.squeezed is now collectors.cgroup_pressure; rename it",
        "web.patterns is gone; remove it",
    ]
    assert all(one.startswith(f"{file} line ") for one in settings.warnings)


def test_value_of_an_earlier_key_is_in_force_and_has_its_line(file: Path) -> None:
    file.write_text("[collectors.memory]\nenabled = true\n[collectors.squeezed]\nenabled = false\n")
    settings = load({"config": str(file)}, {})

    assert "cgroup_pressure" in settings.collectors.disabled
    assert settings.origins["collectors.cgroup_pressure.enabled"] == f"{file} line 4"


def test_key_of_now_wins_over_its_earlier_name(file: Path) -> None:
    file.write_text("[collectors]\nsqueezed = { enabled = false }\ncgroup_pressure = { enabled = true }\n")
    settings = load({"config": str(file)}, {})

    assert "cgroup_pressure" not in settings.collectors.disabled
    assert len(settings.warnings) == 1


def test_mistake_in_an_earlier_key_names_its_line_and_the_key_of_now(file: Path) -> None:
    file.write_text("[collectors.memory]\nenabled = 1\n")

    with pytest.raises(Exception, match=r"line 2: collectors\.meminfo\.enabled is 1"):
        load({"config": str(file)}, {})


@pytest.mark.parametrize("text", ["collectors = 1\n", "[collectors]\nmemory = 1\n"])
def test_earlier_key_of_another_type_is_refused_with_a_sentence(file: Path, text: str) -> None:
    file.write_text(text)

    with pytest.raises(Exception, match="is 1, which is not a table"):
        load({"config": str(file)}, {})


def test_earlier_variable_is_in_force_with_a_warning() -> None:
    settings = load({}, {"MEMWATCHD_COLLECTORS_SQUEEZED_ENABLED": "false"}, default_file=Path("/nowhere.toml"))

    assert "cgroup_pressure" in settings.collectors.disabled
    assert settings.warnings == (
        "MEMWATCHD_COLLECTORS_SQUEEZED_ENABLED is now MEMWATCHD_COLLECTORS_CGROUP_PRESSURE_ENABLED; rename it",
    )
