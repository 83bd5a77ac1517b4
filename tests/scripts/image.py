"""Build the image without a container engine: run each step of deploy/Dockerfile in a chroot, then the container.

The base is debootstrap's Debian of the release in FROM, the origin of Debian's image as well. The result runs as
the image's user, on a read-only root folder, with the mounts and the environment of docker-compose.yml, until its
health check succeeds and it reports this machine's memory. Needs root; takes 3 minutes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.daemon_process import get
from support.dockerfile import Stage, stages_of
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

RELEASES = {"12": "bookworm", "13": "trixie"}
MIB = 1 << 20
MAX_SECONDS = 900
CERTIFICATES = "/run/certificates-of-this-machine.crt"


def report(text: str) -> None:
    print(f"== {text}", flush=True)


def run(*command: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, text=True, timeout=MAX_SECONDS, **more)


def base_of(stage: Stage, scratch: Path) -> Path:
    """Return Debian's base system, created once."""
    name, _, tag = stage.base.partition(":")
    assert name == "debian", f"{stage.base}: only Debian's base is supported"
    release = RELEASES[tag.partition(".")[0]]
    folder = scratch / release
    if not folder.exists():
        report(f"debootstrap {release}")
        run("debootstrap", "--variant=minbase", release, folder, stdout=subprocess.DEVNULL)
    return folder


@contextmanager
def mounted(*mounts: tuple[str, Path, str]) -> Iterator[None]:
    """Bind-mount folders or files, and unmount them in any case."""
    with ExitStack() as stack:
        for source, target, options in mounts:
            if Path(source).is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            run("mount", "--rbind" if source in ("/proc", "/sys", "/dev") else "--bind", source, target)
            stack.callback(run, "umount", "--recursive", "--lazy", target)
            if options == "ro":
                run("mount", "-o", "remount,bind,ro", target)
        yield


def registry_access() -> dict[str, str]:
    """Return the access to package registries: the only thing that a build takes from its environment."""
    names = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    return {name: value for name, value in os.environ.items() if name.startswith(names)} | {
        "PIP_CERT": CERTIFICATES
    }


def with_network(root: Path) -> list[tuple[str, Path, str]]:
    places = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/apt/apt.conf.d")
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    found = [(place, root / place.lstrip("/"), "ro") for place in (*places, *links) if Path(place).is_absolute()]
    found = [one for one in found if Path(one[0]).exists()]
    certificates = ("/etc/ssl/certs/ca-certificates.crt", root / CERTIFICATES.lstrip("/"), "ro")
    return [("/proc", root / "proc", ""), ("/dev", root / "dev", ""), certificates, *found]


