"""Build backend of memwatchd: hatchling, which is told the kind of build. build_metadata.py uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hatchling import build as hatchling
from hatchling.build import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

KIND = "MEMWATCHD_BUILD"
Options = dict[str, Any] | None


@contextmanager
def kind_of_build(kind: str) -> Iterator[None]:
    os.environ[KIND] = kind
    try:
        yield
    finally:
        del os.environ[KIND]


def build_sdist(sdist_directory: str, config_settings: Options = None) -> str:
    with kind_of_build("sdist"):
        return hatchling.build_sdist(sdist_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Options = None, metadata_directory: str | None = None
) -> str:
    with kind_of_build("wheel"):
        return hatchling.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Options = None, metadata_directory: str | None = None
) -> str:
    with kind_of_build("editable"):
        return hatchling.build_editable(wheel_directory, config_settings, metadata_directory)
