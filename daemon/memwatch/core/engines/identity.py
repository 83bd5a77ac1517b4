"""Identity of samples: the labels that tell two things apart. All sums, means and maxima of the engines use these.

Samples with the same identity are reports of one thing, by several processes or ranks; the largest counts. vLLM
with `--api-server-count` has a sample of each API server process, of which one is current and the others are 0
(PR #28792). A label that is in no identity, such as `pid`, never makes one thing several.
"""

from __future__ import annotations

Identity = tuple[str, ...]

# One thing in the whole answer.
SERVER: Identity = ()
# vLLM: an engine core, with its own KV cache. Each replica (data parallel) is one.
VLLM_CORE: Identity = ("model_name", "engine")
# SGLang: the ranks of a replica run the same requests, and count the tokens of the same cache.
SGLANG_REPLICA: Identity = ("model_name", "engine_type", "dp_rank")
# A pool of one rank. With pipeline stages the ranks have separate pools.
SGLANG_POOL: Identity = ("model_name", "engine_type", "dp_rank", "pp_rank", "tp_rank", "moe_ep_rank")
TRTLLM_ENGINE: Identity = ("model_name", "engine_type")
TRITON_MODEL: Identity = ("model", "version")
# A counter: each set of labels counts other requests. Only the process is none of them.
EVERY_LABEL: Identity = ("*",)
