"""Images of the tests: the base from debootstrap, the image of deploy/Dockerfile, and a Prometheus.

No registry is used. debootstrap makes the release of Debian's own image from the same archive, and the result is
tagged with the name in FROM. The Dockerfile is built unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import yaml

from containers.podman import Podman, execute
from memwatch.build_info import BASE_VERSION
from support.dockerfile import stages_of
from support.paths import ROOT

DOCKERFILE = ROOT / "deploy/Dockerfile"
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = f"memwatchd:{BASE_VERSION}"
RELEASES = {"12": "bookworm", "13": "trixie"}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATES_INSIDE = "/run/certificates-of-this-machine.crt"
# Debian's Prometheus under the name in docker-compose.yml: the same program and options, another version.
PROMETHEUS = """\
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus wget \\
    && rm -rf /var/lib/apt/lists/* && install --directory --owner=65534 /prometheus
USER 65534
ENTRYPOINT ["/usr/bin/prometheus"]
"""


def make_base(podman: Podman) -> str:
    """Import Debian's base system under the name in FROM, unless that was done before."""
    (name,) = {stage.base for stage in stages_of(DOCKERFILE.read_text())}
    base = f"docker.io/library/{name.partition('@')[0]}"
    if not podman.has_image(base):
        release = RELEASES[base.partition(":")[2].partition(".")[0]]
        root = podman.folder / release
        shutil.rmtree(root, ignore_errors=True)
        execute("debootstrap", "--variant=minbase", release, root)
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
            podman.run("import", "-", base, stdin=packed.stdout)
        assert packed.returncode == 0
        shutil.rmtree(root)
    return base


def build(podman: Podman, file: Path, tag: str, context: Path) -> None:
    """Build an image. This machine's access to the package registries is mounted, and not part of the image.

    `--isolation=chroot` needs neither namespaces nor cgroups. `--format=docker` keeps HEALTHCHECK.
    """
    config = podman.folder / "pip.conf"
    config.write_text(pip_configuration())
    mounts = [f"--volume={config}:/etc/pip.conf:ro", f"--volume={CERTIFICATES}:{CERTIFICATES_INSIDE}:ro"]
    podman.run("build", "--format=docker", "--isolation=chroot", "--pull=never", *mounts,
               "--file", file, "--tag", tag, context)  # fmt: skip


def pip_configuration() -> str:
    """Return pip's settings of this machine's environment. A folder of wheels is not mounted."""
    names = {"PIP_INDEX_URL": "index-url", "PIP_EXTRA_INDEX_URL": "extra-index-url", "PIP_PROXY": "proxy"}
    given = {option: os.environ[name] for name, option in names.items() if os.environ.get(name)}
    return "[global]\n" + "".join(
        f"{key} = {value}\n" for key, value in {"cert": CERTIFICATES_INSIDE, **given}.items()
    )


def build_ours(podman: Podman) -> None:
    build(podman, DOCKERFILE, OURS, ROOT)


def build_prometheus(podman: Podman, base: str) -> None:
    name = f"docker.io/{SERVICES['prometheus']['image']}"
    if not podman.has_image(name):
        context = podman.folder / "prometheus"
        context.mkdir(exist_ok=True)
        file = context / "Dockerfile"
        file.write_text(PROMETHEUS.format(base=base))
        build(podman, file, name, context)
