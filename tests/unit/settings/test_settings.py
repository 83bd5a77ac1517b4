"""Test settings: every source, one message per problem, and no secret in any of them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.wire import to_bytes
from memwatchd.settings.alerts import CHANNELS
from memwatchd.settings.diff import describe_changes, flat
from memwatchd.settings.keys import TcpAddress
from memwatchd.settings.load import SettingsError, load, variables
from memwatchd.settings.schema import Sections, Settings
from support.settings_sample import SECRET, WEBHOOK, problems_from, settings_from


def test_defaults_apply_without_any_settings(tmp_path: Path) -> None:
    """A machine without a configuration file gets the defaults, and no message about the file."""
    settings = load({}, {}, default_file=tmp_path / "absent.toml")

    assert settings.web.listen == (TcpAddress("127.0.0.1", 6360),)
    assert settings.sampling.interval == timedelta(seconds=1)
    assert settings.pressure.percents_for("ram") == (60, 80, 95)
    assert settings.file is None
    assert settings.origins == {}


def test_flags_override_environment_and_file(tmp_path: Path) -> None:
    """Each source overrides the next, and each value records its origin."""
    text = '[sampling]\ninterval = "2s"\n[history]\nlength = "2h"\n[log]\nlevel = "debug"\n'
    environ = {"MEMWATCHD_SAMPLING_INTERVAL": "3s", "MEMWATCHD_HISTORY_LENGTH": "3h"}

    settings = settings_from(tmp_path, text, {"interval": "4s"}, environ)

    assert settings.sampling.interval == timedelta(seconds=4)
    assert settings.history.length == timedelta(hours=3)
    assert settings.log.level == "debug"
    assert settings.origins == {
        "sampling.interval": "--interval",
        "history.length": "MEMWATCHD_HISTORY_LENGTH",
        "log.level": f"{tmp_path / 'memwatchd.toml'} line 6",
    }


def test_variables_can_set_every_type(tmp_path: Path) -> None:
    """Lists, numbers, switches and durations can be set by variables; an empty variable is ignored."""
    environ = {
        "MEMWATCHD_LISTEN": "127.0.0.1:1, [::1]:2,unix:/run/x.sock",
        "MEMWATCHD_PRESSURE_MEDIUM_PERCENT": "62.5",
        "MEMWATCHD_PROCESSES_TOP": "7",
        "MEMWATCHD_PROCESSES_METRICS": "yes",
        "MEMWATCHD_COLLECTORS_CGROUP_ENABLED": "false",
        "MEMWATCHD_INTERVAL": "",
    }

    settings = settings_from(tmp_path, environ=environ)

    assert [str(address) for address in settings.web.listen] == ["127.0.0.1:1", "[::1]:2", "unix:/run/x.sock"]
    assert settings.pressure.medium_percent == 62.5
    assert (settings.processes.top, settings.processes.metrics) == (7, True)
    assert settings.collectors.disabled == {"cgroup", "journal"}
    assert settings.sampling.interval == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sampling]\nintervall = 1", "line 2: sampling.intervall is not a setting; did you mean interval?"),
        ("interval = 1", "line 1: interval is not a setting; did you mean sampling.interval?"),
        ("\n[samplng]", "line 2: samplng is not a setting; did you mean sampling?"),
        ("[sampling]\ninterval = 0", "line 2: sampling.interval is 0, which is not a duration from 100ms to 1m"),
        ('[sampling]\ninterval = "soon"', 'sampling.interval is "soon", which is not a duration from 100ms to 1m'),
        ("[sampling]\nlock_memory = 1", "lock_memory is 1, which is not true or false; use for example true"),
        ('[sampling]\nprocfs = "/no/such"', 'procfs is "/no/such", which is not an existing directory'),
        (
            '[web]\nlisten = "127.0.0.1:80"',
            'web.listen is "127.0.0.1:80", which is not a list; write listen = ["127.0.0.1:80"]',
        ),
        ('[web]\nlisten = "nowhere"', 'is "nowhere", which is not a list; write listen = ["127.0.0.1:6360"]'),
        ("[web]\nhosts = 3", 'web.hosts is 3, which is not a list; write hosts = ["gpu1.example.com"]'),
        (WEBHOOK + 'targets = "ram"', 'targets is "ram", which is not a list; write targets = ["ram"]'),
        ('[web]\nlisten = ["a:99999"]', 'web.listen[0] is "a:99999", which is not HOST:PORT (port 0 to 65535)'),
        ("[web]\nlisten = []", "web.listen is an empty list"),
        ('[web]\nhosts = ["a:80"]', 'web.hosts[0] is "a:80", which is not a host name, a domain like'),
        ('[web]\nhosts = [".com"]', "is '.com' as a domain, which would allow names of other owners"),
        ('[web]\nhosts = ["."]', 'web.hosts[0] is ".", which is not a host name'),
        ('[web]\nhosts = ["..com"]', 'web.hosts[0] is "..com", which is not a host name'),
        ('[web]\nhosts = [".0.0.1"]', 'web.hosts[0] is ".0.0.1", which is not a host name'),
        ('[web]\nhosts = ["*.example.com"]', 'web.hosts[0] is "*.example.com", which is not a host name'),
        ("[processes]\ntop = 1.5", "processes.top is 1.5, which is not a whole number from 1 to 1000"),
        ("[processes]\ntop = true", "processes.top is true, which is not a whole number"),
        (f"[processes]\ntop = 0x{'f' * 900}", "processes.top is a number of more than 18 digits"),
        (f"[pressure]\nclear_points = 0x{'f' * 900}", "clear_points is a number of more than 18 digits"),
        (
            '[history]\ndisk_size = "1MiB"',
            'is "1MiB", which is not a size from 4MiB to 4GiB; use for example "64MiB"',
        ),
        ("[processes]\nleak_least = -1", 'leak_least is -1, which is not a size; use for example "64MiB"'),
        ("[pressure]\nmedium_percent = 0", "medium_percent is 0, which is not a number from 0 to 100"),
        ("[collectors.tegrastats]\npath = 3", 'path is 3, which is not "auto" or the path of a program'),
        ("[web.auth]\nusers = 3", "web.auth.users is 3, which is not a table; use for example [web.auth.users]"),
        ("[pressure]\nhigh_percent = nan", "pressure.high_percent is nan, which is not a number from 0 to 100"),
        ('[collectors.cgroup]\nscope = "all"', 'scope is "all", which is not one of "auto", "host", "cgroup"'),
        ("sampling = 3", "sampling is 3, which is not a table; use for example [sampling]"),
        ("[pressure.targets]\nram = 3", "pressure.targets.ram is 3, which is not a table"),
        ("[alerts.webhooks]", "alerts.webhooks is not a list of tables, each beginning with [[alerts.webhooks]]"),
        ("[[alerts.webhooks]]", 'line 1: alerts.webhooks[0].name is missing; add for example name = "operators"'),
        (WEBHOOK + 'events = ["pressure.bad"]', "events[0] is 'pressure.bad', which is not one of pressure."),
        (WEBHOOK + "events = []", "events is an empty list, which is not a list with any of pressure.critical"),
        (WEBHOOK + "targets = [1]", "targets[0] is 1, which is not an id as in"),
        (WEBHOOK + '[[alerts.alertmanagers]]\nname = "ops"\nurl = "http://a"', 'another receiver is named "ops"'),
        (WEBHOOK + WEBHOOK, 'line 6: alerts.webhooks[1].name: another receiver is named "ops"'),
        ("labels = 3", "labels is 3, which is not a table; use for example [labels]"),
        ("[labels]\ncluster = 3", "line 2: labels.cluster is 3, which is not a text of 1 to 128 printable"),
        ('[labels]\ncluster = ""', 'labels.cluster is "", which is not a text of 1 to 128 printable characters'),
        ('[labels]\n"a-b" = "c"', "line 2: labels.a-b is not a label name: letters, digits and _, 64 at most"),
        ('[labels]\n__name__ = "c"', "labels.__name__ begins with __, which Prometheus reserves for itself"),
        (
            '[labels]\ninstance = "c"',
            "line 2: labels.instance is reserved: this label comes from the scrape, or from instance under "
            "[alerts]; use a name such as cluster or rack",
        ),
        ("[labels]\n" + "".join(f'l{i} = "x"\n' for i in range(17)), "labels has 17 labels; leave 16 at most"),
        ("[web", "is not valid TOML"),
        ("a = " + "[\n" * 5000, "memwatchd.toml is not valid TOML"),
        ("a" + ".a" * 2000 + " = 1", "line 1 is longer than 2000 characters"),
        ("x" * 70_000, "is larger than 64 KiB"),
    ],
)
def test_problem_names_place_value_and_remedy(tmp_path: Path, text: str, words: str) -> None:
    """A problem in the file is one sentence with the file, the key and the value."""
    problems = problems_from(tmp_path, text)

    assert words in problems[0]
    assert problems[0].startswith(str(tmp_path / "memwatchd.toml"))
    assert "\n" not in problems[0]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Three mistakes in three sources are three messages, so that one round of corrections suffices."""
    problems = problems_from(
        tmp_path,
        "[web]\nmax_streams = 0",
        flags={"interval": "banana"},
        environ={"MEMWATCHD_LISTN": "127.0.0.1:1"},
    )

    assert [problem.split(" is ")[0] for problem in problems] == [
        "MEMWATCHD_LISTN",
        f"{tmp_path / 'memwatchd.toml'} line 2: web.max_streams",
        "--interval",
    ]
    assert "did you mean MEMWATCHD_LISTEN?" in problems[0]


