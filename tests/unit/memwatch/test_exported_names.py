"""Names of `import memwatch` and `memwatch.training`, which are loaded on first use."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import memwatch
from memwatch import training

# design.md names these as functions of `memwatch`, wherever they are.
CONTRACT = """
machine is_unified_memory_gpu get_device_memory_bytes log_memory_usage MemoryProfiler track AllocationTracker guard
on_pressure retry_on_oom recommended_env advise estimate_inference_memory estimate_kv_cache discover_backends
best_available_backend select_backend_for
"""


def seen_by_type_checkers(module: ModuleType) -> dict[str, str]:
    """Return the names in the block for type checkers, each with the module that it is imported from."""
    (block,) = (one for one in ast.parse(Path(str(module.__file__)).read_text()).body if isinstance(one, ast.If))
    return {
        str(alias.asname): str(one.module)
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
    }


@pytest.mark.parametrize("module", [memwatch, training])
def test_each_name_exists_and_no_other_is_listed(module: ModuleType) -> None:
    assert set(module.__all__) == set(module._MODULE_OF)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(dir(module)) - {"training"} == set(module.__all__)


def test_type_checkers_see_every_name_that_is_loaded_on_first_use() -> None:
    """Type checkers have a separate list, which must name the modules that the names are loaded from."""
    assert seen_by_type_checkers(training) == training._MODULE_OF
    of_training = dict.fromkeys(training.__all__, "memwatch.training")
    assert seen_by_type_checkers(memwatch) == {**of_training, **memwatch._MODULE_OF}


def test_each_name_of_training_is_one_of_memwatch_and_listed_only_if_the_contract_has_it() -> None:
    assert [name for name in training.__all__ if getattr(memwatch, name) is not getattr(training, name)] == []
    assert set(training.__all__) & set(memwatch.__all__) == set(training.__all__) & set(CONTRACT.split())
    assert set(CONTRACT.split()) <= set(memwatch.__all__)


@pytest.mark.parametrize("module", [memwatch, training])
def test_unknown_name_is_an_attribute_error_that_names_the_module(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'block_swaps'"):
        _ = module.block_swaps
