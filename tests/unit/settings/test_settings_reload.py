"""Test that a reload applies exactly the changes that it reports as applied."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from msgspec.structs import replace

from memwatch.core.options import Section
from memwatchd import wiring
from memwatchd.daemon import Daemon
from memwatchd.neighbours.follower import Follower
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import Player, ReplayClock, open_recording
from memwatchd.settings.diff import NOT_YET, describe_changes, find_effect, flat
from memwatchd.settings.keys import AT_START, ON_RELOAD, TakesEffect
from memwatchd.settings.schema import Settings
from memwatchd.settings.web import Tls
from support.full_settings import full_text, with_other_value
from support.monitors import alerting
from support.settings_sample import WEBHOOK, settings_from, webhooks_of

# In the full file each receiver has its own proxy.
PROXY_OF_OTHERS = {("alerts", "proxy"), ("alerts", "listener_user")}


class Other:
    """Settings with one key changed, based on a file that sets every key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = full_text(folder)
        self.base = settings_from(folder, self.text)
        self.values = dict(flat(self.base))

        self.than = cache(self._than)  # tests ask for the same ones, and reading them takes 10 ms each

    def _than(self, path: tuple[str, ...]) -> Settings:
        text = with_other_value(self.text, path, self.values[path], self.folder)
        return settings_from(self.folder, text)


class Inner(Section, frozen=True, kw_only=True):
    early: Annotated[int, AT_START] = 1
    inherits: int = 1


class Outer(Section, frozen=True, kw_only=True):
    declared: Annotated[Inner, ON_RELOAD] = Inner()
    undeclared: Inner = Inner()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Other:
    return Other(tmp_path_factory.mktemp("settings"))


@pytest.fixture
def root_level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.mark.process
def test_every_setting_declares_when_it_takes_effect(other: Other) -> None:
    assert len(other.values) > 100
    assert {find_effect(path).at for path in other.values} == {"start", "reload", "reading"}


def test_setting_without_a_declaration_is_rejected() -> None:
    assert find_effect(("declared", "inherits"), Outer) is ON_RELOAD
    assert find_effect(("undeclared", "early"), Outer) is AT_START
    with pytest.raises(LookupError, match=r"undeclared\.inherits declares neither AT_START nor ON_RELOAD"):
        find_effect(("undeclared", "inherits"), Outer)


@pytest.mark.process
def test_reload_applies_the_settings_that_declare_it_and_no_others(other: Other) -> None:
    """Each key is changed alone. `LiveSettings` has the parts that a reload applies."""
    paths = [path for path in other.values if path not in PROXY_OF_OTHERS]
    found = outcomes(other, paths, None)

    effects = {path: find_effect(path) for path in paths}
    assert found == {
        path: Outcome(is_own(one) and one.at == "reload", is_own(one) and one.at != "start")
        for path, one in effects.items()
    }


def is_own(effect: TakesEffect) -> bool:
    return effect.program == "memwatchd"


@pytest.mark.process
def test_change_of_the_guardian_names_the_program_to_reload(other: Other) -> None:
    notes = {
        path[1]: describe_changes(other.base, other.than(path))[0].note
        for path in other.values
        if path[0] == "guardian"
    }

    assert notes.pop("state_dir") == " (takes effect at the next start of memwatchd-guardian)"
    assert set(notes.values()) == {" (takes effect at the next reload of memwatchd-guardian)"}


@pytest.mark.process
def test_reload_of_a_recording_applies_the_settings_that_declare_it_and_no_others(other: Other) -> None:
    player = Player(open_recording(path_of("macbook"), salvage=False), ReplayClock(0.0, 1.0))
    # A renamed receiver is another receiver: a recording applies its events, and none of its other keys.
    paths = [path for path in other.values if path[-1] != "name" and path not in PROXY_OF_OTHERS]
    found = outcomes(other, paths, player)

    effects = {path: find_effect(path) for path in paths}
    assert found == {
        path: Outcome(
            is_own(one) and one.at == "reload" and one.simulated,
            is_own(one) and one.at != "start" and one.simulated,
        )
        for path, one in effects.items()
    }


def test_proxy_of_all_receivers_is_applied_to_those_without_their_own(tmp_path: Path) -> None:
    """A receiver whose proxy changes differs from itself before, so that a reload creates it again."""
    keys = {"first": "", "direct": 'proxy = "none"', "other": 'proxy = "http://own.example:1"'}
    receivers = "".join(WEBHOOK.replace('"ops"', f'"{name}"') + f"{key}\n" for name, key in keys.items())

    def proxies(proxy: str) -> list[str]:
        settings = settings_from(tmp_path, f"[alerts]\n{proxy}\n{receivers}")
        return [str(one.proxy) for one in webhooks_of(settings)]

    assert proxies("") == ["None", "none", "http://own.example:1"]
    shared = proxies('proxy = "http://user:secret@all.example:3128"')
    assert shared == ["http://all.example:3128", "none", "http://own.example:1"]