def test_number_of_problems_is_bounded(tmp_path: Path) -> None:
    """A file that is no configuration fills one screen and not the journal."""
    problems = problems_from(tmp_path, "\n".join(f"key{number} = 1" for number in range(1000)))

    assert len(problems) == 26
    assert problems[-1] == "975 more problems are not shown"


def test_only_flags_are_usage_errors(tmp_path: Path) -> None:
    """A bad flag is a usage error, all others are configuration errors."""
    with pytest.raises(SettingsError) as by_flag:
        settings_from(tmp_path, flags={"listen": ("nowhere",)})
    with pytest.raises(SettingsError) as by_variable:
        settings_from(tmp_path, environ={"MEMWATCHD_LISTEN": "nowhere"})

    assert by_flag.value.usage
    assert not by_variable.value.usage


@pytest.mark.parametrize("percents", [(80, 80, 95), (60, 96, 95), (99, 80, 95)])
def test_thresholds_must_rise(tmp_path: Path, percents: tuple[int, int, int]) -> None:
    """Thresholds out of order are rejected, whatever their sources."""
    medium, high, critical = percents
    environ = {"MEMWATCHD_PRESSURE_CRITICAL_PERCENT": str(critical)}

    problems = problems_from(
        tmp_path, f"[pressure]\nmedium_percent = {medium}\nhigh_percent = {high}", environ=environ
    )

    assert "line 2: pressure.medium_percent" in problems[0]
    assert "MEMWATCHD_PRESSURE_CRITICAL_PERCENT: thresholds must ascend" in problems[0]
    assert f"are {medium}, {high}, {critical}" in problems[0]


