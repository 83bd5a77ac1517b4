"""deploy/pin-base.sh against a real registry on loopback, Debian's docker-registry: `make test-image`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from containers.images import DOCKERFILE, make_base
from containers.podman import Podman, execute
from support.daemon_process import get
from support.dead_address import dead_address
from support.free_ports import free_port
from support.paths import ROOT
from support.waiting import wait_until

SCRIPT = ROOT / "deploy/pin-base.sh"
CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: "{folder}"}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextmanager
def registry(folder: Path) -> Iterator[int]:
    port = free_port()
    config = folder / "registry.yml"
    config.write_text(CONFIG.format(folder=folder / "registry", port=port))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port))
        yield port
    finally:
        process.terminate()
        process.wait(20)


def answers(port: int) -> bool:
    try:
        return get(port, "/v2/").status == 200
    except OSError:
        return False


def dockerfile(folder: Path, image: str) -> Path:
    """Return a copy of the Dockerfile with its base from another registry."""
    file = folder / "Dockerfile"
    file.write_text(re.sub(r"(?m)^FROM \S+ AS base$", f"FROM {image} AS base", DOCKERFILE.read_text()))
    return file


def test_base_is_pinned_by_the_digest_that_the_registry_reports(podman: Podman, tmp_path: Path) -> None:
    """One line changes. The registry has a manifest of that digest; a second run replaces it by the same."""
    # skopeo reads it from the user's home.
    insecure = tmp_path / ".config/containers/registries.conf"
    insecure.parent.mkdir(parents=True)
    with registry(tmp_path) as port:
        image = f"127.0.0.1:{port}/debian:13.7-slim"
        insecure.write_text(f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n')
        podman.run("push", "--tls-verify=false", make_base(podman), f"docker://{image}")
        file = dockerfile(tmp_path, image)
        before = file.read_text()
        environ = {"HOME": str(tmp_path)}
        pinned = execute("sh", SCRIPT, file, environ=environ).stdout.strip()
        again = execute("sh", SCRIPT, file, environ=environ).stdout.strip()
        digest = pinned.partition("@")[2]
        accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        found = get(port, f"/v2/debian/manifests/{digest}", accept)

    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
    assert found.status == 200
    assert again == pinned
    assert file.read_text() == before.replace(f"FROM {image} ", f"FROM {pinned} ")


def test_dockerfile_stays_as_it_is_without_an_answer(tmp_path: Path) -> None:
    """No digest is invented where no registry answers."""
    file = dockerfile(tmp_path, f"{dead_address()}/debian:13.7-slim")
    before = file.read_text()

    done = execute("sh", SCRIPT, file, check=False)

    assert done.returncode == 1
    assert "reports no digest" in done.stderr
    assert file.read_text() == before
