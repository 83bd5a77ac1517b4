"""Sizes of tensors, keys and shape of a model from the header of a GGUF file. No tensor is read.

Format, little endian: "GGUF", version, number of tensors, number of keys. Then the keys with their typed values,
and each tensor's name, dimensions, type and offset. Then the tensors, each at a multiple of the alignment. The
shape follows from the keys as llama.cpp reads them.

The shape of a model from the keys of a GGUF file, as llama.cpp reads them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import BinaryIO

from msgspec import Struct

from memwatch.core.printable import decode
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.config_keys import Fields, ReadKeys, describe_unknown, find_structures
from memwatch.planning.model_file import HeaderLimit, ModelPath, open_model
from memwatch.planning.number_formats import FLOAT32_BYTES
from memwatch.planning.sparse_attention import RATIOS, SPARSE, compressed_cache
from memwatch.planning.transformer import Transformer

# Published files have up to 100 keys, 2,500 tensors, 550,000 strings.
MAX_KEYS = 4096
MAX_TENSORS = 16_384
MAX_HEAD_BYTES = 64 << 20
MAX_TEXTS = 1_000_000
MAX_KEPT_NUMBERS = 16_384
MAX_LAYERS = 1024
BLOCK_BYTES = 1 << 18
LENGTH = struct.Struct("<Q")
MAX_KEPT_TEXT_LENGTH = 256
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# struct codes by value type: u8 i8 u16 i16 u32 i32 f32 bool, (8 is a string, 9 an array), u64 i64 f64.
WIDTHS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
TOKENIZER = "tokenizer."
# By tensor type: weights per block, bytes per block (ggml.h, November 2025).
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip

Numbers = tuple[int | float, ...]
Value = int | float | str | bool | Numbers


class ArrayLength(int):
    """Number of elements of a long array or one of strings, kept in place of the elements."""


class GgufHeader(Struct, frozen=True):
    """The header of a GGUF file. `keys`: metadata by name; of long arrays and those of strings only their
    lengths."""

    keys: Mapping[str, Value]
    tensor_bytes: int
    parameters: int


class TruncatedHeaderError(InvalidInputError):
    """The data ends inside the header."""


class GgufReader:
    """Reader of a header, limited to the file's size and to `MAX_HEAD_BYTES`.

    `begun`: the key of a tokenizer that is read, and the length of its list of strings.
    """

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file = file
        self._left = min(size, MAX_HEAD_BYTES)
        self._texts_left, self._numbers_left = MAX_TEXTS, MAX_KEPT_NUMBERS
        self.name = name
        self.begun: tuple[str, Value] | None = None

    def take(self, count: int) -> bytes:
        self._spend(count)
        return self._file.read(count)

    def skip(self, count: int) -> None:
        self._spend(count)
        self._file.seek(count, 1)

    def scalar(self, code: str) -> int | float:
        (found,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        return found  # type: ignore[no-any-return]

    def may_keep(self, count: int) -> bool:
        """Return True for an array as short as one for each layer, within a limit for all."""
        kept = count <= MAX_LAYERS and count <= self._numbers_left
        self._numbers_left -= count if kept else 0
        return kept

    def skip_texts(self, count: int) -> None:
        """Skip strings, each with its length before it. A tokenizer has up to 500,000 of them."""
        self._texts_left -= count
        if self._texts_left < 0:
            raise InvalidInputError(f"{self.name}: has arrays with more than {MAX_TEXTS} strings in all")
        block, at, length_of = b"", 0, LENGTH.unpack_from
        for _ in range(count):
            if at + 8 > len(block):
                self._leave(block, at)
                block, at = self._file.read(BLOCK_BYTES), 0
                if len(block) < LENGTH.size:
                    self._spend(self._left + 1)
            at += 8 + length_of(block, at)[0]
        self._leave(block, at)

    def _leave(self, block: bytes, at: int) -> None:
        """Go on at a position in or behind a block that was read."""
        self._spend(at)
        self._file.seek(at - len(block), 1)

    def count(self, code: str, maximum: int, what: str) -> int:
        found = int(self.scalar(code))
        if found > maximum:
            raise InvalidInputError(f"{self.name}: has {found} {what}; at most {maximum} are read")
        return found

    def text(self) -> str:
        """Read a string and return its first `MAX_KEPT_TEXT_LENGTH` bytes, decoded."""
        length = int(self.scalar("Q"))
        kept = self.take(min(length, MAX_KEPT_TEXT_LENGTH))
        self.skip(length - len(kept))
        return decode(kept)

    @property
    def position(self) -> int:
        return self._file.tell()

    def _spend(self, count: int) -> None:
        if count > self._left:
            raise TruncatedHeaderError(f"{self.name}: the header is truncated; is the file complete?")
        self._left -= count


def read_heads(paths: Iterable[ModelPath]) -> list[GgufHeader]:
    """Read the headers of all parts of one model. Raises InvalidInputError as `read_head` and HeaderLimit do."""
    limit = HeaderLimit()
    return [read_head(path, limit) for path in paths]


def read_head(path: ModelPath, limit: HeaderLimit | None = None) -> GgufHeader:
    """Read the header of a GGUF file. Raises InvalidInputError for any other file and for a truncated one."""
    limit = limit or HeaderLimit()
    with open_model(path) as (file, status):
        limit.check_new(status, str(path))
        size = status.st_size
        reader = GgufReader(file, size, str(path))
        tensors, count = _begin(reader)
        keys = dict(_key(reader) for _ in range(count))
        spans = [_tensor(reader) for _ in range(tensors)]
        limit.spend(reader.position, str(path))
        start = _align(reader.position, keys, reader.name)
    end = start + _find_end(spans, str(path))
    if end > size:
        raise InvalidInputError(
            f"{path}: its tensors end at byte {end}, but its size is {size}; is the file complete?"
        )
    return GgufHeader(keys, sum(length for _, length, _ in spans), sum(count for _, _, count in spans))


def _begin(reader: GgufReader) -> tuple[int, int]:
    """Return the numbers of tensors and keys. Raises InvalidInputError."""
    if reader.take(4) != b"GGUF":
        raise InvalidInputError(f"{reader.name}: is not a GGUF file: it does not begin with GGUF")
    version = int(reader.scalar("I"))
    if version not in VERSIONS:
        raise InvalidInputError(f"{reader.name}: is GGUF version {version}; versions 2 and 3 are read")
    return reader.count("Q", MAX_TENSORS, "tensors"), reader.count("Q", MAX_KEYS, "keys")


def read_first_keys(data: bytes, name: str) -> Mapping[str, Value]:
    """Return the keys in the first bytes of a file. Raises InvalidInputError if they end before the tokenizer.

    Converters write a tokenizer after the keys of the shape. Its strings are most of a header: 2 to 10 MB.
    """
    reader = GgufReader(BytesIO(data), len(data), name)
    keys: dict[str, Value] = {}
    for _ in range(_begin(reader)[1]):
        try:
            key, value = _key(reader)
        except TruncatedHeaderError:
            if reader.begun is None or not reader.begun[0].startswith(TOKENIZER):
                raise
            return keys | dict([reader.begun])
        keys[key] = value
    return keys


def _find_end(spans: Iterable[tuple[int, int, int]], name: str) -> int:
    """Return the end of the last tensor. Raises InvalidInputError if tensors overlap: their bytes would count
    twice."""
    end = 0
    for offset, length, _ in sorted(spans):
        if offset < end:
            raise InvalidInputError(
                f"{name}: a tensor begins at {offset}, before the end of the previous one at {end}"
            )
        end = offset + length
    return end


def _key(reader: GgufReader) -> tuple[str, Value]:
    name = reader.text()
    reader.begun = (name, ArrayLength(0)) if name.startswith(TOKENIZER) else None
    return name, _value(reader, int(reader.scalar("I")))


def _value(reader: GgufReader, kind: int) -> Value:
    if kind == TEXT:
        return reader.text()
    if kind == ARRAY:
        return _array(reader)
    if kind not in WIDTHS:
        raise InvalidInputError(f"{reader.name}: has a value of type {kind}, which is not a GGUF type")
    return reader.scalar(WIDTHS[kind])


def _array(reader: GgufReader) -> Value:
    """Return the numbers of a short array, such as one for each layer, else its length."""
    kind, length = int(reader.scalar("I")), int(reader.scalar("Q"))
    if kind in WIDTHS:
        width = struct.calcsize(WIDTHS[kind]) * length
        if reader.may_keep(length):
            return struct.unpack(f"<{length}{WIDTHS[kind]}", reader.take(width))
        reader.skip(width)
    elif kind == TEXT:
        if length > MAX_TEXTS:
            raise InvalidInputError(
                f"{reader.name}: has an array of {length} strings; at most {MAX_TEXTS} are read"
            )
        if reader.begun:
            reader.begun = reader.begun[0], ArrayLength(length)
        reader.skip_texts(length)
    else:
        raise InvalidInputError(f"{reader.name}: has an array of type {kind}, which is not read")
    return ArrayLength(length)


def _tensor(reader: GgufReader) -> tuple[int, int, int]:
    """Return the offset, the size in bytes and the number of weights of one tensor."""
    name = reader.text()
    dimensions = [int(reader.scalar("Q")) for _ in range(reader.count("I", 4, "dimensions of a tensor"))]
    kind, offset = int(reader.scalar("I")), int(reader.scalar("Q"))
    if kind not in BLOCKS:
        raise InvalidInputError(f"{reader.name}: the tensor {name[:80]!r} has the unknown type {kind}")
    numbers, (block, width) = math.prod(dimensions), BLOCKS[kind]
    if numbers % block:
        raise InvalidInputError(
            f"{reader.name}: the tensor {name[:80]!r} has {numbers} weights, not a multiple of its block of {block}"
        )
    return offset, numbers // block * width, numbers


def _align(position: int, keys: Mapping[str, Value], name: str) -> int:
    alignment = keys.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise InvalidInputError(f"{name}: general.alignment is {alignment!r}; for example {DEFAULT_ALIGNMENT}")
    return -(-position // alignment) * alignment


# Every n-th layer looks back on all tokens, in files without `sliding_window_pattern` (llama-model.cpp, November
# 2025: `set_swa_pattern`). 0: no layer uses the window, though the file has one.
PATTERNS = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "exaone4": 4, "olmo2": 4,
    "smallthinker": 4, "gemma-embedding": 6, "phi3": 0, "llama": 0, "qwen2": 0, "qwen2moe": 0, "qwen3": 0,
    "qwen3moe": 0, "starcoder2": 0,
}  # fmt: skip
LLAMA4_CHUNK = 8192
# Recurrent state of other layers: llama.cpp keeps it in 32 bits. qwen3next writes no list of its attention layers.
DEFAULT_INTERVAL = 4
ENCODERS = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "t5encoder"}
)
# Tokens per entry of compressed attention (DeepSeek V4), by layer.
COMPRESSED = "attention.compress_ratios"
NEEDED = ("block_count", "embedding_length", "attention.head_count")


class Keys:
    """The keys of a file's architecture. `layered`: a value for each layer."""

    def __init__(self, keys: Mapping[str, Value]) -> None:
        self.family: str = str(keys.get("general.architecture", ""))[:40]
        self._keys = ReadKeys(keys)
        self.layers: int = self.number("block_count")

    def number(self, name: str, otherwise: int = 0) -> int:
        """Return a number. Of a list with one for each layer the largest."""
        found = self._keys.get(f"{self.family}.{name}")
        if isinstance(found, ArrayLength):
            raise InvalidInputError(f"{name} is not readable: a list of {found} values")
        if isinstance(found, tuple):
            return max((int(one) for one in found if isinstance(one, int)), default=otherwise)
        return found if type(found) is int else otherwise

    def layered(self, name: str) -> Sequence[int]:
        found = self._keys.get(f"{self.family}.{name}")
        return [int(one) for one in found if isinstance(one, int)] if isinstance(found, tuple) else []

    @property
    def unknown(self) -> list[str]:
        """Return the keys about caches that no code read."""
        own = [name.removeprefix(f"{self.family}.") for name in self._keys.unread if name.startswith(self.family)]
        leaves = {name: name.removeprefix("attention.") for name in own}
        named = set(find_structures(leaves.values()))
        return [name for name, leaf in leaves.items() if leaf in named and self._keys[f"{self.family}.{name}"]]

    @property
    def vocabulary(self) -> int:
        found = self._keys.get("tokenizer.ggml.tokens", 0)
        return self.number("vocab_size") or (int(found) if isinstance(found, int) else 0)


