"""Test the unit files: hardening with reasons, restarts, drop-ins."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from memwatch.core.budget import KINDS
from memwatchd.settings.keys import TcpAddress, parse_address
from memwatchd.settings.web import Web
from memwatchd.sockets import MAX_DESCRIPTORS, OWNER_AND_GROUP
from memwatchd.systemd.serve import SOCKET_NAME
from support.paths import DEPLOY, SYSTEMD

NEEDED_PROGRAMS = ("systemd-analyze",)

UNIT = SYSTEMD / "memwatchd.service"
GUARDIAN = SYSTEMD / "memwatchd-guardian.service"
POSTINST = DEPLOY / "package/debian/postinst"
DROP_INS = sorted((SYSTEMD / "drop-ins").glob("*.conf"))
EXAMPLES = SYSTEMD / "examples"
# Keys of drop-ins that older versions of systemd ignore with a warning.
SINCE = {"FileDescriptorStorePreserve": 254, "OpenFile": 253}
# Restrictions. Each needs a reason above it, or above its paragraph.
HARDENING = re.compile(
    r"(SocketBind|Protect|Private|Restrict|NoNew|Capability|Ambient|SystemCall|Device|MemoryDeny|Lock|Remove)"
)


def keys_of(text: str) -> dict[str, list[str]]:
    found = defaultdict(list)
    for key, value in re.findall(r"^([A-Za-z]+)=(.*)$", text, re.MULTILINE):
        found[key].append(value)
    return found


def exposure(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_systemd_analyze_reports_low_exposure() -> None:
    """At most 1.7 of 10, and the figure that the unit file states."""
    done = exposure("--threshold=17", str(UNIT))

    assert done.returncode == 0, done.stdout
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert f"reports {score}." in UNIT.read_text()


def test_systemd_accepts_every_line(tmp_path: Path) -> None:
    """The unit, its slice and every drop-in have no unknown key and no invalid value."""
    unit = tmp_path / "memwatchd.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/memwatchd", "/bin/true"))
    (tmp_path / "memwatchd.slice").write_text((SYSTEMD / "memwatchd.slice").read_text())
    folder = tmp_path / "memwatchd.service.d"
    folder.mkdir()
    for drop_in in DROP_INS:
        (folder / drop_in.name).write_text(drop_in.read_text())

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    complaints = [line for line in done.stderr.splitlines() if "memwatchd" in line and "is transient" not in line]
    assert [line for line in complaints if not any(key in line for key in newer_keys())] == [], done.stderr


def newer_keys() -> list[str]:
    """Return the keys that this systemd does not know."""
    done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True)
    version = int(done.stdout.split()[1])
    return [f"'{key}'" for key, since in SINCE.items() if version < since]


def verify(unit: Path) -> list[str]:
    """Return the complaints of systemd-analyze about a unit and its drop-ins."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stderr.splitlines() if unit.stem in line and "is transient" not in line]


def test_guardian_without_capabilities_may_open_the_socket_file_of_the_daemon() -> None:
    """The file is for its owner and its group, and only CAP_DAC_OVERRIDE would let root in as well."""
    guardian, daemon = keys_of(GUARDIAN.read_text()), keys_of(UNIT.read_text())

    assert OWNER_AND_GROUP == 0o660
    assert guardian["CapabilityBoundingSet"] == ["CAP_KILL"]
    assert guardian["SupplementaryGroups"] == daemon["Group"]


