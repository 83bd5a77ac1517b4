"""Sources of the shapes in the table of published models: public code that was read, by model.

Compared: layers, heads, KV heads, their size, both widths, the vocabulary and the experts. A model without a source
has its shape from memory; a wrong one would show in its number of parameters, which `make test-torch` counts.
"""

from __future__ import annotations

LITGPT = "litgpt"
CLASS = "transformers"
LLMFIT = "llmfit"
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
    # llmfit-core/data/hf_models.json at 5bdc9df9, of 12 May 2026: layers, heads, widths, vocabulary, experts.
    **dict.fromkeys(
        (
            "Gemma 4 31B", "Qwen3.5 35B-A3B", "Kimi Linear 48B-A3B", "MiniMax-M2", "Nemotron 3 Nano 30B-A3B",
            "LFM2 8B-A1B", "LFM2 1.2B", "ERNIE 4.5 21B-A3B", "A.X K1 519B-A33B", "Qwen3 1.7B", "Qwen2.5 1.5B",
            "Qwen2.5 3B", "Qwen2.5 14B", "Qwen3-Coder 480B-A35B", "Mistral 7B v0.2", "Mistral 7B v0.3",
            "SmolLM2 135M", "SmolLM2 360M", "OLMo 2 13B", "OLMo 2 32B", "StarCoder2 3B", "StarCoder2 7B",
            "EXAONE 4.0 32B",
            "Ling-mini 2.0 16B-A1B", "dots.llm1 142B-A14B", "Apertus 8B", "DeepSeek R1 Distill Qwen 7B",
            "Yi 6B", "Granite 3.3 8B", "InternLM2.5 7B", "DeepSeek V4 Flash", "GLM-4.5-Air", "GLM-4.5",
            "Qwen3.5 0.8B", "Qwen3.5 2B", "Qwen3.5 4B", "Qwen3.5 9B", "Qwen3.5 27B", "Qwen3.5 122B-A10B",
            "Qwen3.5 397B-A17B", "Qwen3-VL 2B", "Qwen3-VL 4B", "Qwen3-VL 8B", "Qwen3-VL 32B",
            "Qwen3-VL 30B-A3B", "Qwen3-VL 235B-A22B", "Qwen2.5-VL 7B", "Qwen2.5-VL 3B", "Qwen2-VL 7B",
            "Gemma 4 26B-A4B",
        ),
        LLMFIT,
    ),
}  # fmt: skip
