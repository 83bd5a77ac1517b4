"""From the Debian package and the pages alone to a message with figure, holder and a link that opens, three ways.

The pages' blocks are followed with the unpacked package: /usr, /etc and addresses become those of the test.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import screenshots
from support.browsing import SharedBrowser, opened
from support.daemon_process import RunningDaemon, clean_environment, running_daemon
from support.mutable_machine import MutableMachine
from support.needed_programs import path_of
from support.pages import Fence, fences
from support.paths import ROOT
from support.prometheus_servers import alertmanager, prometheus
from support.waiting import wait_until
from support.webhook_receiver import Site, receiving

pytest_plugins = ("support.debian_fixtures",)

pytestmark = pytest.mark.long
NEEDED_PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "chromium-headless-shell")

NAME = "gpu1.example.org"  # of the page's machine, which only the browser of these tests knows
TOKEN = "0123456789abcdef"
# Programs of Debian that a block starts, and that are no part of what is tested.
STUBS = 'sudo() { "$@"; }\nsystemctl() { echo "$@" >> "$HOME/systemctl"; }\n'


def blocks(page: str, word: str, language: str) -> list[Fence]:
    text = (ROOT / "docs/howto" / page).read_text()
    return [one for one in fences(text) if one.language == language and word in one.code]


def block(page: str, word: str, language: str) -> str:
    """Return the only block of a page with this word."""
    (only,) = blocks(page, word, language)
    return only.code


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"the page has no {old}"
        text = text.replace(old, new)
    return text


def in_root(code: str, root: Path) -> str:
    """Return a block with the files of the package and of /etc below a folder."""
    return re.sub(r"(?<![\w/.-])/(etc|usr/share/memwatchd)(?=[/ ])", rf"{root}/\1", code)


def follow(code: str, root: Path) -> None:
    """Run a block of shell commands for this folder."""
    script = f"set -euo pipefail\n{STUBS}{in_root(code, root)}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=clean_environment(HOME=str(root))
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def root(debian_tree: Path, tmp_path: Path) -> Path:
    """Return a folder with /usr/share of the package, and what Debian's other packages have in /etc."""
    folder = tmp_path / "root"
    (folder / "usr").mkdir(parents=True)
    (folder / "usr/share").symlink_to(debian_tree / "usr/share")
    for place in ("grafana/provisioning/dashboards", "grafana/provisioning/datasources", "prometheus", "default"):
        (folder / "etc" / place).mkdir(parents=True)
    (folder / "etc/default/grafana-server").write_text("GRAFANA_USER=grafana\nCONF_DIR=/etc/grafana\n")
    return folder


def test_grafana_finds_dashboards_and_prometheus_as_the_page_says(root: Path) -> None:
    """Grafana reads all files of provisioning, and replaces ${NAME} by a variable of its service.

    https://grafana.com/docs/grafana/v12.4/administration/provisioning/ has both rules and the names of the options.
    The unit of its package reads /etc/default/grafana-server.
    """
    follow(block("prometheus.md", "/etc/grafana/", "sh"), root)
    lines = (root / "etc/default/grafana-server").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    folder = root / "etc/grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/memwatch.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/memwatch.yml").read_text())["providers"]
    dashboards = Path(in_root(provider["options"]["path"] + "/", root))
    boards = [json.loads(one.read_text()) for one in sorted(dashboards.glob("*.json"))]

    assert "restart grafana-server" in (root / "systemctl").read_text()
    assert environment["GRAFANA_USER"] == "grafana"  # what was there is kept
    assert re.sub(r"\$\{(\w+)\}", lambda found: environment[found[1]], source["url"]) == "http://127.0.0.1:9090"
    assert (provider["type"], source["type"], source["isDefault"]) == ("file", "prometheus", True)
    assert {one["uid"] for one in boards} == {"memwatch-fleet", "memwatch-machine"}
    for board in boards:
        used = set(re.findall(r'"datasource": \{[^}]*"uid": "([^"]+)"', json.dumps(board)))
        (choice,) = [one for one in board["templating"]["list"] if one["type"] == "datasource"]
        # The variable has the default data source of its type: the provisioned one.
        assert used == {f"${{{choice['name']}}}"}
        assert choice["query"] == source["type"]
        assert "regex" not in choice or not choice["regex"]


@contextmanager
def packaged_daemon(
    debian_tree: Path, root: Path, machine: MutableMachine, config: str = ""
) -> Iterator[RunningDaemon]:
    """Run memwatchd of the package with the login of the page, the address of its links, and more settings."""
    folder = root / "etc/memwatchd"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    login = block("prometheus.md", "[web.auth]", "toml")
    web = replaced(login, {'listen = ["0.0.0.0:6360"]': f'url = "http://{NAME}:6360"'})
    program = f'shift; exec {debian_tree}/usr/lib/memwatchd/bin/python3 -I {debian_tree}/usr/bin/memwatchd "$@"'
    arguments = ("--interval", "200ms", *machine.arguments)
    through = ("sh", "-c", program, "sh")
    with running_daemon(folder, *arguments, config=in_root(web + config, root), through=through) as daemon:
        assert f"{debian_tree}/usr/bin/memwatchd".encode() in Path(f"/proc/{daemon.pid}/cmdline").read_bytes()
        yield daemon