@pytest.mark.process
def test_certificate_of_a_daemon_without_tls_needs_a_restart(other: Other) -> None:
    without = replace(other.base, web=replace(other.base.web, tls=Tls()))

    for one, another in ((without, other.base), (other.base, without)):
        changes = {change.key: change.note for change in describe_changes(one, another)}
        names = ["cert_file", "key_file", "client_ca_file"]
        assert changes == dict.fromkeys([f"web.tls.{name}" for name in names], NOT_YET)
        assert wiring.build_live_settings(another, one).certificate is None


class Outcome(NamedTuple):
    """Effect of a reload: `applied` if anything changes, `logged` if its log reports it."""

    applied: bool
    logged: bool


def outcomes(
    other: Other, paths: Sequence[tuple[str, ...]], player: Player | None
) -> dict[tuple[str, ...], Outcome]:
    """Return the effect of each key, changed alone."""
    before = wiring.build_live_settings(other.base, other.base, player)
    found = {}
    for path in paths:
        settings = other.than(path)
        after = wiring.build_live_settings(settings, other.base, player)
        changes = describe_changes(other.base, settings, simulated=player is not None)
        found[path] = Outcome(before != after, any(not change.note for change in changes))
    return found


@pytest.mark.process
def test_daemon_uses_every_field_that_a_reload_applies(tmp_path: Path, root_level: None) -> None:  # noqa: ARG001
    """Each field of `LiveSettings` reaches the part that uses it."""
    first = settings_from(tmp_path, "[log]\nlevel = 'info'\n")
    config = (
        "[web]\nhosts = ['b']\nurl = 'https://b/'\nmax_streams = 7\n[log]\nlevel = 'error'\n"
        "[sampling]\ninterval = '3s'\n[pressure.targets.ram]\nlimit = '1GiB'\n"
        "[[alerts.alertmanagers]]\nname = 'am'\nurl = 'http://127.0.0.1:9'\n"
        "[[neighbours]]\nname = 'spark-2'\nurl = 'http://127.0.0.1:9'\n[labels]\ncluster = 'west'\n"
    )
    second = settings_from(tmp_path, config)
    daemon = Daemon(first, lambda _: second)
    before = in_use(daemon)
    daemon.reload()
    after, live = in_use(daemon), wiring.build_live_settings(second, first, host=daemon.monitor.identity.host)
    daemon.stop()

    expected = {name: getattr(live, name) for name in live.__struct_fields__}
    expected |= {"receivers": ["am"], "neighbours": ["spark-2"]}
    assert after == expected
    assert {name for name in after if after[name] == before[name]} == {"certificate", "exposure", "is_open"}


@pytest.mark.process
def test_reload_that_would_open_the_addresses_of_the_start_is_rejected(tmp_path: Path) -> None:
    """New addresses take effect at the next start, the missing login at once."""
    token = tmp_path / "token"
    token.write_text("sixteen-letters-")
    login = f"[web.auth]\nbearer_token = 'file:{token}'\n"
    first = settings_from(tmp_path, f"[web]\nlisten = ['0.0.0.0:0']\n{login}")
    daemon = Daemon(first, lambda _: settings_from(tmp_path, "[web]\nlisten = ['127.0.0.1:0']\n"))
    daemon.reload()
    daemon.stop()

    assert daemon.web_options().login.is_required
    assert daemon.settings is first


def in_use(daemon: Daemon) -> Mapping[str, Any]:
    """Return the fields of `LiveSettings` as used by the daemon's parts.

    test_tls covers certificates, test_exposure the exposure.
    """
    follower = daemon.monitor.features.find(Follower)
    return {
        "rules": daemon.monitor.rules,
        "web_options": daemon.web_options(),
        "receivers": [one.name for one in alerting(daemon.monitor).receivers],
        "neighbours": [one.name for one in follower.peers] if follower else [],
        "sender": alerting(daemon.monitor).sender,
        "budgets": {name: one.most for name, one in daemon.monitor.budgets.by_kind.items()},
        "log_level": logging.getLevelName(logging.getLogger().level).lower(),
        "certificate": None,
        "is_open": daemon.monitor.publisher.hides_commands,
        "exposure": daemon.live.exposure,
    }
