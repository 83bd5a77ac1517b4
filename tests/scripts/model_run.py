"""Compare plans with real models of transformers on the CPU: `make test-torch`.

The models are small, with random weights. Published ones are built without memory, to count their parameters.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memwatch.planning.checkpoint import Checkpoint, read_checkpoint
from memwatch.planning.inference import compute_kv_cache
from scripts.published_models import BUILT, MODELS, Published

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "vocab_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
WINDOW = {"sliding_window": 64}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
SMALL_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": {}, "mistral": WINDOW, "phi3": {"sliding_window": None}, "mixtral": EXPERTS,
    "qwen3_moe": SMALL_EXPERTS, "gemma": {}, "gemma2": WINDOW, "gemma3_text": WINDOW,
    "gpt_oss": {**WINDOW, **EXPERTS},
    "olmo2": {}, "olmo3": WINDOW, "olmoe": EXPERTS, "cohere": {}, "cohere2": WINDOW, "exaone4": WINDOW, "glm4": {},
    "smollm3": {}, "granite": {}, "granitemoe": EXPERTS, "starcoder2": {"sliding_window": None}, "seed_oss": {},
    "qwen2_moe": {**SMALL_EXPERTS, "shared_expert_intermediate_size": 64}, "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "granitemoehybrid": {
        **EXPERTS, **MAMBA, "layer_types": ["mamba"] * 5 + ["attention"], "shared_intermediate_size": 64,
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M-M*-M", "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 1,
        "ssm_state_size": 16,
    },
}  # fmt: skip
# transformers keeps one token less than the window, and states in the model's format in place of 32 bits.
TOLERANCE = 0.03
LINEAR = ("granitemoehybrid", "nemotron_h")
SHORT, LONG = 100, 400
MAX_DEPTH = 6


def check_families() -> None:
    """Compare parameters and cache of small models of many families."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for family, more in FAMILIES.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{**SMALL, **more})
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
        planned = save(model)
        assert planned.transformer is not None
        parameters, buffers = count_numbers(model)
        caches = [count_cache(model, tokens) for tokens in (SHORT, LONG)]
        plans = [compute_kv_cache(planned.transformer, tokens, 1, 2) for tokens in (SHORT, LONG)]
        print(f"{family}: weights {planned.weights_bytes:,} bytes; cache {caches[1]:,}, planned {plans[1]:,}")
        assert planned.transformer.parameters in (parameters, parameters + buffers)
        assert planned.weights_bytes == 2 * (parameters + buffers)
        if family in LINEAR:
            assert plans[1] - plans[0] == caches[1] - caches[0]
            assert caches[1] <= plans[1]
        else:
            assert all(abs(plan / cache - 1) < TOLERANCE for plan, cache in zip(plans, caches, strict=True))


def save(model: Any) -> Checkpoint:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return read_checkpoint(Path(folder))


def count_numbers(model: Any) -> tuple[int, int]:
    """Return the parameters, and the numbers of other tensors that a checkpoint has."""
    parameters = sum(one.numel() for one in model.parameters())
    return parameters, sum(one.numel() for name, one in model.named_buffers() if name in model.state_dict())


def count_cache(model: Any, tokens: int) -> int:
    """Return the bytes of `past_key_values` after a prompt."""
    import torch

    with torch.no_grad():
        answer = model(torch.randint(3, 90, (1, tokens)), use_cache=True)
    found = {tensor.untyped_storage().data_ptr(): tensor for tensor in list_tensors(answer.past_key_values)}
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


def list_tensors(part: Any, depth: int = 0) -> Iterator[Any]:
    """Yield all tensors of a cache, whose classes differ by family."""
    import torch

    if isinstance(part, torch.Tensor):
        yield part
    elif depth < MAX_DEPTH:
        for one in _parts(part):
            yield from list_tensors(one, depth + 1)


def _parts(whole: Any) -> list[Any]:
    if isinstance(whole, dict):
        return list(whole.values())
    if isinstance(whole, (list, tuple)):
        return list(whole)
    return list(vars(whole).values()) if hasattr(whole, "__dict__") else []


def check_published() -> None:
    """Count the parameters of the published configurations with the code of transformers."""
    built = [model for model in MODELS if model.name in BUILT]
    for model in built:
        parameters, others = count_published(model)
        # Files of DeepSeek V3 have the others, those of V2 do not.
        assert model.parameters in (parameters, parameters + others), f"{model.name}: {parameters:,} counted"
    print(f"{len(built)} published configurations have the parameters of the table")


def count_published(model: Published) -> tuple[int, int]:
    import torch
    import transformers

    given = {key: value for key, value in model.config.items() if key not in ("quantization_config", "model_type")}
    family = model.config["model_type"]
    # The class of Kimi K2 is that of DeepSeek V3, and is not in transformers.
    config = transformers.AutoConfig.for_model({"kimi_k2": "deepseek_v3"}.get(family, family), **given)
    vision = "vision_config" in given
    kind = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return count_numbers(kind.from_config(config))


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, Python {sys.version.split()[0]}")
    check_families()
    check_published()


if __name__ == "__main__":
    main()