def read_on_a_phone(chromium: SharedBrowser, link: str, daemon: RunningDaemon) -> str:
    """Open the link of a message on a phone that knows the machine's name; return the text of the page."""
    assert link.partition("/runbooks#")[0] == f"http://{NAME}:6360"
    resolver = f"--host-resolver-rules=MAP {NAME} 127.0.0.1:{daemon.port}"
    phone = chromium.beside(path_of("chromium-headless-shell"), (*screenshots.QUIET, resolver))
    login = {"username": "token", "password": TOKEN}
    try:
        with (
            phone.in_use(),
            opened(phone, link, viewport={"width": 390, "height": 844}, http_credentials=login) as page,
        ):
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            return page.inner_text("body")
    finally:
        phone.close()


def told(receiver: Site, word: bytes) -> dict[str, Any]:
    """Return the first delivery with this word."""
    wait_until(lambda: any(word in one.body for one in receiver.deliveries))
    body: dict[str, Any] = json.loads(next(one.body for one in receiver.deliveries if word in one.body))
    return body


def test_own_webhook_and_own_push_lead_to_a_page_on_a_phone(
    chromium: SharedBrowser, debian_tree: Path, root: Path, tmp_path: Path
) -> None:
    """With the page's receivers: a webhook, an Alertmanager with the packaged file, and a chat service."""
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    receivers = block("alerts.md", "[[alerts.apprise]]", "toml")
    made = re.findall(r"# (echo .+)$", receivers, re.MULTILINE)
    secret = root / "etc/memwatchd/webhook-secret"
    routes = Path(in_root("/usr/share/memwatchd/alertmanager/alertmanager.yml", root)).read_text()
    with receiving() as receiver, receiving() as pager, receiving() as chat:
        routes = replaced(routes, {"http://127.0.0.1:9095/alerts": pager.url})
        with alertmanager(tmp_path, routes) as manager:
            changes = {
                "https://example.org/hooks/memory": receiver.url,
                "http://alertmanager.example.org:9093": f"http://{manager.address}",
            }
            with packaged_daemon(debian_tree, root, machine) as daemon:
                for file, text in ((secret, None), (secret.with_name("apprise-url"), chat.url)):
                    done = subprocess.run(["bash", "-c", made[0]], capture_output=True, text=True, check=True)
                    file.write_text(done.stdout if text is None else text.replace("http://", "json://"))
                    file.chmod(0o600)
                settings = secret.with_name("memwatchd.toml")
                settings.write_text(settings.read_text() + in_root(replaced(receivers, changes), root))
                daemon.process.send_signal(signal.SIGHUP)
                daemon.wait_for_log("alerts.webhooks.operators")
                machine.use(0.97)
                hook, pushed = told(receiver, b"pressure.critical"), told(pager, b"MemoryCritical")
                told(chat, b"critical")
                seen = read_on_a_phone(chromium, hook["dashboard_url"], daemon)
                (alert,) = pushed["alerts"]
                runbook = read_on_a_phone(chromium, alert["annotations"]["runbook_url"], daemon)

    assert (hook["target"], hook["level"]) == ("ram", "critical")
    assert 0.96 < hook["values"]["ratio"] < 0.98
    assert hook["top"][0]["name"]
    assert_has_figure_and_holder(alert, r"largest processes: \S+ \(\d+\) [\d.]+ GiB")
    assert "System RAM" in seen
    assert "Critical" in seen or "CRITICAL" in seen
    assert "MemoryCritical" in runbook


def assert_has_figure_and_holder(alert: Mapping[str, Any], holder: str) -> None:
    assert alert["labels"]["alertname"] == "MemoryCritical"
    description = alert["annotations"]["description"]
    assert re.search(r"9[67](\.\d+)?% used", description), description
    assert re.search(holder, description), description


def test_rules_of_prometheus_lead_to_a_page_on_a_phone(
    chromium: SharedBrowser, debian_tree: Path, root: Path, tmp_path: Path
) -> None:
    """With the page's scrape, its rules and its Alertmanager. The rules keep their times."""
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    follow(block("prometheus.md", "/etc/prometheus/alertmanager.yml", "sh"), root)
    routes = (root / "etc/prometheus/alertmanager.yml").read_text()
    scrape = yaml.safe_load(block("prometheus.md", "memwatchd-token", "yaml"))
    rules = yaml.safe_load(in_root(block("prometheus.md", "rule_files", "yaml"), root))
    (root / "etc/prometheus/memwatchd-token").write_text(TOKEN)
    with (
        receiving() as pager,
        alertmanager(tmp_path, replaced(routes, {"http://127.0.0.1:9095/alerts": pager.url})) as manager,
        packaged_daemon(debian_tree, root, machine) as daemon,
    ):
        (job,) = scrape["scrape_configs"]
        job["authorization"]["credentials_file"] = f"{root}{job['authorization']['credentials_file']}"
        job["static_configs"] = [{"targets": [f"127.0.0.1:{daemon.port}"]}]
        rules["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [manager.address]}]}]
        text = json.dumps({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, **scrape, **rules})
        with prometheus(tmp_path, text) as server:
            server.wait_for('memwatch_pressure_level{target="ram"} < 3')
            server.wait_for("job:memwatch_pool_size_bytes:sum")
            machine.use(0.97)
            message = told(pager, b"MemoryCritical")
            (alert,) = message["alerts"]
            seen = read_on_a_phone(chromium, alert["annotations"]["runbook_url"], daemon)

    assert_has_figure_and_holder(alert, r"Largest holder: \S+")
    assert alert["labels"]["instance"] == f"127.0.0.1:{daemon.port}"
    assert "MemoryCritical" in seen
