"""The Ansible role, run by Debian's Ansible in a Debian container without systemd: `make test-image`.

The service's tasks are skipped there, as in a chroot that becomes an image; `make test-system` tests the service.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from containers.images import build, make_base
from containers.podman import Podman
from support.paths import ROOT

IMAGE = "memwatch-test/ansible:1"
DOCKERFILE = """\
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends ansible-core python3 python3-apt systemd
"""
NAME = "memwatchd-ansible"
DROP_INS = "/etc/systemd/system/memwatchd.service.d"


@pytest.fixture(scope="module")
def machine(podman: Podman) -> Iterator[Podman]:
    """A container with Ansible, the role, and the package of this checkout."""
    if not podman.has_image(IMAGE):
        context = podman.folder / "ansible"
        context.mkdir(exist_ok=True)
        (context / "Dockerfile").write_text(DOCKERFILE.format(base=make_base(podman)))
        build(podman, context / "Dockerfile", IMAGE, context)
    podman.run("rm", "--force", "--ignore", NAME)
    podman.run("run", "--detach", f"--name={NAME}", f"--volume={ROOT}:/src:ro", IMAGE, "sleep", "900")
    yield podman
    podman.run("rm", "--force", "--time=0", NAME, check=False)


def play(machine: Podman, **variables: object) -> tuple[int, str]:
    """Run the playbook; return its exit code and output."""
    package = max((ROOT / "dist").glob("memwatchd_*_amd64.deb"), key=lambda file: file.stat().st_mtime)
    given = {"memwatchd_package": f"/src/dist/{package.name}", **variables}
    here = ("--inventory", "localhost,", "--connection", "local", "--extra-vars", json.dumps(given))
    done = machine.run("exec", NAME, "ansible-playbook", *here, "/src/deploy/ansible/playbook.yml", check=False)
    return done.returncode, done.stdout + done.stderr


def read(machine: Podman, *words: str) -> str:
    return machine.run("exec", NAME, *words, check=False).stdout


def changed(output: str) -> int:
    (count,) = re.findall(r"changed=(\d+)", output)
    return int(count)


def test_role_installs_configures_and_changes_nothing_again(machine: Podman) -> None:
    """The package, a checked configuration, a token for root, a drop-in. A second run changes nothing."""
    token = "0123456789abcdef0123456789abcdef"
    settings = {
        "memwatchd_config": '[sampling]\ninterval = "2s"\n',
        "memwatchd_token": token,
        "memwatchd_drop_ins": ["network", "kernel-log"],
    }
    code, output = play(machine, **settings)
    again, second = play(machine, **settings)

    assert (code, again) == (0, 0), output + second
    assert changed(output) > 0
    assert changed(second) == 0, second
    assert "install ok installed" in read(machine, "dpkg", "--status", "memwatchd")
    assert "interval" in read(machine, "memwatchd", "--check-config", "--config", "/etc/memwatchd/memwatchd.toml")
    assert read(machine, "stat", "--format=%a %U", "/etc/memwatchd/token").split() == ["600", "root"]
    assert read(machine, "ls", DROP_INS).split() == ["kernel-log.conf", "network.conf"]
    assert token not in output + second
    assert "memwatchd.service" in read(machine, "ls", "/etc/systemd/system/multi-user.target.wants")


def test_configuration_with_a_mistake_is_not_written(machine: Podman) -> None:
    """The daemon's own check refuses it, and the file on the machine stays."""
    before = read(machine, "cat", "/etc/memwatchd/memwatchd.toml")
    code, output = play(machine, memwatchd_config='[sampling]\nintervall = "2s"\n')

    assert code != 0
    assert "intervall" in output
    assert read(machine, "cat", "/etc/memwatchd/memwatchd.toml") == before
