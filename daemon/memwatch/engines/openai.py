"""Any other server with OpenAI's API: it names its model, and little else."""

from __future__ import annotations

from memwatch.engines.answers import Answers
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
    ),
)
MODULES = frozenset({"llama_cpp.server", "mlx_lm.server", "mlc_llm.serve", "aphrodite.endpoints.openai.api_server"})
SCRIPTS = frozenset(
    {"mlx_lm.server", "lmdeploy", "koboldcpp", "mlc_llm", "aphrodite", "llamafile", "mistralrs-server"}
)
NO = Absent.NOT_SUPPORTED
NOTHING_MORE = "It reports its model only: the API has no figures of memory and load."


def matches(command: Command) -> bool:
    return command.module in MODULES or command.script in SCRIPTS


def parse(answers: Answers) -> EngineReading:
    model = answers.model()
    return EngineReading(
        version=NO,
        model=name_of(model.id),
        model_path=model.root or answers.command.option("--model"),
        context_tokens=count_of(model.max_model_len),
        kv_cache_bytes=NO,
        kv_cache_ratio=NO,
        requests_running=NO,
        requests_waiting=NO,
        rate=NO,
        sleeping=NO,
        notes=(NOTHING_MORE,),
    )
