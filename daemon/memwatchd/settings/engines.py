"""Model servers to ask in addition to those that are found."""

from __future__ import annotations

from typing import Annotated, Literal

from memwatch.core.collectors.engines import EngineAddress, EngineAddresses
from memwatch.core.engines.server import Address
from memwatch.core.options import Accepts, Converter, InvalidValueError, Section
from memwatch.monitor.notify.webhook_payload import Endpoint, Password
from memwatchd.settings.channels import parse_receiver_name
from memwatchd.settings.secrets_source import password_from
from memwatchd.settings.section import ContextConverter, checked_endpoint
from memwatchd.settings.values import parse_account, parse_tuple

KindName = Literal["vllm", "sglang", "llama.cpp", "ollama", "lm-studio", "tgi", "tensorrt-llm", "triton", "openai"]
MAX_ENGINES = 32


class EngineServer(Section, frozen=True, kw_only=True):
    """One model server."""

    name: Annotated[str, Converter(parse_receiver_name), Accepts("made of a to z, 0 to 9, - and _", '"chat"')]
    kind: KindName
    url: Annotated[Endpoint, Converter(checked_endpoint), Accepts("a URL", '"http://127.0.0.1:8000"', shown=False)]
    token: Annotated[
        Password | None,
        ContextConverter(password_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of a token", '"file:/etc/memwatchd/vllm-token"', shown=False
        ),
    ] = None

    user: Annotated[
        str | None, Converter(parse_account), Accepts("the name or the number of a user", '"vllm"', shown=False)
    ] = None

    @property
    def address(self) -> EngineAddress:
        url, token = self.url, self.token.text if self.token else ""
        at = Address(url.host, url.port, url.path.rstrip("/"), token, url.scheme == "https", self.user or "")
        return EngineAddress(self.kind, self.name, at)


def parse_servers(value: object) -> tuple[object, ...]:
    servers = parse_tuple(value)
    if len(servers) > MAX_ENGINES:
        raise InvalidValueError(f"has {len(servers)} tables, more than {MAX_ENGINES}")
    return servers


def refuse_equal_names(servers: tuple[EngineServer, ...]) -> None:
    seen: set[str] = set()
    for index, server in enumerate(servers):
        if server.name in seen:
            why = f'another model server is named "{server.name}"; use a unique name'
            raise InvalidValueError(why, (("engines", index, "name"),))
        seen.add(server.name)


EngineServers = Annotated[
    tuple[EngineServer, ...],
    Converter(parse_servers),
    Accepts("a list of tables, each beginning with [[engines]]", "[[engines]]", shown=False),
]


def engine_addresses(servers: tuple[EngineServer, ...]) -> EngineAddresses:
    return EngineAddresses(tuple(server.address for server in servers))
