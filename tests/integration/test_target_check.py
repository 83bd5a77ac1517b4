"""Warnings about targets in the settings that the machine does not have."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatchd.features import SETTLED_SECONDS, UnknownTargetCheck
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


def pressure_config(*targets: str) -> str:
    return "".join(CONFIG.format(target) for target in targets)


def test_unknown_target_is_logged_once_and_new_ones_after_a_reload(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Not during the first minute, and not for existing targets. The events of a receiver determine its targets."""
    snapshot = calm_workstation()
    here = ", ".join(snapshot.labels)
    check = UnknownTargetCheck(settings_from(tmp_path, pressure_config("ram", "nosuch") + RECEIVER))

    def messages_at(seconds: float) -> list[str]:
        caplog.clear()
        check.on_publish(replace(snapshot, monotonic=1000.0 + seconds))
        return [record.getMessage() for record in caplog.records]

    early, settled, later = (
        messages_at(0.0) + messages_at(SETTLED_SECONDS - 1),
        messages_at(SETTLED_SECONDS),
        messages_at(2 * SETTLED_SECONDS),
    )
    check.use(settings_from(tmp_path, pressure_config("nosuch", "other") + RECEIVER.replace("psi", "swap")))
    reloaded = messages_at(3 * SETTLED_SECONDS)

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


def test_daemon_logs_unknown_targets(tmp_path: Path) -> None:
    """After startup and after a reload. A minute of this demo takes 0.6 s."""
    warning = "this machine has no such target now; available: ram, "
    with running_daemon(tmp_path, "--demo", "strix-halo", "--speed", "100", config=CONFIG.format("nosuch")) as one:
        one.wait_for_log(f"pressure.targets.nosuch is set, but {warning}")
        (tmp_path / "memwatchd.toml").write_text(CONFIG.format('"gpu0.gttt"'))
        one.process.send_signal(signal.SIGHUP)
        one.wait_for_log(f"pressure.targets.gpu0.gttt is set, but {warning}")
        log = one.read_log()

    assert log.count(warning) == 2
    assert " WARNING " in log
