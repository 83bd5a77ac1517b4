"""Requests by which a model server releases the memory of its model and keeps running: one declaration, by kind.

memwatchd shows the commands and sends no request; its guardian sends `path`. `ollama stop` (ollama PR #6739,
September 2024) ends the runner of a model once its requests are answered; `lms unload` is that of LM Studio. vLLM's
sleep drops the KV cache and moves the weights to System RAM; at level 2 it drops them as well, which the guardian
needs, as System RAM is full. SGLang's memory saver releases both. `/unload` of llama-swap (its issue #58) ends its
servers.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent

# Names of several models are joined by `memwatch.core.listing.some_of`.
COMMA, MORE = ", ", " and "
LLAMA_SWAP = "llama-swap"
MODEL = "MODEL"


class Unload(Struct, frozen=True):
    """`command`: a line for a shell, with {model} and {url}. `needs`: a condition that memwatchd cannot check.

    `ends_runner`: the model's own process ends, and all of its memory comes back. Without it a part stays, and its
    size is not known before. `path` and `body`, with the name of the model in place of `MODEL`: the same as a POST
    request (docs.ollama.com/faq, docs.vllm.ai "Sleep Mode", docs.sglang.ai "release_memory_occupation"); empty if
    there is none.
    """

    command: str
    ends_runner: bool = False
    needs: str = ""
    path: str = ""
    body: Mapping[str, str | int] | None = None


UNLOADS: Mapping[str, Unload] = {
    "ollama": Unload(
        "ollama stop {model}", ends_runner=True, path="/api/generate", body={"model": MODEL, "keep_alive": 0}
    ),
    "lm-studio": Unload("lms unload {model}", ends_runner=True),
    "vllm": Unload(
        "curl -X POST {url}/sleep",
        needs="if it was started with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1",
        path="/sleep?level=2",
    ),
    "sglang": Unload(
        "curl -X POST {url}/release_memory_occupation -H 'Content-Type: application/json' -d '{{}}'",
        needs="if it was started with --enable-memory-saver",
        path="/release_memory_occupation",
        body={},
    ),
}
SWAPPED = Unload("curl http://HOST:PORT/unload", needs=f"with the address of {LLAMA_SWAP}, which started it")


def find_unload(engine: Engine, home: str = "") -> Unload | None:
    """Return how a server is asked, None if it has no way. `home`: its unit and container."""
    return SWAPPED if LLAMA_SWAP in home else UNLOADS.get(engine.kind)


def write_unload(engine: Engine, unload: Unload, prefix: str = "") -> str | None:
    """Return the line that unloads all models of a server, None if a name or the address in it is not known.

    `prefix`: the command that runs others in the server's container, such as `docker exec ID`.
    """
    # The guardian, which has 20 MiB, needs the declarations and not the readers of engines.
    from memwatch.core.engines.ollama import PORT

    url = engine.url if isinstance(engine.url, str) else ""
    names = list_models(engine) if "{model}" in unload.command else ("",)
    if not names or ("{url}" in unload.command and not url):
        return None
    host = url.partition("//")[2]
    is_usual = engine.kind != "ollama" or not host or host.endswith(f":{PORT}")
    start = f"{prefix} " if prefix else "" if is_usual else f"OLLAMA_HOST={host} "
    return " && ".join(start + unload.command.format(model=shlex.quote(name), url=url) for name in names)


def list_models(engine: Engine) -> tuple[str, ...]:
    """Return the names of the loaded models; none if they are not known, or not all of them are named."""
    if isinstance(engine.model, Absent) or MORE in engine.model:
        return ()
    return tuple(one for one in engine.model.split(COMMA) if one)
