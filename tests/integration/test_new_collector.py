"""A new collector needs only one module and one line in `COLLECTORS`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from memwatch.core.collectors import load_collectors
from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from scripts.shipped_configuration import render
from support.daemon_process import clean_environment, running_daemon

# Runs the daemon with a collector added to `memwatch.core.collectors`. The first argument is the command.
WITH_MAGIC = """
import sys
from types import SimpleNamespace
from memwatch.core import collectors
from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
class Magic(BaseCollector):
    name = "magic"
    collect = lambda self: Findings()
sys.modules["memwatch.core.collectors.magic"] = SimpleNamespace(Collector=Magic)
collectors.COLLECTORS = (*collectors.COLLECTORS, collectors.Listed("magic"))
from memwatchd.cli import main
sys.exit(main(sys.argv[2:]))
"""
THROUGH = (sys.executable, "-c", WITH_MAGIC)
UP = 'memwatch_collector_up{collector="magic"} 1.0'


class Magic(BaseCollector):
    name = "magic"

    def collect(self) -> Findings:
        return Findings()


def test_new_collector_runs_and_appears_in_collector_up(tmp_path: Path) -> None:
    with running_daemon(tmp_path, through=THROUGH) as daemon:
        daemon.wait_until_ok("magic")

        assert UP in daemon.get("/metrics").text


def test_new_collector_can_be_disabled_in_the_configuration(tmp_path: Path) -> None:
    config = "[collectors.magic]\nenabled = false\n"
    with running_daemon(tmp_path, through=THROUGH, config=config) as daemon:
        names = [one["name"] for one in daemon.get("/api/v1/collectors").json]
        metrics = daemon.get("/metrics").text

    assert "meminfo" in names
    assert "magic" not in names
    assert "magic" not in metrics


def test_new_collector_can_be_disabled_in_the_environment() -> None:
    done = subprocess.run(
        [*THROUGH, "memwatchd", "--check-config"],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(MEMWATCHD_COLLECTORS_MAGIC_ENABLED="false"),
    )

    assert "collectors.magic.enabled = false" in done.stdout


def test_section_of_an_unknown_collector_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "memwatchd.toml"
    config.write_text("[collectors.magic]\nenabled = false\n")
    done = subprocess.run(
        [sys.executable, "-m", "memwatchd", "--config", str(config), "--check-config"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )

    assert done.returncode == 78
    assert "collectors.magic is not a setting" in done.stderr


def test_new_collector_gets_a_section_in_the_configuration_file() -> None:
    text = render((*load_collectors(), Magic))

    assert "\n\n[collectors.magic]\n#enabled = true\n\n\n" in text
    assert text.index("[collectors.drm]") < text.index("[collectors.magic]") < text.index("[labels]")