def parse_shape(found: Mapping[str, Value]) -> tuple[Transformer, str]:
    """Return the shape that the keys describe, and a sentence about caches that it does not have.

    Raises InvalidInputError, which names the architecture.
    """
    keys = Keys(found)
    missing = [name for name in NEEDED if not keys.number(name)]
    if missing:
        raise InvalidInputError(f"architecture {keys.family!r}: no readable {', '.join(missing)}")
    try:
        shape = Transformer(**_fields(keys))  # type: ignore[arg-type]
    except InvalidInputError as error:
        raise InvalidInputError(f"architecture {keys.family!r}: {error}") from None
    return shape, describe_unknown(keys.unknown, "GGUF file")


def _fields(keys: Keys) -> Fields:
    heads = keys.number("attention.head_count")
    experts = keys.number("expert_count") or 1
    key_length = keys.number("attention.key_length")
    value_length = keys.number("attention.value_length")
    fields = {
        "hidden_size": keys.number("embedding_length"),
        "intermediate_size": keys.number("expert_feed_forward_length") or keys.number("feed_forward_length"),
        "n_layers": keys.layers,
        "vocab_size": keys.vocabulary,
        "n_heads": heads,
        "n_kv_heads": keys.number("attention.head_count_kv", heads) or heads,
        "head_dim": key_length,
        "v_head_dim": value_length if value_length != key_length else 0,
        "n_experts": experts,
        "active_experts": keys.number("expert_used_count"),
        **(_compressed(keys) if keys.layered(COMPRESSED) else _kinds(keys)),
        **(_experts(keys) if experts > 1 else {}),
    }
    if keys.family in ENCODERS:
        fields["shared_kv_layers"] = keys.layers
    return fields