def test_target_thresholds_are_checked_with_inherited_ones(tmp_path: Path) -> None:
    """A target that overrides one percentage inherits the others from [pressure], and is checked with them."""
    text = '[pressure]\nhigh_percent = 70\n[pressure.targets."gpu0.gtt"]\ncritical_percent = {}\n'

    settings = settings_from(tmp_path, text.format(90))
    problems = problems_from(tmp_path, text.format(65))

    assert settings.pressure.percents_for("gpu0.gtt") == (60, 70, 90)
    assert settings.pressure.percents_for("ram") == (60, 70, 95)
    assert settings.pressure.rules.thresholds_for("gpu0.gtt").critical == 0.9
    assert "line 4: pressure.targets.gpu0.gtt.critical_percent" in problems[0]
    assert "thresholds of gpu0.gtt must ascend" in problems[0]


def test_two_variables_for_one_setting_are_rejected(tmp_path: Path) -> None:
    """Two names of one setting would leave the effective value to guess."""
    environ = {"MEMWATCHD_LISTEN": "127.0.0.1:1", "MEMWATCHD_WEB_LISTEN": "127.0.0.1:2"}

    assert problems_from(tmp_path, environ=environ) == [
        "MEMWATCHD_LISTEN and MEMWATCHD_WEB_LISTEN set the same key; remove one of them"
    ]


