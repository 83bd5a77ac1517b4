"""Options of a server in a YAML file (vLLM and SGLang: --config, TensorRT-LLM: --extra_llm_api_options).

Only lines such as `tensor-parallel-size: 2` at the left edge are read, and of them the options below: such a file
may have API keys. Lists, objects and anything else of YAML are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# By the names of the command line, with - for _.
WANTED = frozenset(
    {
        "model",
        "model-path",
        "port",
        "quantization",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "enable-expert-parallel",
        "enable-attention-dp",
        "gpu-memory-utilization",
    }
)
MAX_BYTES = 64 << 10
_LINE = re.compile(r"([A-Za-z][\w-]{0,60}):[ \t]+(\S.{0,400})")
_COMMENT = re.compile(r"[ \t]#.*$")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off", "null", "~")


def parse_options(data: bytes) -> tuple[str, ...]:
    """Return the arguments that mean the same as a file of options; the last value of an option counts."""
    found: list[str] = []
    for line in data[:MAX_BYTES].decode("utf-8", "replace").splitlines():
        if (pair := _LINE.fullmatch(line.rstrip())) and (name := pair[1].replace("_", "-")) in WANTED:
            found += _arguments(name, _COMMENT.sub("", pair[2]).strip())
    return tuple(found)


def _arguments(name: str, value: str) -> Iterator[str]:
    if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
        value = value[1:-1]
    elif value.lower() in _FALSE or value[:1] in "[{|>&*!%@`#":
        return
    yield f"--{name}"
    if value.lower() not in _TRUE:
        yield value