def build(stages: Sequence[Stage], scratch: Path) -> Path:
    """Build all stages; return the root folder of the last one."""
    folders: dict[str, Path] = {}
    for stage in stages:
        root = folders[stage.name] = scratch / f"stage-{stage.name or 'final'}"
        shutil.rmtree(root, ignore_errors=True)
        run("cp", "--archive", "--reflink=auto", base_of(stage, scratch), root)
        place = "/"
        for word, rest in stage.steps:
            report(f"{word} {rest}")
            if word == "WORKDIR":
                place = rest
                (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                copy(rest, root, root / place.lstrip("/"), folders)
            else:
                with mounted(*with_network(root)):
                    script = f"cd {shlex.quote(place)} && {rest}"
                    environment = {
                        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                        **registry_access(),
                        **stage.environment,
                    }
                    run("chroot", root, "/bin/sh", "-c", script, env=environment, stdout=subprocess.DEVNULL)
    return folders[stages[-1].name]


def copy(words: str, root: Path, here: Path, folders: Mapping[str, Path]) -> None:
    """Copy from the context, which has only what .dockerignore excepts, or from a stage."""
    *sources, target = words.split()
    origin = ROOT
    if sources[0].startswith("--from="):
        origin = folders[sources.pop(0).removeprefix("--from=")]
    else:
        allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        assert set(sources) <= set(allowed), f"{sources}: not in the context"
    goal = root / target.lstrip("/") if target.startswith("/") else here / target
    for source in sources:
        found = origin / source.lstrip("/")
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(found, goal, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy2(found, goal)


def sizes(root: Path) -> dict[str, float]:
    def size(folder: Path) -> float:
        done = run("du", "--summarize", "--bytes", "--one-file-system", folder, capture_output=True)
        return int(done.stdout.split()[0]) / MIB

    return {"whole image": size(root), "memwatchd and its dependencies": size(root / "opt/memwatchd")}


def live(stage: Stage, root: Path) -> dict[str, Any]:
    """Start the container as docker-compose.yml does, wait for its health check, read its API, and stop it."""
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["memwatchd"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    binds = [
        (one["source"], root / one["target"].lstrip("/"), "ro")
        for one in service["volumes"]
        if one["type"] == "bind"
    ]
    # A new volume has the image's content of that folder.
    folders = [root / one["target"].lstrip("/") for one in service["volumes"] if one["type"] == "volume"]
    volumes = [(str(one), one, "") for one in folders]
    environment = stage.environment | {name: str(value) for name, value in service["environment"].items()}
    user, _, group = stage.user.partition(":")
    confined = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    inside = ["chroot", str(root), *confined, "--bounding-set=-all", "--inh-caps=-all"]
    for _, target, _ in binds:
        target.parent.mkdir(parents=True, exist_ok=True)
    with mounted((str(root), root, ""), *volumes, ("/proc", root / "proc", ""), *binds):
        run("mount", "-o", "remount,bind,ro", root)
        return watch(inside, stage, environment)


def watch(inside: Sequence[str], stage: Stage, environment: Mapping[str, str]) -> dict[str, Any]:
    process = subprocess.Popen([*inside, *stage.entrypoint], env=dict(environment), start_new_session=True)
    try:
        until = time.monotonic() + MAX_WAIT_SECONDS
        while subprocess.run([*inside, *stage.healthcheck], env=environment, capture_output=True).returncode:
            assert process.poll() is None, f"it exited with {process.returncode}"
            assert time.monotonic() < until, "its health check does not succeed"
            time.sleep(0.5)
        status = Path(f"/proc/{process.pid}/status").read_text()
        file = environment["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"].removeprefix("file:")
        token = run(*inside, "cat", file, capture_output=True).stdout
        anonymous = get(6360, "/api/v1/snapshot").status
        login = {"Host": "memwatchd:6360", "Authorization": f"Bearer {token}"}
        snapshot = get(6360, "/api/v1/snapshot", login).json
    finally:
        process.terminate()
        code = process.wait(MAX_WAIT_SECONDS)
    has_state = (
        subprocess.run([*inside, "ls", environment["MEMWATCHD_STATE_DIR"]], capture_output=True).stdout != b""
    )
    written = subprocess.run([*inside, "touch", "/opt/memwatchd/x", "/tmp/x"], env=environment, capture_output=True)
    return {
        "snapshot": snapshot,
        "anonymous": anonymous,
        "status": status,
        "code": code,
        "error": written.stderr.decode(),
        "has_state": has_state,
    }


def complaints_about(found: Mapping[str, Any]) -> list[str]:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    snapshot = found["snapshot"]
    (ram,) = (pool for pool in snapshot["pools"] if pool["kind"] == "system_ram")
    checks = {
        f"System RAM is {ram['size_bytes']}, and not this machine's {total}": ram["size_bytes"] == total,
        f"without its token it answers {found['anonymous']}": found["anonymous"] == 401,
        "it keeps no history": found["has_state"],
        "it sees no processes": len(snapshot["processes"]) > 1,
        "it does not run as the image's user": "Uid:\t64360\t64360" in found["status"],
        "it has capabilities": "CapEff:\t0000000000000000" in found["status"],
        f"SIGTERM ended it with {found['code']}": found["code"] == 0,
        "its root folder can be written": found["error"].count("Read-only file system") == 2,
    }
    return [text for text, is_well in checks.items() if not is_well]


def wheels_for(machine: str, root: Path, scratch: Path) -> int:
    """Download the image's packages for another architecture; a dependency without a wheel there is an error."""
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    listed = run("chroot", root, "/opt/memwatchd/bin/python3", "-c", code, capture_output=True).stdout.split()
    wanted = [one for one in listed if not one.startswith("memwatchd==")]
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 28, 34)]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--python-version=3.13", *platforms, f"--dest={folder}", *wanted)  # fmt: skip
        return len(list(Path(folder).iterdir()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path, help="folder for root folders; base systems are kept there")
    scratch = parser.parse_args().scratch.absolute()
    if os.geteuid() != 0:
        print("This mounts and changes root folders. Run it as root: sudo make test-image", file=sys.stderr)
        return 2
    if "MEMWATCH_UNSHARED" not in os.environ:
        # In a private mount namespace our mounts are invisible to others, and end with this process in any case.
        os.environ["MEMWATCH_UNSHARED"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    scratch.mkdir(parents=True, exist_ok=True)
    stages = stages_of((ROOT / "deploy/Dockerfile").read_text())
    root = build(stages, scratch)
    for part, mib in sizes(root).items():
        report(f"{part}: {mib:.0f} MiB")
    report(f"{wheels_for('aarch64', root, scratch)} wheels exist for aarch64 as well")
    complaints = complaints_about(live(stages[-1], root))
    report(
        "\n".join(complaints) or "the image builds, runs confined, is healthy, and reports this machine's memory"
    )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
