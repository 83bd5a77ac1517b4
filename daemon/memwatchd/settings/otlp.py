"""Settings of the push over OTLP: [otlp]."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Annotated

from msgspec import field

from memwatch.core.linux.key_owner import KeyUse
from memwatch.core.options import Accepts, Bounds, Converter, Duration, InvalidValueError, Section, seconds
from memwatch.monitor.notify.webhook_payload import Endpoint, Password, parse_password
from memwatchd.settings.certificates import client_context
from memwatchd.settings.secrets_source import REFERENCES, SecretContext, look_up
from memwatchd.settings.section import ContextConverter, checked_endpoint
from memwatchd.settings.values import parse_account, parse_file

INSTALL = "pip install 'memwatchd[otel]'"
PATH = "/v1/metrics"
LOGINS = ("Basic ", "Bearer ")
HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


def parse_otlp_endpoint(value: object) -> Endpoint:
    """Parse the base URL of a receiver and check that the SDK is installed, without importing it."""
    found = checked_endpoint(value)
    if "?" in found.path:
        raise InvalidValueError("has a query; use headers under [otlp] for tokens")
    if not is_installed():
        raise InvalidValueError(
            f"needs OpenTelemetry's SDK and OTLP exporter, which are not installed; install them with: {INSTALL}",
            has_example=False,
        )
    return found


def is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def parse_header_name(value: object) -> str:
    if isinstance(value, str) and HEADER_NAME.fullmatch(value):
        return value
    raise InvalidValueError("is not the name of an HTTP header; use one such as authorization", has_example=False)


def header_value_from(value: object, context: SecretContext) -> Password:
    """Read a header's value from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise InvalidValueError
    is_secret = value.startswith((*REFERENCES, *LOGINS))
    text, whose = look_up(value, context) if is_secret else (value, "")
    try:
        return parse_password(text)
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}".strip(), has_example=not whose) from None


class Otlp(Section, frozen=True, kw_only=True):
    """Push of all metrics to an OpenTelemetry Collector or store. Off without an endpoint."""

    endpoint: Annotated[
        Endpoint | None,
        Converter(parse_otlp_endpoint),
        Accepts("a URL", '"http://127.0.0.1:4318"', shown=False),
    ] = None
    interval: Annotated[Duration, Bounds(seconds(1), seconds(3600))] = seconds(60)
    user: Annotated[
        str | None, Converter(parse_account), Accepts("the name or the number of a user", '"otelcol"', shown=False)
    ] = None
    ca_file: Annotated[
        str | None, Converter(parse_file), Accepts("the path of a file", '"/etc/memwatchd/tls.pem"')
    ] = None
    headers: dict[
        Annotated[str, Converter(parse_header_name)],
        Annotated[
            Password,
            ContextConverter(header_value_from),
            Accepts(
                "a header's value, or file:/PATH, credential:NAME or env:NAME of one",
                '"file:/etc/memwatchd/otlp-authorization"',
                shown=False,
            ),
        ],
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ca_file is not None:
            client_context(self.ca_file)

    @property
    def url(self) -> str:
        """Return the URL of the metrics. The endpoint may already contain the path."""
        if self.endpoint is None:
            raise ValueError("no endpoint is set")
        base = f"{self.endpoint.origin}{self.endpoint.path.rstrip('/')}"
        return base if base.endswith(PATH) else base + PATH

    @property
    def secret(self) -> KeyUse | None:
        """Return the secret of each request, None without one."""
        if self.endpoint is None:
            return None
        word = "login" if self.headers else "URL" if self.endpoint.has_secret or self.user else ""
        return KeyUse("", self.endpoint.origin, word, "[otlp]") if word else None