def _kinds(keys: Keys) -> Fields:
    return {**_windows(keys), **_recurrent(keys), **_latent(keys)}


def _experts(keys: Keys) -> Fields:
    width, shared = keys.number("expert_feed_forward_length"), keys.number("expert_shared_feed_forward_length")
    step = keys.number("interleave_moe_layer_step") or 1
    return {
        "moe_layers": max(0, keys.layers - keys.number("leading_dense_block_count")) // step,
        "dense_intermediate_size": keys.number("feed_forward_length"),
        "shared_intermediate_size": shared or keys.number("expert_shared_count") * width,
    }


def _windows(keys: Keys) -> Fields:
    """Return the window and how many layers with a cache of their own look back on all tokens."""
    window = keys.number("attention.sliding_window") or LLAMA4_CHUNK * (keys.family == "llama4")
    shared = keys.number("attention.shared_kv_layers")
    flags = keys.layered("attention.sliding_window_pattern")
    if not window:
        return {"shared_kv_layers": shared}
    owners = max(0, keys.layers - shared)
    if flags:
        wide = keys.number("attention.key_length"), keys.number("attention.key_length_swa")
        own = _global_heads(keys, flags, wide[0]) if wide[1] else {}
        narrow = {"head_dim": wide[1], "v_head_dim": 0} if wide[1] else {}
        full = sum(not one for one in flags[:owners])
        return {"sliding_window": window, "full_layers": full, "shared_kv_layers": shared, **own, **narrow}
    pattern = keys.number("attention.sliding_window_pattern", PATTERNS.get(keys.family, -1))
    if pattern < 0:
        raise InvalidInputError(
            f"has a sliding window of {window} tokens, and which layers use it is not known; "
            "its config.json in the same folder would help"
        )
    if pattern == 0:
        return {"shared_kv_layers": shared}
    return {"sliding_window": window, "full_layers": owners // pattern, "shared_kv_layers": shared}


def _global_heads(keys: Keys, flags: Sequence[int], head: int) -> Fields:
    """Return the KV heads of layers without a window, and the width of their keys (Gemma 4)."""
    heads = keys.layered("attention.head_count_kv")
    full = [count for count, near in zip(heads, flags, strict=False) if not near]
    count = max(full) if full else keys.number("attention.head_count_kv")
    return {"full_kv_width": head * count, "full_kv_heads": count}


def _recurrent(keys: Keys) -> Fields:
    """Return the layers without a KV cache: zero KV heads, or all but every n-th, and the state of each."""
    heads = keys.layered("attention.head_count_kv")
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    channels = inner + 2 * keys.number("ssm.group_count") * state
    kernel = keys.number("ssm.conv_kernel")
    size = (inner * state + channels * kernel) * FLOAT32_BYTES
    if 0 in heads:
        short = keys.number("embedding_length") * keys.number("shortconv.l_cache") * FLOAT32_BYTES
        widths = keys.layered("feed_forward_length")
        # Nemotron-H: a layer is Mamba, attention or an MLP; those with an MLP have no state.
        without = sum(count == 0 and not width for count, width in zip(heads, widths, strict=False))
        linear = without if widths and 0 in widths else heads.count(0)
        full = sum(count > 0 for count in heads)
        return {"attention_layers": full, "linear_layers": linear, "state_bytes": size or short}
    if not inner:
        return {}
    if keys.family == "falcon-h1":
        return {"attention_layers": keys.layers, "linear_layers": keys.layers, "state_bytes": size}
    interval = keys.number("full_attention_interval", DEFAULT_INTERVAL)
    full = keys.layers // interval
    return {"attention_layers": full, "linear_layers": keys.layers - full, "state_bytes": size}


def _latent(keys: Keys) -> Fields:
    """MLA. Newer files give the latent vector's length as `key_length`, and a head's as `key_length_mla`."""
    rank = keys.number("attention.kv_lora_rank")
    if not rank:
        return {}
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": keys.number("attention.q_lora_rank"),
        "qk_rope_head_dim": keys.number("rope.dimension_count"),
        "head_dim": keys.number("attention.key_length_mla") or keys.number("attention.key_length"),
        "v_head_dim": keys.number("attention.value_length_mla") or keys.number("attention.value_length"),
        "n_kv_heads": keys.number("attention.head_count"),
        "side_numbers": _count_indexers(keys) * keys.number("attention.indexer.key_length"),
    }


