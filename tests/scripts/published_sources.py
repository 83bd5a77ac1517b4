"""Sources of the shapes in the table of published models: public code that was read, by model.

Compared: layers, heads, KV heads, their size, both widths, the vocabulary and the experts. A model without a source
has its shape from memory; a wrong one would show in its number of parameters, which `make test-torch` counts.
"""

from __future__ import annotations

LITGPT = "litgpt"
CLASS = "transformers"
# Where each was read. litgpt: litgpt/config.py at 26857050. transformers: defaults of the class, 5.24.0.
SOURCES = {
    **dict.fromkeys(
        (
            "Mistral 7B v0.1", "Llama 2 7B", "Llama 2 13B", "Llama 2 70B", "Llama 3 8B", "Llama 3 70B",
            "Llama 3.1 405B", "Llama 3.2 1B", "Llama 3.2 3B", "TinyLlama 1.1B", "Qwen2.5 0.5B", "Qwen2.5 7B",
            "Qwen2.5 32B", "Qwen2.5 72B", "Qwen3 0.6B", "Qwen3 4B", "Qwen3 8B", "Qwen3 14B", "Qwen3 32B",
            "Qwen3 30B-A3B", "Qwen3 235B-A22B", "Gemma 2B", "Gemma 7B", "Gemma 2 2B", "Gemma 2 9B", "Gemma 2 27B",
            "Gemma 3 1B", "Gemma 3 4B", "Gemma 3 12B", "Gemma 3 27B", "Phi-3 mini 4k", "Phi-4", "Mixtral 8x7B",
            "Mixtral 8x22B", "SmolLM2 1.7B", "OLMo 2 7B",
        ),
        LITGPT,
    ),
    **dict.fromkeys(
        ("SmolLM3 3B", "Qwen3-Next 80B-A3B", "gpt-oss-120b", "DeepSeek V3", "Jamba v0.1", "Command R", "GPT-2"),
        CLASS,
    ),
    # torchtune/models/llama4/_model_builders.py at bd2a0fc7.
    **dict.fromkeys(("Llama 4 Scout", "Llama 4 Maverick"), "torchtune"),
    # thunder_model_blocks/mistral/mistral_config.py: its config.json.
    "Mistral Nemo 12B": "kevinstephano/thunder_model_blocks",
    "gpt-oss-20b": "EchoCog/gpt-oss-20b",  # docs/gpt-oss-20b-architecture.md
    # config_deepseekv2.py; no experts, and no ranks.
    "DeepSeek V2": "inclusionAI/Ling, in part",
    # model_inspection_report.md; no experts, and no ranks.
    "Kimi K2": "ParagEkbote/hf-model-inspector, in part",
}  # fmt: skip
