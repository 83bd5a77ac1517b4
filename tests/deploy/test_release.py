"""`make release`: two equal builds from a clean commit, with checksums that can be verified, and a signature."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from closure import ROOT
from memwatch_build import read_base
from release import ReleaseError, compare, digests, sign, signing_command, write_sums
from support.daemon_process import clean_environment

NEEDED_PROGRAMS = ("git",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files of a release."""
    made = tmp_path / "release"
    made.mkdir()
    (made / "a.whl").write_bytes(b"wheel")
    (made / "b.deb").write_bytes(b"package")
    write_sums(made)
    return made


def test_checksums_are_those_that_sha256sum_verifies(folder: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"a.whl: OK\nb.deb: OK\n")

    (folder / "b.deb").write_bytes(b"another")
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize(("name", "data"), [("a.whl", b"other"), ("c.deb", b"new"), ("b.deb", None)])
def test_differing_builds_are_an_error_that_names_the_file(
    folder: Path, tmp_path: Path, name: str, data: bytes | None
) -> None:
    """Another content, another file, or a missing one."""
    other = shutil.copytree(folder, tmp_path / "other")
    compare(folder, other)

    if data is None:
        (other / name).unlink()
    else:
        (other / name).write_bytes(data)

    with pytest.raises(ReleaseError, match=f"two builds of the same commit differ in {re.escape(name)}: compare"):
        compare(folder, other)
    assert set(digests(folder)) == {"a.whl", "b.deb"}


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("untrusted comment: minisign encrypted secret key\n", "minisign"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "ssh-keygen"),
        (None, "gpg"),
    ],
)
def test_key_names_the_program_that_signs(tmp_path: Path, text: str | None, program: str) -> None:
    key = tmp_path / "key"
    if text is not None:
        key.write_text(text)

    command = signing_command(str(key), tmp_path / "SHA256SUMS")

    assert command[0] == program
    assert str(key) in command
    assert command[-1] == str(tmp_path / "SHA256SUMS")


def test_unusable_key_is_an_error_with_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = folder / "key"
    key.write_text("no key")
    with pytest.raises(ReleaseError, match=r"key is no key of minisign or SSH; name one of these, or"):
        sign(folder, str(key))

    key.write_text("untrusted comment: minisign\n")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ReleaseError, match="minisign is not installed, which this key needs; install it"):
        sign(folder, str(key))


@pytest.mark.long
def test_signature_of_an_ssh_key_is_verified(folder: Path, tmp_path: Path) -> None:
    """As docs/contributing/releases.md says. A changed file of sums fails."""
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sign(folder, str(key))
    allowed = tmp_path / "signers"
    allowed.write_text(f"memwatchd {key.with_suffix('.pub').read_text()}")
    command = ["ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", "memwatchd", "-n", "file"]
    command += ["-s", str(folder / "SHA256SUMS.sig")]
    sums = (folder / "SHA256SUMS").read_bytes()

    good = subprocess.run(command, input=sums, capture_output=True, check=False)
    bad = subprocess.run(command, input=sums + b"x", capture_output=True, check=False)

    assert good.returncode == 0, good.stderr
    assert bad.returncode != 0


@pytest.mark.long
def test_signature_of_a_gpg_key_is_verified(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    generate = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "test@localhost"]
    try:
        subprocess.run(generate, check=True)
        sign(folder, "test@localhost")
        verify = ["gpg", "--verify", str(folder / "SHA256SUMS.asc"), str(folder / "SHA256SUMS")]
        assert subprocess.run(verify, capture_output=True, check=False).returncode == 0
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=True)


def release(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/package/release.py", *arguments]
    paths = ":".join(str(checkout / name) for name in ("daemon", "web"))
    return subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, check=False, env=clean_environment(PYTHONPATH=paths)
    )


@pytest.mark.long
def test_release_of_a_commit_is_built_twice_and_complete(tmp_path: Path) -> None:
    """Without the packages, which test_deb.py builds twice: wheels, source distributions, context and checksums."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, checkout], check=True)
    base = read_base()
    subprocess.run(["git", "-C", checkout, "tag", "--force", f"v{base}"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)

    done = release(checkout, "--arch=none", f"--key={tmp_path / 'id'}")

    made = checkout / "dist" / f"memwatchd-{base}"
    assert (done.returncode, done.stdout) == (0, f"two equal builds: {made}\n"), done.stderr
    names = {
        *(f"{name}-{base}{end}" for name in ("memwatch", "memwatchd") for end in (".tar.gz", "-py3-none-any.whl")),
        *(f"memwatchd-{base}-image.tar.gz", "SHA256SUMS", "SHA256SUMS.sig"),
    }
    assert {one.name for one in made.iterdir()} == names
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=made, check=False)
    assert sums.returncode == 0
    with tarfile.open(made / f"memwatchd-{base}-image.tar.gz") as archive:
        listed = set(archive.getnames())
        dockerfile = archive.extractfile("deploy/Dockerfile")
        assert dockerfile is not None
        text = dockerfile.read().decode()
    commit = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert text.count(f"ARG VERSION={base}\n") == text.count(f"ARG REVISION={commit.stdout}") == 2
    assert {"pyproject.toml", "deploy/package/lock.txt", "web/memwatch_web/py.typed", ".dockerignore"} <= listed
    assert not [name for name in listed if name.startswith(("tests", "docs"))]


def test_checkout_with_changes_is_not_released(tmp_path: Path) -> None:
    """The files come from the commit, so that a change would be missing."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, checkout], check=True)
    (checkout / "new file").touch()

    done = release(checkout, "--arch=none")

    assert done.returncode == 1
    assert done.stderr == (
        "release: the checkout has changes, which a release would not contain: commit or stash them\n"
    )
    assert not (checkout / "dist").exists()
