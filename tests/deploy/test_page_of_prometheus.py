"""docs/howto/prometheus.md, followed: its scrape configurations, its queries, and the names in Compose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from memwatchd import wiring
from scripts.golden import roots_arguments
from support.daemon_process import running_daemon
from support.pages import Fence, fences
from support.paths import DEPLOY, ROOT
from support.prometheus_servers import prometheus
from support.settings_sample import settings_from

NEEDED_PROGRAMS = ("prometheus", "promtool")

BLOCKS = fences((ROOT / "docs/howto/prometheus.md").read_text())
SCRAPES = [block for block in BLOCKS if block.language == "yaml" and "scrape_configs" in block.code]
TOKEN = "0123456789abcdef"
# Have a result on some machines, or at some times, only.
CONDITIONAL = (" > ", " >= ", "time_to_full")


def page_queries() -> list[str]:
    (block,) = [block for block in BLOCKS if block.language == "promql"]
    return [line.partition("#")[0].strip() for line in block.code.splitlines()]


def with_address(block: Fence, address: str, folder: Path) -> dict[str, Any]:
    """Return a configuration of the page for one daemon of this machine, scraped each second."""
    config: dict[str, Any] = yaml.safe_load(block.code)
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    static["targets"] = [address]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    if "authorization" in job:
        assert job["authorization"] == {"credentials_file": "/etc/prometheus/memwatchd-token"}
        job["authorization"]["credentials_file"] = str(folder / "token")
    return {"global": {"evaluation_interval": "1s"}, "rule_files": [f"{DEPLOY}/prometheus/rules/*.yml"], **config}


@pytest.mark.parametrize("block", SCRAPES, ids=["same-machine", "token"])
def test_scrape_of_the_page_answers_its_queries(block: Fence, tmp_path: Path) -> None:
    """Every query of the page is valid, and each without a condition has a result. The rules are evaluated."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    environ = (
        {"MEMWATCHD_WEB_AUTH_BEARER_TOKEN": f"file:{tmp_path / 'token'}"} if "authorization" in block.code else {}
    )
    with running_daemon(tmp_path, *roots_arguments("three-makers-dmem"), environ=environ) as daemon:
        text = json.dumps(with_address(block, f"127.0.0.1:{daemon.port}", tmp_path))
        with prometheus(tmp_path, text) as server:
            server.wait_for("memwatch_owner_resident_bytes")
            server.wait_for("instance:memwatch_pool_size_bytes:sum")
            empty = [query for query in page_queries() if not server.query(query)]

    assert [query for query in empty if not any(word in query for word in CONDITIONAL)] == []


def test_pages_of_both_ways_are_found() -> None:
    """Without a login on one machine, and with a token."""
    assert len(SCRAPES) == 2
    assert len(page_queries()) >= 9


def test_compose_scrapes_memwatchd_by_the_instance_of_its_alerts(tmp_path: Path) -> None:
    """The target of Compose's Prometheus is the instance of a notification. No link leads to that name."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    given = services["memwatchd"]["environment"]
    (job,) = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())["scrape_configs"]
    (static,) = job["static_configs"]
    assert given["MEMWATCHD_WEB_URL"] == "${EXTERNAL_URL:-none}"
    names = f'hosts = ["{given["MEMWATCHD_WEB_HOSTS"]}"]\nurl = "none"\n'
    config = f'[web]\ninsecure = true\nlisten = ["0.0.0.0:6360"]\n{names}'
    settings = settings_from(tmp_path, config)

    sender = wiring.build_sender(settings, settings.web, "spark")

    assert (static["targets"], job["job_name"], sender.url) == ([sender.instance], sender.job, None)
