"""Test docker-compose.yml and the Dockerfile without a container engine; `make test-image` runs both."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from memwatch.build_info import BASE_VERSION
from scripts.golden import roots_arguments
from support.compose_schema import check_compose
from support.daemon_process import MEMWATCHD, clean_environment, running_daemon
from support.dockerfile import stages_of
from support.paths import ROOT
from support.prometheus_servers import Engine, prometheus, shipped
from support.waiting import wait_until

NEEDED_PROGRAMS = ("promtool", "prometheus")
TOKEN = "0123456789abcdef"
# The target of Compose's Prometheus.
INSTANCE = "memwatchd:6360"
BOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
VARIABLES = {"$job": "memwatchd", "$instance": INSTANCE, "$need": "1", "$__rate_interval": "5s", "$__range": "1m"}

COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
KERNEL_LOG: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "deploy/compose/kernel-log.yml").read_text())[
    "services"
]
OURS = [name for name in SERVICES if name.startswith("memwatchd")]
BUILD, FINAL = stages_of((ROOT / "deploy/Dockerfile").read_text())


def test_compose_is_valid_by_the_specification(tmp_path: Path) -> None:
    """The JSON schema of the Compose specification accepts it and refuses a misspelled key."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE.read_text().replace("read_only: true\n", "readonly: true\n", 1))

    assert check_compose(COMPOSE)[0] == 0
    assert check_compose(wrong)[0] == 1


def test_each_image_has_a_version() -> None:
    """No tag moves to another image."""
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
    assert {SERVICES[name]["image"] for name in OURS} == {f"memwatchd:{BASE_VERSION}"}
    assert all(re.fullmatch(r"debian:\d+\.\d+-slim(@sha256:[0-9a-f]{64})?", one.base) for one in (BUILD, FINAL))
    assert BUILD.base == FINAL.base


@pytest.mark.parametrize("name", SERVICES)
def test_each_container_is_confined(name: str) -> None:
    """Read-only root folder, one capability, ports on loopback only."""
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["SYS_PTRACE"] if name == "memwatchd-amd" else [])
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert all(port.startswith(("127.0.0.1:", "${AGENT_ADDRESS:-127.0.0.1}:")) for port in service["ports"])
    assert "docker.sock" not in str(service)


@pytest.mark.parametrize("name", OURS)
def test_kernel_log_and_locked_memory_need_no_capability(name: str) -> None:
    """A device that may only be read, and a limit. Without CAP_SYSLOG the kernel decides who may read its log."""
    service = SERVICES[name]

    assert "/dev/kmsg:/host/root/dev/kmsg:r" in service["devices"]
    assert service["ulimits"] == {"memlock": -1}
    assert service["mem_limit"]


@pytest.mark.parametrize("name", OURS)
def test_kernel_log_variant_adds_one_capability(name: str) -> None:
    """Docker gives a capability only to root, whose state cannot be in a folder of the image's user."""
    added = KERNEL_LOG[name]
    user = added.get("user", SERVICES[name].get("user"))
    state = {**SERVICES[name]["environment"], **added.get("environment", {})}["MEMWATCHD_STATE_DIR"]
    mounts = [one["target"] for one in (*SERVICES[name]["volumes"], *added.get("volumes", []))]

    assert added["cap_add"] == ["SYSLOG"]
    assert user == "0:64360"
    assert str(Path(state).parent) in mounts
    assert check_compose(ROOT / "deploy/compose/kernel-log.yml")[0] == 0


def test_each_container_has_a_health_check() -> None:
    """The check of memwatchd is part of its image."""
    assert FINAL.healthcheck
    assert all("healthcheck" in service for name, service in SERVICES.items() if name not in OURS)


@pytest.mark.parametrize("name", OURS)
def test_host_is_mounted_read_only(name: str) -> None:
    """/proc, /sys and the user database are mounted read-only at the configured paths."""
    service = SERVICES[name]
    environment = service["environment"]
    mounts = {one["target"]: one for one in service["volumes"] if one["type"] == "bind"}
    kept, _ = sorted(
        (one for one in service["volumes"] if one["type"] == "volume"), key=lambda one: str(one["source"])
    )

    assert all(one["read_only"] for one in mounts.values())
    assert environment["MEMWATCHD_STATE_DIR"].startswith(kept["target"] + "/")
    assert mounts[environment["MEMWATCHD_PROCFS"]]["source"] == "/proc"
    assert mounts[environment["MEMWATCHD_SYSFS"]]["source"] == "/sys"
    assert mounts[environment["MEMWATCHD_ROOTFS"] + "/etc/passwd"]["source"] == "/etc/passwd"


def test_settings_of_the_compose_file_reach_memwatchd(tmp_path: Path) -> None:
    """memwatchd accepts every variable of the image and of Compose."""
    given = {**FINAL.environment, **SERVICES["memwatchd"]["environment"]}
    given = {name: with_defaults(str(value)) for name, value in given.items()}
    host = tmp_path / "host"
    for folder in ("proc", "sys", "root"):
        (host / folder).mkdir(parents=True)
    given["MEMWATCHD_STATE_DIR"] = str(tmp_path / "state")
    (tmp_path / "token").write_text("0123456789abcdef")
    given["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"] = f"file:{tmp_path / 'token'}"
    ours = {name: str(value).replace("/host", str(host)) for name, value in given.items() if "MEMWATCHD_" in name}
    done = subprocess.run(
        [MEMWATCHD, "--check-config"], capture_output=True, text=True, env=clean_environment(**ours), check=False
    )

    assert done.returncode == 0, done.stderr
    assert "0.0.0.0:6360" in done.stdout
    assert f"{host}/proc" in done.stdout


