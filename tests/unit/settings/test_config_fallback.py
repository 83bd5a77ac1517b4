"""A start with a configuration that is refused: what takes its place, and who has access then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from memwatch_web.asgi.login import parse_token
from memwatchd.settings.fallback import NAME, LastGood, keep_last_good, load_for_start, read_last_good
from memwatchd.settings.load import SettingsError, load
from memwatchd.settings.schema import Settings
from support.broken_configurations import OF_SETTINGS, TOKEN, Breakage, good


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    return folder


def write(folder: Path, text: str) -> dict[str, str]:
    """Write the configuration, and return the flags that name it."""
    file = folder / "memwatchd.toml"
    file.write_text(text, errors="surrogateescape")
    return {"config": str(file), "state_dir": str(folder / "state")}


def keep(settings: Settings, unix: float = 1_796_000_000.0) -> LastGood:
    """Keep settings as a daemon does that has started with them."""
    login = settings.web.login
    last = LastGood(
        unix,
        settings.given,
        login.token.digest.hex() if login.token else None,
        {name: one.text for name, one in login.users.items()},
        login.by_certificate,
    )
    assert settings.state.dir is not None
    keep_last_good(settings.state.dir, last)
    return last


def start_after(
    folder: Path,
    before: str,
    now: str,
    environ: Mapping[str, str] | None = None,
    then: Mapping[str, str] | None = None,
) -> Settings:
    """Start with the text `now` after a run with `before`. `environ`, `then`: variables now and then."""
    keep(load(write(folder, before), then or {}))
    return load_for_start(write(folder, now), environ or {})


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("broken", OF_SETTINGS, ids=lambda one: one.name)
def test_start_with_a_broken_configuration(tmp_path: Path, broken: Breakage) -> None:
    flags = write(tmp_path, good(tmp_path))
    keep(load(flags, {}))
    text = broken.apply(tmp_path)
    write(tmp_path, text)
    if not text:
        Path(flags["config"]).unlink()

    with pytest.raises(SettingsError):
        load(flags, broken.environ)
    settings = load_for_start(flags, broken.environ)

    assert any(broken.says in problem for problem in settings.problems)
    assert not settings.is_as_given
    assert tuple(one.name for one in settings.alerts.receivers) == broken.receivers
    assert settings.pressure.high_percent == broken.high_percent
    assert settings.web.login.token == parse_token(TOKEN)
    assert settings.web.exposed_addresses == ()


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("broken", OF_SETTINGS, ids=lambda one: one.name)
def test_first_start_is_refused_unless_it_can_leave_something_out(tmp_path: Path, broken: Breakage) -> None:
    flags = write(tmp_path, good(tmp_path))
    text = broken.apply(tmp_path)
    write(tmp_path, text)
    if not text:
        Path(flags["config"]).unlink()
    if " off" in broken.says or broken.receivers != ("ops", "night"):
        assert load_for_start(flags, broken.environ).problems
    else:
        with pytest.raises(SettingsError):
            load_for_start(flags, broken.environ)


OPEN = '[web]\nlisten = ["0.0.0.0:7001", "unix:/run/m.sock"]\n'


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("before", "now", "listen"),
    [
        (f"{OPEN}insecure = true\n", f"{OPEN}hosts = ['a b']\n", ("127.0.0.1:7001", "unix:/run/m.sock")),
        (f"{OPEN}insecure = true\n", f"{OPEN}[web.auth]\nbearer_token = 'file:/x'\n", ("127.0.0.1:7001",)),
        (f"{OPEN}insecure = true\n", OPEN, ("127.0.0.1:7001",)),
        ("", f"{OPEN}[web.tls]\ncert_file = '/x'\n", ("127.0.0.1:7001",)),
        ("", "[web]\nlisten = ['nowhere']\n", ("127.0.0.1:6360",)),
        ("", "[web]\nlisten = 7\n", ("127.0.0.1:6360",)),
        ("", "web = 7\n", ("127.0.0.1:6360",)),
        # The file says nothing that can be read: access is as before.
        (f"{OPEN}insecure = true\n", "[web", ("0.0.0.0:7001", "unix:/run/m.sock")),
    ],
    ids=["hosts", "token", "no login", "certificate", "address", "number", "no table", "no TOML"],
)
def test_bad_access_leaves_this_machine_only(
    tmp_path: Path, before: str, now: str, listen: tuple[str, ...]
) -> None:
    settings = start_after(tmp_path, before, now)

    assert tuple(map(str, settings.web.listen))[: len(listen)] == listen
    assert settings.access_is_closed is (now != "[web")


@pytest.mark.usefixtures("state")
def test_login_by_certificate_that_is_lost_accepts_no_other(tmp_path: Path) -> None:
    """Without TLS no certificate can be asked for: then nothing is read over TCP."""
    kept = keep(load(write(tmp_path, ""), {}))
    folder = tmp_path / "state"
    keep_last_good(folder, LastGood(kept.unix, kept.given, by_certificate=True))
    settings = load_for_start(write(tmp_path, "[web.tls]\ncert_file = '/x'\nclient_ca_file = '/y'\n"), {})

    assert settings.access_is_closed
    assert settings.web.login.is_required


@pytest.mark.usefixtures("state")
def test_users_of_before_may_log_in(tmp_path: Path) -> None:
    user = '[web.auth.users]\nada = "$2b$05$' + "a" * 53 + '"\n'
    settings = start_after(tmp_path, user, f"{user}x = 1\n")

    assert settings.access_is_closed
    assert [(name, one.cost) for name, one in settings.web.login.users.items()] == [("ada", 5)]


@pytest.mark.usefixtures("state")
def test_variables_of_before_are_used_with_the_file_of_before(tmp_path: Path) -> None:
    then = {"MEMWATCHD_PRESSURE_HIGH_PERCENT": "71", "OTHER": "x"}
    now = {"MEMWATCHD_PRESSURE_HIGH_PERCENT": "high", "OTHER": "y"}
    settings = start_after(tmp_path, "", "", now, then)

    assert settings.pressure.high_percent == 71
    assert (read_last_good(tmp_path / "state") or LastGood(0, settings.given)).given.variables == {
        "MEMWATCHD_PRESSURE_HIGH_PERCENT": "71"
    }


@pytest.mark.usefixtures("state")
def test_keys_that_this_version_refuses_are_left_out(tmp_path: Path) -> None:
    """After an upgrade the file of now and the one of before, the same, are refused."""
    text = "[pressure]\nhigh_percent = 71\n"
    last = keep(load(write(tmp_path, text), {}))
    old = f"{text}[gone]\nkey = 1\n[history]\nlength = 'long'\n[[alerts.webhooks]]\nurl = 'http://x/'\n"
    keep_last_good(tmp_path / "state", LastGood(last.unix, type(last.given)(last.given.file, old)))
    settings = load_for_start(write(tmp_path, old), {})

    assert settings.pressure.high_percent == 71
    assert settings.alerts.receivers == ()
    assert [problem for problem in settings.problems if "gone" in problem]
    assert [problem for problem in settings.problems if "history.length" in problem]


@pytest.mark.usefixtures("state")
def test_a_wrong_flag_is_never_replaced(tmp_path: Path) -> None:
    flags = write(tmp_path, "")
    keep(load(flags, {}))
    with pytest.raises(SettingsError) as caught:
        load_for_start({**flags, "interval": "1ns"}, {})
    assert caught.value.usage


@pytest.mark.usefixtures("state")
def test_another_machine_is_not_watched_because_its_folder_is_missing(tmp_path: Path) -> None:
    """In a container, /proc is not that of the host."""
    procfs = tmp_path / "proc"
    procfs.mkdir()
    keep(load(write(tmp_path, f"[sampling]\nprocfs = '{procfs}'\n"), {}))
    procfs.rmdir()

    with pytest.raises(SettingsError, match="procfs"):
        load_for_start(write(tmp_path, f"[sampling]\nprocfs = '{procfs}'\n"), {})


@pytest.mark.parametrize("foreign", ["writable by others", "a link", "damaged", "another version", "huge"])
def test_a_kept_configuration_that_others_may_have_written_is_not_used(
    tmp_path: Path, state: Path, foreign: str
) -> None:
    keep(load(write(tmp_path, ""), {}))
    file = state / NAME
    if foreign == "writable by others":
        file.chmod(0o666)
    elif foreign == "a link":
        file.rename(state / "other")
        file.symlink_to("other")
    else:
        file.write_bytes(
            {"damaged": b"{", "another version": b'{"unix":1,"given":{},"version":9}', "huge": b" " * (1 << 20)}[
                foreign
            ]
        )

    assert read_last_good(state) is None
    with pytest.raises(SettingsError):
        load_for_start(write(tmp_path, "x = 1\n"), {})


def test_folder_that_others_may_write_to_is_not_used(tmp_path: Path, state: Path) -> None:
    keep(load(write(tmp_path, ""), {}))
    state.chmod(0o777)

    assert read_last_good(state) is None


def test_kept_configuration_is_for_its_owner_only_and_written_once(tmp_path: Path, state: Path) -> None:
    first = keep(load(write(tmp_path, ""), {}))
    keep(load(write(tmp_path, ""), {}), first.unix + 60)

    assert (state / NAME).stat().st_mode & 0o777 == 0o600
    assert read_last_good(state) == first
    assert [one.name for one in state.iterdir()] == [NAME]


def test_default_file_that_is_gone_does_not_loosen_access(tmp_path: Path, state: Path) -> None:
    """The settings of before stay in force: without a file, no login would be required."""
    file = tmp_path / "etc.toml"
    file.write_text(good(tmp_path))
    environ = {"MEMWATCHD_STATE_DIR": str(state)}
    keep(load({}, environ, default_file=file))
    file.unlink()

    settings = load_for_start({}, environ, default_file=file)
    assert settings.web.login.token == parse_token(TOKEN)
    assert "leave an empty file there" in settings.problems[0]
    with pytest.raises(SettingsError, match="leave an empty file there"):
        load({}, environ, default_file=file, had_file=True)
    file.touch()
    assert load_for_start({}, environ, default_file=file).problems == ()


@pytest.mark.usefixtures("state")
def test_mdns_without_its_library_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwatchd.settings.endpoints.find_spec", lambda _name: None)
    settings = load_for_start(write(tmp_path, "[discovery]\nmdns = true\n[pressure]\nhigh_percent = 71\n"), {})

    assert not settings.discovery.mdns
    assert settings.pressure.high_percent == 71
    assert settings.problems[0].startswith("mDNS is off: ")
    assert settings.lasting_problems == settings.problems
