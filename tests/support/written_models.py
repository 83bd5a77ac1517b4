"""A small model with random weights in the files that the tools write: GGUF, and a folder of transformers.

The packages `gguf` and `safetensors` write them, with the names that llama.cpp's converter gives to tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.numpy import save_file

# K-quants need rows of 256. 259 tokens: three of control, and one for each byte, which llama.cpp asks for.
CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "vocab_size": 259,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
LAYERS = 3
Arrays = dict[str, np.ndarray[Any, Any]]


def random_weights() -> Arrays:
    """Return the weights in 16 bits by the names of transformers."""
    hidden, wide, vocabulary, kv = 256, 512, 259, 2 * 64
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(LAYERS):
        own = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    source = np.random.default_rng(0)
    return {name: (source.standard_normal(shape) / 16).astype(np.float16) for name, shape in shapes.items()}


def write_folder(folder: Path, weights: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_gguf(path: Path, weights: Arrays, form: str = "F16", split_tensors: int = 0) -> Path:
    """Write the model in a format. Norms stay at 32 bits, as llama.cpp's converter writes them."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_tensors)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_dimension_count(CONFIG["head_dim"])
    add_tokens(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weight in weights.items():
        known = names.get_name(name, try_suffixes=(".weight",))
        kind = gguf.GGMLQuantizationType[form if weight.ndim > 1 else "F32"]
        writer.add_tensor(str(known), quantize(weight.astype(np.float32), kind), raw_dtype=kind)
    return save(writer, path)


def add_tokens(writer: gguf.GGUFWriter) -> None:
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_keys(path: Path, keys: Mapping[str, Any]) -> Path:
    """Write a file with these keys and one small tensor."""
    writer = gguf.GGUFWriter(path, str(keys["general.architecture"]))
    for name, value in keys.items():
        if name == "general.architecture":
            continue  # the writer has added it
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tensor("output_norm.weight", np.zeros(8, np.float32))
    return save(writer, path)


def save(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_bytes(path: Path) -> int:
    """Return the bytes of a GGUF file's tensors, as the package reads them."""
    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
