"""The identity of the daemon in notifications: address, instance, labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch_monitor.notify.channel import Sender
from memwatchd import wiring
from memwatchd.daemon import Daemon
from memwatchd.settings.keys import TcpAddress
from support.full_settings import full_text
from support.monitors import alerting
from support.settings_sample import settings_from

OPEN = "[web]\ninsecure = true\n"


@pytest.mark.parametrize(
    ("config", "url", "instance"),
    [
        ("", None, "spark:6360"),
        ('[web]\nlisten = ["127.0.0.1:0"]', None, "spark"),
        ('[web]\nlisten = ["unix:/run/x/socket"]', None, "spark"),
        (OPEN + 'listen = ["0.0.0.0:6360"]', "http://spark:6360", "spark:6360"),
        (OPEN + 'listen = ["[::]:6360"]', "http://spark:6360", "spark:6360"),
        (OPEN + 'listen = ["127.0.0.1:1", "192.0.2.1:6361"]', "http://192.0.2.1:6361", "192.0.2.1:6361"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nhosts = ["a.b", "c"]', "http://a.b:6360", "a.b:6360"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nhosts = [".a.b", "c"]', "http://c:6360", "c:6360"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nhosts = [".a.b"]', "http://spark:6360", "spark:6360"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nurl = "https://a.b/memory/"', "https://a.b/memory", "spark:6360"),
        ('[alerts]\ninstance = "10.0.0.1:6360"', None, "10.0.0.1:6360"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nurl = "none"', None, "spark:6360"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nhosts = ["localhost", "a.b"]', "http://a.b:6360", "a.b:6360"),
        (OPEN + 'listen = ["0.0.0.0:6360"]\nhosts = ["127.0.0.1"]', "http://spark:6360", "spark:6360"),
    ],
)
def test_address_and_instance_are_those_of_other_machines(
    tmp_path: Path, config: str, url: str | None, instance: str
) -> None:
    settings = settings_from(tmp_path, config)

    sender = wiring.build_sender(settings, settings.web, "spark")

    assert (sender.url, sender.instance, sender.job) == (url, instance, "memwatchd")


@pytest.mark.parametrize(
    ("config", "hosts"),
    [
        ('url = "https://memory.example.org/gpu1"', ("memory.example.org",)),
        ('url = "https://memory.example.org:8443"\nhosts = ["a.b"]', ("a.b", "memory.example.org")),
        ('url = "http://A.b"\nhosts = ["a.b"]', ("a.b",)),
        ('url = "http://192.0.2.1:6360"', ("192.0.2.1",)),
        ('url = "none"\nhosts = ["a.b"]', ("a.b",)),
        ("", ()),
    ],
)
def test_browser_that_follows_a_link_is_let_in(tmp_path: Path, config: str, hosts: tuple[str, ...]) -> None:
    """The host of the links in notifications is allowed as the Host of requests, without a second setting."""
    settings = settings_from(tmp_path, f"[web]\n{config}\n")

    live = wiring.build_live_settings(settings, settings, host="spark")

    assert live.web_options.hosts == hosts


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.8.9.1", "spark.localhost", "0.0.0.0"])
def test_address_of_this_machine_is_no_link(tmp_path: Path, host: str) -> None:
    """A receiver elsewhere would open its own machine. The settings are accepted, with a warning."""
    settings = settings_from(tmp_path, OPEN + f'listen = ["0.0.0.0:6360"]\nurl = "http://{host}:6360/memory"')

    assert wiring.build_sender(settings, settings.web, "spark").url is None
    assert any(f"http://{host}:6360/memory" in warning for warning in settings.warnings)


def test_machine_that_is_named_localhost_has_no_link(tmp_path: Path) -> None:
    """The name of an image that was not given another one."""
    settings = settings_from(tmp_path, OPEN + 'listen = ["0.0.0.0:6360"]')

    assert wiring.build_sender(settings, settings.web, "localhost").url is None


@pytest.mark.process
def test_url_of_a_daemon_with_a_certificate_is_https(tmp_path: Path) -> None:
    settings = settings_from(tmp_path, full_text(tmp_path))
    web = replace(settings.web, url=None, hosts=("a.b",), listen=(TcpAddress("0.0.0.0", 6360),))

    assert wiring.build_sender(settings, web, "spark").url == "https://a.b:6360"


def test_runbook_needs_an_address_and_an_alert() -> None:
    assert Sender("https://a/memory").runbook_url("device.lost", "gpu0") == "https://a/memory/runbooks#gpulost"
    assert Sender().runbook_url("device.lost", "gpu0") is None
    assert Sender("https://a").runbook_url("test", "test") is None


@pytest.mark.process
def test_reload_changes_the_labels(tmp_path: Path) -> None:
    """SIGHUP applies [labels]; with invalid ones the old stay in force."""
    texts = iter(('[labels]\ncluster = "west"\n', '[labels]\njob = "x"\n'))
    daemon = Daemon(settings_from(tmp_path), lambda _: settings_from(tmp_path, next(texts)))
    before = daemon.labels()
    daemon.reload()
    after = daemon.labels()
    daemon.reload()
    kept = daemon.labels()
    daemon.stop()

    assert (before, after, kept) == ({}, {"cluster": "west"}, {"cluster": "west"})
    assert alerting(daemon.monitor).sender.labels == after