def test_unit_of_the_guardian_is_valid_and_hardened(tmp_path: Path) -> None:
    """It may send signals, and is not started by the package."""
    text = GUARDIAN.read_text()
    unit = tmp_path / GUARDIAN.name
    unit.write_text(text.replace("/usr/bin/memwatchd-guardian", "/bin/true"))
    (tmp_path / "memwatchd.slice").write_text((SYSTEMD / "memwatchd.slice").read_text())
    (tmp_path / "memwatchd.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = exposure("--threshold=20", str(GUARDIAN))
    keys = keys_of(text)

    assert verify(unit) == []
    assert done.returncode == 0, done.stdout
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert f"reports {score}." in text
    assert (keys["CapabilityBoundingSet"], keys["NoNewPrivileges"]) == (["CAP_KILL"], ["yes"])
    assert (keys["OOMScoreAdjust"], keys["Slice"]) == (["-900"], ["memwatchd.slice"])
    assert keys["ReadWritePaths"] == []
    assert "memwatchd-guardian" not in re.sub("try-restart memwatchd-guardian", "", POSTINST.read_text())


def test_socket_unit_of_the_prekill_hook_is_valid(tmp_path: Path) -> None:
    """It passes the socket under the name that memwatchd expects, in the folder of oomd.conf(5)."""
    unit = EXAMPLES / "memwatchd-oomd.socket"
    keys = keys_of(unit.read_text())
    (tmp_path / "memwatchd.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / unit.name).write_text(unit.read_text())

    assert verify(tmp_path / unit.name) == []
    assert keys["FileDescriptorName"] == [SOCKET_NAME]
    assert keys["ListenStream"] == ["/run/systemd/oomd.prekill.hook/memwatchd"]
    assert keys["SocketMode"] == ["0600"]


def test_drop_in_of_a_client_is_valid(tmp_path: Path) -> None:
    """It names a socket that memwatchd opens on each machine, in the RuntimeDirectory= of its unit."""
    text = (EXAMPLES / "memory-pressure.conf").read_text()
    (tmp_path / "client.service.d").mkdir()
    (tmp_path / "client.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "client.service.d/memory-pressure.conf").write_text(text)
    folder = keys_of(UNIT.read_text())["RuntimeDirectory"][0]

    assert verify(tmp_path / "client.service") == []
    assert keys_of(text)["Environment"] == [f"MEMORY_PRESSURE_WATCH=/run/{folder}/pressure-ram-high.sock"]


def test_store_of_the_drop_in_holds_all_clients() -> None:
    """A connection that systemd does not keep would end with each restart."""
    keys = keys_of((SYSTEMD / "drop-ins/pressure-sockets.conf").read_text())

    assert keys["FileDescriptorStoreMax"] == [str(KINDS["pressure_clients"].most)]
    assert KINDS["pressure_clients"].most < MAX_DESCRIPTORS


@pytest.mark.parametrize("unit", [UNIT, GUARDIAN], ids=lambda unit: unit.stem)
def test_every_restriction_has_a_comment(unit: Path) -> None:
    """Every paragraph of hardening begins with a comment."""
    commented = False
    for line in unit.read_text().partition("[Service]")[2].splitlines():
        if not line:
            commented = False
        elif line.startswith("#"):
            commented = True
        elif HARDENING.match(line):
            assert commented, line


def test_service_restarts_except_after_a_configuration_error() -> None:
    """Readiness, watchdog and endless restarts are set, except for exit code 78."""
    keys = keys_of(UNIT.read_text())

    wanted = {
        "Type": "notify",
        "Restart": "always",
        "StartLimitIntervalSec": "0",
        "RestartPreventExitStatus": "78",
        "OOMPolicy": "continue",
        "OOMScoreAdjust": "-900",
        "Slice": "memwatchd.slice",
    }
    assert {key: keys[key] for key in wanted} == {key: [value] for key, value in wanted.items()}
    assert int(keys["WatchdogSec"][0]) >= 30
    assert "MemoryMin" in keys_of((SYSTEMD / "memwatchd.slice").read_text())


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_each_drop_in_describes_its_rights(drop_in: Path) -> None:
    """The reason comes first, then valid lines."""
    text = drop_in.read_text()

    assert text.startswith("# ")
    assert "[Service]" in text
    assert set(keys_of(text)) <= {
        "LoadCredential",
        "SetCredential",
        "BindReadOnlyPaths",
        "Environment",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
        "DeviceAllow",
        "SupplementaryGroups",
        "ProtectKernelLogs",
        "RestrictAddressFamilies",
        "SocketBindAllow",
        "Sockets",
        "FileDescriptorStoreMax",
        "FileDescriptorStorePreserve",
    }


@pytest.mark.parametrize(
    ("drop_in", "capability"),
    [
        ("kernel-log", ["CAP_SYSLOG"]),
        ("processes-in-full", ["CAP_SYS_PTRACE"]),
        ("jetson", []),
        ("amd", []),
        ("journal", []),
    ],
)
def test_no_drop_in_may_read_files_of_other_users(drop_in: str, capability: list[str]) -> None:
    """No drop-in adds CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE."""
    keys = keys_of((SYSTEMD / "drop-ins" / f"{drop_in}.conf").read_text())

    assert keys.get("CapabilityBoundingSet", []) == keys.get("AmbientCapabilities", []) == capability


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_no_drop_in_needs_a_file_that_may_be_missing(drop_in: Path) -> None:
    """systemd refuses to start a unit whose credential cannot be read, unless there is another value for it."""
    keys = keys_of(drop_in.read_text())
    loaded = {one.partition(":")[0] for one in keys.get("LoadCredential", [])}

    assert loaded == {one.partition(":")[0] for one in keys.get("SetCredential", [])}


def test_jetson_drop_in_does_not_raise_the_exposure(tmp_path: Path) -> None:
    """systemd reports the same exposure with the drop-in as without it."""
    unit = tmp_path / "memwatchd.service"
    unit.write_text(UNIT.read_text() + (SYSTEMD / "drop-ins/jetson.conf").read_text())
    scores = [
        re.findall(r"Overall exposure level for \S+: ([0-9.]+)", exposure(str(one)).stdout) for one in (UNIT, unit)
    ]

    assert scores[0] == scores[1] != []


def test_only_the_default_port_may_be_bound() -> None:
    """Every address of the default settings and of the network drop-in uses the port that the unit allows."""
    keys = keys_of(UNIT.read_text())
    network = keys_of((SYSTEMD / "drop-ins/network.conf").read_text())
    (listen,) = (one for one in network["Environment"] if one.startswith("MEMWATCHD_WEB_LISTEN="))
    dropped_in = [parse_address(word) for word in listen.partition("=")[2].split(",")]
    ports = {one.port for one in (*Web().listen, *dropped_in) if isinstance(one, TcpAddress)}

    assert keys["SocketBindDeny"] == ["any"]
    assert keys["SocketBindAllow"] == [f"tcp:{port}" for port in ports]


def test_network_drop_in_requires_a_login() -> None:
    """The example for network access needs a token."""
    text = (SYSTEMD / "drop-ins" / "network.conf").read_text()

    assert "MEMWATCHD_WEB_AUTH_BEARER_TOKEN=credential:token" in text
    assert "LoadCredential=token:" in text
