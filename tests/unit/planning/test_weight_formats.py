"""Test the tables of formats: bits of a weight as the projects that define them state, not bytes of blocks."""

from __future__ import annotations

import re

import pytest

from memwatch.planning.gguf import BLOCKS
from memwatch.planning.safetensors import BITS

# ggml_type by number, with the bits of a weight that llama.cpp prints ("bpw").
GGML = {
    0: ("F32", 32), 1: ("F16", 16), 2: ("Q4_0", 4.5), 3: ("Q4_1", 5), 6: ("Q5_0", 5.5), 7: ("Q5_1", 6),
    8: ("Q8_0", 8.5), 9: ("Q8_1", 9), 10: ("Q2_K", 2.625), 11: ("Q3_K", 3.4375), 12: ("Q4_K", 4.5),
    13: ("Q5_K", 5.5), 14: ("Q6_K", 6.5625), 15: ("Q8_K", 9.125), 16: ("IQ2_XXS", 2.0625), 17: ("IQ2_XS", 2.3125),
    18: ("IQ3_XXS", 3.0625), 19: ("IQ1_S", 1.5625), 20: ("IQ4_NL", 4.5), 21: ("IQ3_S", 3.4375),
    22: ("IQ2_S", 2.5625), 23: ("IQ4_XS", 4.25), 24: ("I8", 8), 25: ("I16", 16), 26: ("I32", 32), 27: ("I64", 64),
    28: ("F64", 64), 29: ("IQ1_M", 1.75), 30: ("BF16", 16), 34: ("TQ1_0", 1.6875), 35: ("TQ2_0", 2.0625),
    39: ("MXFP4", 4.25),
}  # fmt: skip


@pytest.mark.parametrize("number", sorted(BLOCKS))
def test_block_of_a_type_has_the_bits_that_llama_cpp_prints(number: int) -> None:
    """Types with a K or I in their name have blocks of 256 weights, others of 32, and plain numbers of 1."""
    name, bits = GGML[number]
    weights, width = BLOCKS[number]

    assert 8 * width == bits * weights
    plain, large = re.fullmatch(r"(F|I|BF)\d+", name), re.search("_K|IQ|TQ", name)
    assert weights == (1 if plain else 256 if large and name != "IQ4_NL" else 32)


def test_all_types_of_ggml_are_known() -> None:
    assert BLOCKS.keys() == GGML.keys()


@pytest.mark.parametrize("name", sorted(BITS))
def test_format_of_safetensors_has_the_bits_of_its_name(name: str) -> None:
    found = re.match(r"[A-Z]+(\d+)", name)

    assert BITS[name] == (int(found[1]) if found else 8)
    assert found or name == "BOOL"
