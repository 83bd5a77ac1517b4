"""The Debian package, built once for the tests that use it as `make deb` does, and unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.debian_package import DebianPackage, make_deb, unpack


@pytest.fixture(scope="session")
def debian_package(tmp_path_factory: pytest.TempPathFactory) -> DebianPackage:
    return make_deb(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def debian_tree(debian_package: DebianPackage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the package, and with the interpreter that it depends on."""
    return unpack(debian_package.file, tmp_path_factory.mktemp("root"))
