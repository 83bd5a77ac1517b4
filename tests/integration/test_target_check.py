"""A target of the settings that is not on the machine is told once, when all collectors have had their time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatchd.target_check import SETTLED_SECONDS, UnknownTargetCheck
from support.daemon_process import running_daemon
from support.sample_snapshots import calm_workstation
from support.settings_sample import SECRET, settings_from

RECEIVER = f"""
[[alerts.webhooks]]
name = "ops"
url = "https://example.com/hook"
secret = "{SECRET}"
events = ["pressure.critical", "collector.failing"]
targets = ["ram", "rem", "psi"]
"""
CONFIG = '[pressure.targets.{}]\nlimit = "20GiB"\n'


def both(*targets: str) -> str:
    return "".join(CONFIG.format(target) for target in targets)


def test_it_is_told_once_and_after_a_reload_what_is_new(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Not before a minute has passed, nor of what is here; a receiver's targets are those of its events."""
    snapshot = calm_workstation()
    here = ", ".join(snapshot.labels)
    unmet = UnknownTargetCheck(settings_from(tmp_path, both("ram", "nosuch") + RECEIVER))

    def tell(seconds: float) -> list[str]:
        caplog.clear()
        unmet.on_tick(replace(snapshot, monotonic=1000.0 + seconds))
        return [record.getMessage() for record in caplog.records]

    early, settled, later = tell(0.0) + tell(SETTLED_SECONDS - 1), tell(SETTLED_SECONDS), tell(2 * SETTLED_SECONDS)
    unmet.use(settings_from(tmp_path, both("nosuch", "other") + RECEIVER.replace("psi", "swap")))
    reloaded = tell(3 * SETTLED_SECONDS)

    assert (early, later) == ([], [])
    assert settled == [
        f"pressure.targets.nosuch is set, but this machine has no such target now; available: {here}",
        'receiver "ops" lists the target "rem", but this machine has no such target now; available: '
        "ram, meminfo, psi, buddyinfo, processes, cgroup",
    ]
    assert [line.partition(", but")[0] for line in reloaded] == [
        "pressure.targets.other is set",
        'receiver "ops" lists the target "swap"',
    ]


def test_the_daemon_tells_it(tmp_path: Path) -> None:
    """At its start and after a reload; a minute of this machine takes less than one."""
    said = "this machine has no such target now; available: ram, "
    with running_daemon(tmp_path, "--demo", "strix-halo", "--speed", "100", config=CONFIG.format("nosuch")) as one:
        one.wait_for_log(f"pressure.targets.nosuch is set, but {said}")
        (tmp_path / "memwatchd.toml").write_text(CONFIG.format('"gpu0.gttt"'))
        one.process.send_signal(signal.SIGHUP)
        one.wait_for_log(f"pressure.targets.gpu0.gttt is set, but {said}")
        log = one.log.read_text()

    assert log.count(said) == 2
    assert " WARNING " in log
