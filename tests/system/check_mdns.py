"""Two services with the shipped unit and the drop-in mdns.conf find each other by mDNS."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from machine import Machine

ROOT = Path(__file__).parents[2]
HOME = Path("usr/lib/memwatchd")
DROP_INS = "usr/share/doc/memwatchd/drop-ins"
UNITS = "etc/systemd/system"
# An address of the loopback interface outside 127.0.0.0/8 counts as one that others can reach.
ADDRESS = "10.99.0.1"
LIBRARY = ("zeroconf", "ifaddr")
SETTINGS = "[Service]\nEnvironment=MEMWATCHD_WEB_INSECURE=true\nEnvironment=MEMWATCHD_WEB_LISTEN={address}:{port}\n"


def add_library(machine: Machine, folder: Path) -> None:
    """Add the extra mdns, which the package does not contain, to its environment."""
    python = machine.run("python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\")'").strip()
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={python}", f"--dest={folder}"]
    command += [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_17", "2014")]
    subprocess.run([*command, f"--constraint={ROOT / 'tests/constraints.txt'}", *LIBRARY], check=True)
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(machine.root / HOME / "wheels/mdns")
    with (machine.root / HOME / f"lib/python{python}/site-packages/memwatchd.pth").open("a") as paths:
        paths.write("../../../wheels/mdns\n")


def use_network(machine: Machine) -> None:
    """Let the loopback interface carry multicast, by the programs of this machine."""
    for command in (
        "link set lo up multicast on",
        f"addr replace {ADDRESS}/32 dev lo",
        "route replace 224.0.0.0/4 dev lo",
    ):
        subprocess.run(["nsenter", f"--target={machine.leader}", "--net", "ip", *command.split()], check=True)


def add_drop_in(machine: Machine, unit: str, name: str, text: str) -> None:
    folder = machine.root / UNITS / f"{unit}.service.d"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.fixture
def pair(installed: Machine, tmp_path: Path) -> Iterator[Machine]:
    """Run the service of the package, and another by the same unit, with its own port and folders."""
    add_library(installed, tmp_path)
    use_network(installed)
    shipped = (installed.root / "lib/systemd/system/memwatchd.service").read_text()
    other = shipped.replace("Directory=memwatchd", "Directory=memwatchd-b").replace("tcp:6360", "tcp:6361")
    (installed.root / UNITS).mkdir(parents=True, exist_ok=True)
    (installed.root / UNITS / "memwatchd-b.service").write_text(other)
    for unit, port in (("memwatchd", 6360), ("memwatchd-b", 6361)):
        add_drop_in(installed, unit, "mdns.conf", (installed.root / DROP_INS / "mdns.conf").read_text())
        add_drop_in(installed, unit, "test.conf", SETTINGS.format(address=ADDRESS, port=port))
    installed.run("systemctl daemon-reload; systemctl restart memwatchd memwatchd-b")
    yield installed
    installed.run(f"systemctl stop memwatchd-b; rm -r /{UNITS}/memwatchd.service.d /{UNITS}/memwatchd-b.*")
    installed.run("systemctl daemon-reload; systemctl restart memwatchd")
    installed.wait_until(installed.answers)


def finds(machine: Machine, port: int, url: str) -> bool:
    listed = machine.run(f"curl --silent http://{ADDRESS}:{port}/api/v1/machines", check=False)
    return [one["url"] for one in json.loads(listed or "[]") if one["state"] == "found"] == [url]


def test_services_with_the_drop_in_find_each_other(pair: Machine) -> None:
    for port, other in ((6360, 6361), (6361, 6360)):
        pair.wait_until(partial(finds, pair, port, f"http://{ADDRESS}:{other}"), 90)

    assert "mDNS failed" not in pair.run("journalctl --no-pager -o cat -u memwatchd -u memwatchd-b")


def test_service_without_the_right_of_the_drop_in_says_that_mdns_failed(pair: Machine) -> None:
    """The setting alone is not enough."""
    add_drop_in(pair, "memwatchd", "mdns.conf", "[Service]\nEnvironment=MEMWATCHD_DISCOVERY_MDNS=true\n")
    pair.run("systemctl daemon-reload; systemctl restart memwatchd")

    pair.wait_until(lambda: "mDNS failed, retrying" in pair.journal(), 60)
    assert pair.property_of("ActiveState") == "active"