def test_variables_of_kubernetes_are_ignored(tmp_path: Path) -> None:
    """A service named memwatchd puts variables into every pod; the daemon still starts."""
    environ = {
        "MEMWATCHD_SERVICE_HOST": "10.0.0.1",
        "MEMWATCHD_SERVICE_PORT": "6360",
        "MEMWATCHD_SERVICE_PORT_HTTP": "6360",
        "MEMWATCHD_PORT": "tcp://10.0.0.1:6360",
        "MEMWATCHD_PORT_6360_TCP": "tcp://10.0.0.1:6360",
        "MEMWATCHD_PORT_6360_TCP_ADDR": "10.0.0.1",
        "MEMWATCHD_GPU_SERVICE_HOST": "10.0.0.2",
    }

    assert settings_from(tmp_path, environ=environ).origins == {}
    assert problems_from(tmp_path, environ={"MEMWATCHD_PORT": "80"})[0].startswith(
        "MEMWATCHD_PORT is not a setting"
    )


def test_named_file_must_be_readable(tmp_path: Path) -> None:
    """A configured file that cannot be read is a problem, reported with its reason. A FIFO is not waited for."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for name, reason in (
        (tmp_path / "absent", "(No such file or directory); check the name"),
        (tmp_path, "(it is not a regular file); name a file"),
        (Path("/dev/zero"), "(it is not a regular file); name a file"),
        (fifo, "(it is not a regular file); name a file"),
    ):
        with pytest.raises(SettingsError) as caught:
            load({}, {"MEMWATCHD_CONFIG": str(name)})
        assert caught.value.problems == [f"{name} cannot be read {reason}"]


def test_default_file_is_used_and_rejected_if_broken(tmp_path: Path) -> None:
    """The default file needs no flag, and is not skipped if it is invalid."""
    default = tmp_path / "memwatchd.toml"
    default.write_text("[processes]\ntop = 3\n")
    settings = load({}, {}, default_file=default)
    default.write_bytes(b"\xff")

    with pytest.raises(SettingsError, match="is not UTF-8 text: byte 0"):
        load({}, {}, default_file=default)

    assert settings.processes.top == 3
    assert settings.file == default


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    """A file saved by a Windows editor works, and its line numbers are right."""
    file = tmp_path / "memwatchd.toml"
    file.write_bytes(b"\xef\xbb\xbf[processes]\r\ntop = 3\r\n")
    settings = load({"config": str(file)}, {})

    assert settings.processes.top == 3
    assert settings.origins == {"processes.top": f"{file} line 2"}


def test_settings_are_frozen() -> None:
    """Immutable settings can be shared between threads."""
    with pytest.raises(AttributeError):
        Settings().web.max_streams = 3  # type: ignore[misc]


def test_changes_are_listed_by_key_with_those_that_need_a_restart(tmp_path: Path) -> None:
    """A reload lists each change, and marks those that take effect at the next start."""
    old = settings_from(tmp_path, '[history]\nlength = "2h"\n' + WEBHOOK)
    other = "whsec_" + base64.b64encode(b"b" * 32).decode()
    new = settings_from(
        tmp_path, '[web]\nlisten = ["[::1]:1"]\n[pressure]\nhigh_percent = 75\n' + WEBHOOK.replace(SECRET, other)
    )

    assert [str(change) for change in describe_changes(old, new)] == [
        'web.listen: ["127.0.0.1:6360"] → ["[::1]:1"] (takes effect at the next start)',
        'history.length: "2h" → "1h"',
        "pressure.high_percent: 80 → 75",
        'alerts.webhooks.ops.secret: "(hidden)" → "(hidden)"',
    ]
    assert describe_changes(old, old) == ()


def test_added_webhook_changes_no_other(tmp_path: Path) -> None:
    """Webhooks are compared by name, so a new first one changes no other."""
    first = WEBHOOK.replace('"ops"', '"first"')

    changes = describe_changes(settings_from(tmp_path, WEBHOOK), settings_from(tmp_path, first + WEBHOOK))

    assert {change.key.rsplit(".", 1)[0] for change in changes} == {"alerts.webhooks.first"}
    assert {change.before for change in changes} == {"not set"}
    assert {change.key.rsplit(".", 1)[1] for change in changes} >= {"name", "events", "url", "secret"}
    assert not {"not set", "[]"}.intersection(change.after for change in changes)


def test_first_receiver_is_listed_by_its_keys(tmp_path: Path) -> None:
    """Neither the missing list before nor unset keys are listed as changes."""
    without, first = settings_from(tmp_path, ""), settings_from(tmp_path, WEBHOOK)

    for one, other in ((without, first), (first, without)):
        changes = describe_changes(one, other)
        assert {change.key.rsplit(".", 1)[0] for change in changes} == {"alerts.webhooks.ops"}
        assert all("not set" in (change.before, change.after) for change in changes)
        assert all(change.before != change.after for change in changes)


def test_every_setting_has_its_own_variable() -> None:
    """Variables cover every key that has a single value."""
    long_names = {
        name for name, setting in variables().items() if name == "MEMWATCHD_" + "_".join(setting.path).upper()
    }
    keys = {path for path, _ in flat(Sections())}
    lists = {("engines",), ("neighbours",), *(("alerts", kind) for kind in CHANNELS)}
    assert {setting.path for setting in variables().values()} == keys - lists
    assert len(long_names) == len(keys) - len(lists)


@given(st.text() | st.text("[]=.#\"'\n{}, abcdefghijklmnopqrstuvwxyz_0123456789", max_size=400))
def test_arbitrary_file_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """No file content raises anything except SettingsError, and that has a message."""
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))

    assert problems_or_settings({"config": str(file)}, {}) is not None


def problems_or_settings(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings | list[str] | None:
    """Return the settings or their problems; None if they are rejected without a problem."""
    try:
        return load(flags, environ, default_file=Path("/nonexistent"))
    except SettingsError as bad:
        return bad.problems or None


SCALARS = (
    st.text(max_size=20)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.datetimes()
    | st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from([path for path, _ in flat(Sections())]), SCALARS)
def test_arbitrary_value_is_used_or_rejected_by_name(
    tmp_path_factory: pytest.TempPathFactory, path: tuple[str, ...], value: object
) -> None:
    """A known key with any value of any type is either in effect or named in a problem."""
    file = tmp_path_factory.getbasetemp() / "value.toml"
    table = f"[{'.'.join(path[:-1])}]\n" if path[:-1] else ""
    written = f"{table}{path[-1]} = {toml_of(value)}\n"
    file.write_text(written, encoding="utf-8")

    found = problems_or_settings({"config": str(file)}, {})

    assert isinstance(found, Settings) or (found and ".".join(path) in found[0] and len(found[0]) < 600)


def toml_of(value: object) -> str:
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(character):08x}" for character in value) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(toml_of(item) for item in value) + "]"
    return value.isoformat() if hasattr(value, "isoformat") else str(value).lower()


@given(st.dictionaries(st.sampled_from(sorted(variables())), st.text(), max_size=4))
def test_arbitrary_environment_is_read_or_rejected(environ: dict[str, str]) -> None:
    """No value of any variable raises anything except SettingsError."""
    found = problems_or_settings({}, environ)

    assert isinstance(found, Settings) or (found and all(text.startswith("MEMWATCHD_") for text in found))


def test_limit_is_a_number_in_json(tmp_path: Path) -> None:
    """A limit replaces the size of a pool, which is a number in JSON."""
    read = settings_from(tmp_path, '[pressure.targets.ram]\nlimit = "64MiB"\n', {}, {})

    assert (
        to_bytes({"size_bytes": read.pressure.rules.target_rules("ram").limit_bytes}) == b'{"size_bytes":67108864}'
    )
