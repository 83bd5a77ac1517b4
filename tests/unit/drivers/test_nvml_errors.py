"""Test the names of NVML's return codes: those of NVIDIA's own binding."""

from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from memwatch.core.drivers.nvml.records import Code, NvmlError, build_failure, name_of

OFFICIAL = {getattr(pynvml, name): name for name in dir(pynvml) if name.startswith("NVML_ERROR_")}


def test_each_code_has_the_name_that_nvml_gives_it() -> None:
    assert {code: name_of(code) for code in Code} == OFFICIAL


@pytest.mark.parametrize(("code", "name"), [(3, "NVML_ERROR_NOT_SUPPORTED"), (4711, "NVML error 4711")])
def test_unknown_code_is_shown_as_a_number(code: int, name: str) -> None:
    assert name_of(code) == str(NvmlError(code)) == name


def test_failure_names_its_code() -> None:
    assert build_failure(Code.DRIVER_NOT_LOADED).text.endswith("(NVML_ERROR_DRIVER_NOT_LOADED)")
