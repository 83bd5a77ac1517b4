"""The locks of the Debian package and the image: what pyproject.toml asks for, as tested, for each target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from closure import BUILD_LOCK, CONSTRAINTS, LOCK, MACHINES, PYTHONS, ROOT, build_environment, locked_for, read_lock
from lock import build_requirements, runtime_requirements
from support.requirements import DAEMON, LIBRARY, extras_of, required_by

TARGETS = [
    pytest.param(build_environment(python, machine), id=f"{python}-{machine}")
    for python in PYTHONS
    for machine in MACHINES.values()
]
# For `memwatch backends`, `memwatch mcp`, `memwatch mqtt`, [otlp] and mDNS only, and for systems other than Linux.
NOT_INCLUDED = {
    "pyopencl",
    "mcp",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-http",
    "paho-mqtt",
    "requests",
    "psutil",
    "zeroconf",
}


def needed_in(environment: Mapping[str, str]) -> Iterator[Requirement]:
    """Yield the requirements of both packages and of the extras for passwords, chat and mail."""
    for text in (*required_by(DAEMON), *required_by(LIBRARY)):
        one = Requirement(text)
        if one.name not in NOT_INCLUDED and (one.marker is None or one.marker.evaluate(dict(environment))):
            yield one


@pytest.mark.parametrize("environment", TARGETS)
def test_lock_satisfies_the_requirements(environment: dict[str, str]) -> None:
    """Exactly one version of each package, which pyproject.toml allows and the tests use."""
    locked = locked_for(environment)
    versions = {one.name: one.version for one in locked}
    tested = {one.name: one.version for one in locked_for(environment, CONSTRAINTS)}

    wanted = list(needed_in(environment))
    assert {"fastapi", "msgspec", "bcrypt", "apprise"} <= {one.name for one in wanted}
    for one in wanted:
        assert versions[canonicalize_name(one.name)] in one.specifier
    assert len(versions) == len(locked)
    assert {name: tested.get(name) for name in versions} == versions


@pytest.mark.parametrize("environment", TARGETS)
def test_lock_is_complete(environment: dict[str, str]) -> None:
    """Each locked package finds its own requirements in the lock: pip gets them with --no-deps."""
    versions = {one.name: one.version for one in locked_for(environment)}
    for name in versions:
        try:
            texts = requires(name) or []
        except PackageNotFoundError:  # for other Pythons than the one that runs this
            continue
        for text in texts:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({**environment, "extra": ""}):
                assert canonicalize_name(one.name) in versions, f"{name} needs {one}"


def test_lock_has_hashes_and_names_no_registry() -> None:
    for path in (LOCK, BUILD_LOCK):
        entries, text = list(read_lock(path)), path.read_text()

        assert entries
        assert all(one.hashes and all(re.fullmatch("[0-9a-f]{64}", each) for each in one.hashes) for one in entries)
        assert "://" not in text
        assert "--index" not in text
        assert "--find-links" not in text


def test_locks_are_written_from_pyproject() -> None:
    """`make lock` has no list of packages: its own is the one of both projects, except the extras left out."""
    left_out = {text for path in (DAEMON, LIBRARY) for text in extras_of(path)} - set(runtime_requirements())

    assert {Requirement(text).name for text in left_out} == NOT_INCLUDED - {"psutil"}
    assert set(runtime_requirements()) >= {*required_by(DAEMON), *required_by(LIBRARY)} - left_out
    versions = {one.name: one.version for one in read_lock(BUILD_LOCK)}
    assert all(versions[one.name] in one.specifier for one in map(Requirement, build_requirements()))


def test_wheel_is_built_with_the_jinja2_that_is_installed() -> None:
    """Templates that another version compiled would be compiled again by the first page."""
    built, installed = (
        {one.version for one in read_lock(path) if one.name == "jinja2"} for path in (BUILD_LOCK, LOCK)
    )

    assert built == installed != set()


def test_image_installs_only_what_is_locked() -> None:
    """Every installation from an index checks hashes; that of our own wheels uses no index."""
    text = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
    commands = [part for part in re.split(r"&&|\n", text) if re.search(r"\bpip (install|wheel|download)\b", part)]

    assert len(commands) >= 3
    for command in commands:
        is_offline = "--no-index" in command or ("pip wheel" in command and "--no-build-isolation" in command)
        assert "--require-hashes" in command or is_offline, command
        assert "--require-hashes" in command or "--no-deps" in command, command