def with_defaults(value: str) -> str:
    """Return a value of Compose where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_each_profile_has_one_memwatchd() -> None:
    """.env selects the profile. Each profile has one memwatchd, under the name that Prometheus scrapes."""
    profiles = [profile for name in OURS for profile in SERVICES[name]["profiles"]]
    scrape = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())["scrape_configs"]

    assert "\nCOMPOSE_PROFILES=host\n" in (ROOT / ".env").read_text()
    assert sorted(profiles) == ["amd", "host", "nvidia"]
    assert scrape[0]["static_configs"] == [{"targets": ["memwatchd:6360"]}]
    for name in OURS:
        assert SERVICES[name]["networks"]["default"]["aliases"] == ["memwatchd"]
        assert SERVICES[name]["environment"]["MEMWATCHD_WEB_HOSTS"] == "memwatchd"


def test_mounted_files_exist(tmp_path: Path) -> None:
    """Mounted paths of the repository exist, and promtool accepts the Prometheus configuration."""
    sources = [
        one.split(":")[0] for service in SERVICES.values() for one in service["volumes"] if isinstance(one, str)
    ]
    config = tmp_path / "prometheus.yml"
    token = tmp_path / "token"
    token.touch()
    config.write_text(shipped("compose/prometheus.yml", {"/var/lib/memwatchd-token/token": str(token)}))
    (tmp_path / "rules").symlink_to(ROOT / "deploy/prometheus/rules")

    assert [one for one in sources if one.startswith("./") and not (ROOT / one).exists()] == []
    checked = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def compose_prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Run Compose's Prometheus with its configuration and memwatchd with its environment.

    Names of the Compose network become addresses of this machine. Two scrapes are a minute of Compose's.
    """
    folder = tmp_path_factory.mktemp("compose")
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    given = SERVICES["memwatchd"]["environment"]
    environ = {name: with_defaults(value) for name, value in given.items() if name.startswith("MEMWATCHD_WEB_")}
    environ["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"] = f"file:{folder / 'token'}"
    with running_daemon(folder, *roots_arguments("three-makers-dmem"), environ=environ) as daemon:
        changes = {
            "/var/lib/memwatchd-token/token": str(folder / "token"),
            "rules/*.yml": f"{ROOT}/deploy/prometheus/rules/*.yml",
            '- targets: ["memwatchd:6360"]': (
                f'- {{targets: ["127.0.0.1:{daemon.port}"], labels: {{instance: "{INSTANCE}"}}}}'
            ),
            "alertmanager:9093": "127.0.0.1:1",
            "15s": "1s",
        }
        with prometheus(folder, shipped("compose/prometheus.yml", changes)) as server:
            server.wait_for("count_over_time(memwatch_build_info[1m]) > 2")
            yield server


def test_every_rule_of_compose_is_evaluated(compose_prometheus: Engine) -> None:
    """Prometheus has no error of a rule, and records each series that this machine has."""

    def rules() -> list[Any]:
        groups = compose_prometheus.ask("/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    # Slow groups are evaluated within their interval for the first time, so each is asked as well.
    wait_until(lambda: all(rule["health"] == "ok" for rule in rules() if rule["type"] == "recording"))
    found = rules()
    asked = [compose_prometheus.query(rule["query"]) for rule in found]

    assert len(asked) == len(found) >= 18
    assert {rule["lastError"] for rule in found if "lastError" in rule} == set()
    assert {rule["health"] for rule in found} <= {"ok", "unknown"}
    assert compose_prometheus.query(f'instance:memwatch_pool_size_bytes:sum{{instance="{INSTANCE}"}}')


@pytest.mark.parametrize("file", BOARDS, ids=[one.stem for one in BOARDS])
def test_every_dashboard_query_is_answered_by_compose(compose_prometheus: Engine, file: Path) -> None:
    """With the job and the instance of Compose. test_dashboards.py explains each empty panel of many machines."""
    board = json.loads(file.read_text())

    def ask(query: str) -> bool:
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        assert "$" not in query
        return bool(compose_prometheus.query(query))

    shown = [ask(target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]
    marks = [ask(one["expr"]) for one in board["annotations"]["list"]]

    assert sum(shown) > len(shown) / 2
    assert marks


def test_grafana_opens_the_memwatch_dashboard() -> None:
    """The home dashboard lies in the mounted folder that Grafana provisions."""
    grafana = SERVICES["grafana"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    mounts = dict(one.split(":")[1::-1] for one in grafana["volumes"])

    assert (ROOT / mounts[str(home.parent)] / home.name).is_file()
    assert mounts["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"


def test_image_has_description_labels() -> None:
    """Labels, a numeric user, the entry point and both architectures are set."""
    bake = json.loads((ROOT / "deploy/docker-bake.json").read_text())
    target = bake["target"]["memwatchd"]

    assert bake["variable"]["VERSION"]["default"] == BASE_VERSION
    assert FINAL.labels["org.opencontainers.image.version"] == BASE_VERSION
    assert FINAL.labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", FINAL.user)
    assert FINAL.entrypoint[-1] == "memwatchd"
    assert target["platforms"] == ["linux/amd64", "linux/arm64"]
    assert (ROOT / target["dockerfile"]).is_file()


def test_image_holds_only_files_that_it_needs() -> None:
    """The copied files are those that .dockerignore admits: no .git, no test machines."""
    copied = [words.split()[:-1] for stage in (BUILD, FINAL) for step, words in stage.steps if step == "COPY"]
    context = {one for words in copied if not words[0].startswith("--from") for one in words}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert context == allowed
    assert all(os.path.exists(ROOT / one) for one in context)
