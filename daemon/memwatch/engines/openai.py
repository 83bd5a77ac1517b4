"""Any other server with OpenAI's API: it names its model, and little else."""

from __future__ import annotations

from memwatch.engines.answers import Answers, Model, Models
from memwatch.engines.command import Command
from memwatch.engines.records import EngineReading
from memwatch.engines.requests import Request
from memwatch.engines.text import count_of, name_of
from memwatch.model import Absent

PORT = 8000
REQUESTS = (
    Request(
        "/v1/models",
        "once a minute",
        "None: a list of names, also from servers that load a model with its first request.",
        form=Models,
    ),
)
MODULES = frozenset({"llama_cpp.server", "mlx_lm.server", "mlc_llm.serve", "aphrodite.endpoints.openai.api_server"})
SCRIPTS = frozenset(
    {"mlx_lm.server", "lmdeploy", "koboldcpp", "mlc_llm", "aphrodite", "llamafile", "mistralrs-server"}
)
# Programs of a release and of a model: koboldcpp.py, koboldcpp-linux-x64, llamafile-0.9.3, Qwen3-8B.llamafile.
PREFIXES, SUFFIX = ("koboldcpp-", "llamafile-"), ".llamafile"
NO = Absent.NOT_SUPPORTED
NOT_LOADED = "It lists {count} models, and not which of them are loaded."
NOTHING_MORE = "It reports its model only: the API has no figures of memory and load."


def matches(command: Command) -> bool:
    is_part = command.script == "mlx_lm" and command.subcommand == "server"
    is_part = is_part or (command.script == "mistralrs" and command.subcommand == "serve")
    name = command.script.removesuffix(".py")
    is_named = name in SCRIPTS or name.startswith(PREFIXES) or name.endswith(SUFFIX)
    return is_part or command.module in MODULES or is_named


def parse(answers: Answers) -> EngineReading:
    listed, started = answers.models(), answers.command.option("--model")
    model = listed[0] if len(listed) == 1 else Model()
    return EngineReading(
        version=NO,
        model=name_of(model.id or started),
        model_path=model.root or started,
        context_tokens=count_of(model.max_model_len),
        kv_cache_bytes=NO,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        requests_running=NO,
        requests_waiting=NO,
        rate=NO,
        sleeping=NO,
        notes=(NOTHING_MORE,) if len(listed) < 2 else (NOT_LOADED.format(count=len(listed)), NOTHING_MORE),
    )
