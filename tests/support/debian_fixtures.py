"""The Debian package, built once in a run as `make deb` does, and unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.debian_package import DebianPackage, made_deb, make_deb, unpack
from support.once import make_once


@pytest.fixture(scope="session")
def debian_package(tmp_path_factory: pytest.TempPathFactory) -> DebianPackage:
    return made_deb(make_once(tmp_path_factory, "package", make_deb))


@pytest.fixture(scope="session")
def debian_tree(debian_package: DebianPackage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the package, and with the interpreter that it depends on."""
    return unpack(debian_package.file, tmp_path_factory.mktemp("root"))
