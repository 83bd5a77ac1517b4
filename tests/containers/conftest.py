"""Session fixture: Podman with the images that the checks run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from containers import images
from containers.podman import RUN_FOLDER, Podman
from support.paths import ROOT


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    engine = Podman(ROOT / "out" / "containers")
    engine.configure()
    base = images.make_base(engine)
    images.build_ours(engine)
    images.build_prometheus(engine, base)
    yield engine
    engine.run("rm", "--all", "--force", "--volumes", check=False)
    shutil.rmtree(RUN_FOLDER, ignore_errors=True)