def _count_indexers(keys: Keys) -> int:
    """Return the layers with keys of an indexer (DSA): all in files before GLM-5.2, which list no types."""
    types = keys.layered("attention.indexer.types")
    return sum(map(bool, types)) if types else keys.layers


def _compressed(keys: Keys) -> Fields:
    """DeepSeek V4: a window of single vectors, compressed entries and indexer keys, all in the cache's format."""
    ratios, head = keys.layered(COMPRESSED)[: keys.layers], keys.number("attention.key_length")
    rope, index = keys.number("rope.dimension_count"), keys.number("attention.indexer.key_length")
    if other := [one for one in ratios if one not in RATIOS.values()]:
        raise InvalidInputError(f"{COMPRESSED} has {other[0]}, whose cache is not known")
    found = compressed_cache(ratios, head, index)
    return {
        **found,
        "kv_lora_rank": max(0, head - rope),
        "q_lora_rank": keys.number("attention.q_lora_rank"),
        "qk_rope_head_dim": rope,
        "o_groups": keys.number("attention.output_group_count"),
        "o_lora_rank": keys.number("attention.output_lora_rank"),
        "sliding_window": keys.number("attention.sliding_window"),
        "side_numbers": found["side_numbers"] + sum(-(-index // one) for one in ratios if one == SPARSE),
        "side_bytes": 0,
    }
