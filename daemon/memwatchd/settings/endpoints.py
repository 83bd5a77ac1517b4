"""Settings of other programs and machines: [[engines]], [[neighbours]], [otlp], [discovery]."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, get_args

from msgspec import Struct, field

from memwatch import __version__
from memwatch.cli.http import Address as PeerAddress
from memwatch.cli.http import parse_url
from memwatch.core.collectors.engines import EngineAddress, EngineAddresses
from memwatch.core.doc import Doc
from memwatch.core.engines.records import Address, EngineName
from memwatch.core.linux.key_owner import KeyUse
from memwatch.core.options import Accepts, Bounds, Converter, Duration, InvalidValueError, Section, seconds
from memwatch_monitor.notify.http_post import Endpoint, Password, parse_password
from memwatchd.settings.credentials import REFERENCES, SecretContext, client_context, look_up, password_from
from memwatchd.settings.keys import (
    CertificateFile,
    ContextConverter,
    KeyFile,
    NamedTable,
    checked_endpoint,
    parse_account,
    parse_table_name,
    parse_tuple,
)

if TYPE_CHECKING:
    import ssl

STREAM = "/api/v1/stream?form=compact"
KINDS = ", ".join(f'"{name}"' for name in get_args(EngineName))
MAX_ENGINES = 32
MAX_NEIGHBOURS = 30


class Peer(Struct, frozen=True):
    """A machine to follow. `scheme` is http, https or unix; with unix, `host` is the path of a socket file.

    `prefix`: path of a reverse proxy. `authorization`: the header's value; it is never shown. `user`: to whom it is
    sent at an address of this machine, empty for the first one who was seen there.
    """

    name: str
    url: str
    scheme: str
    host: str
    port: int
    prefix: str = ""
    authorization: str | None = None
    tls: ssl.SSLContext | None = None
    user: str = ""

    def __repr__(self) -> str:
        return f"Peer({self.name!r}, {self.url!r})"

    def request(self) -> bytes:
        """Return the request for its stream."""
        host = "localhost" if self.scheme == "unix" else f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"GET {self.prefix}{STREAM} HTTP/1.1",
            f"Host: {host}" if self.scheme == "unix" else f"Host: {host}:{self.port}",
            f"User-Agent: memwatchd/{__version__}",
            "Accept: text/event-stream",
        ]
        if self.authorization is not None:
            lines.append(f"Authorization: {self.authorization}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")


class EngineServer(NamedTable, frozen=True, kw_only=True):
    """One model server."""

    name: Annotated[
        str,
        Converter(parse_table_name),
        Accepts("made of a to z, 0 to 9, - and _", '"chat"'),
        Doc("Id in metrics and on pages: a to z, 0 to 9, - and _. Unique."),
    ]
    kind: Annotated[
        EngineName,
        Doc(f"One of {KINDS}. Triton has its metrics at port 8002."),
    ]
    url: Annotated[
        Endpoint,
        Converter(checked_endpoint),
        Accepts("a URL", '"http://127.0.0.1:8000"', shown=False),
        Doc("Address; only GET requests are sent, and redirects are not followed."),
    ]
    token: Annotated[
        Password | None,
        ContextConverter(password_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of a token", '"file:/etc/memwatchd/vllm-token"', shown=False
        ),
        Doc("Sent as a bearer token."),
    ] = None

    user: Annotated[
        str | None,
        Converter(parse_account),
        Accepts("the name or the number of a user", '"vllm"', shown=False),
        Doc(
            "User of the server, a name in /etc/passwd or a number: on this machine the token is sent to no "
            "other user who listens there. By default the first user who was seen there, which the state "
            "folder keeps."
        ),
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


EngineServers = Annotated[
    tuple[EngineServer, ...],
    Converter(parse_servers),
    Accepts("a list of tables, each beginning with [[engines]]", "[[engines]]", shown=False),
]


def engine_addresses(servers: tuple[EngineServer, ...]) -> EngineAddresses:
    return EngineAddresses(tuple(server.address for server in servers))


def parse_peer_url(value: object) -> PeerAddress:
    if not isinstance(value, str):
        raise InvalidValueError
    return parse_url(value)


def parse_neighbours(value: object) -> tuple[object, ...]:
    """Parse the list of tables. For more machines there is Prometheus."""
    found = parse_tuple(value)
    if len(found) > MAX_NEIGHBOURS:
        raise InvalidValueError(
            f"has {len(found)} tables, and at most {MAX_NEIGHBOURS} are allowed: for more machines use Prometheus",
            has_example=False,
        )
    return found


class NeighbourSection(NamedTable, frozen=True, kw_only=True):
    """One machine to follow."""

    name: Annotated[
        str,
        Converter(parse_table_name),
        Accepts("made of a to z, 0 to 9, - and _", '"spark-2"'),
        Doc("Name on the page: a to z, 0 to 9, - and _. Unique."),
    ]
    url: Annotated[
        PeerAddress,
        Converter(parse_peer_url),
        Accepts("http://HOST:PORT, https://HOST:PORT or unix:/PATH", '"https://spark-2.example.com:6360"'),
        Doc("Address of its memwatchd: http://HOST:PORT, https://HOST:PORT or unix:/PATH."),
    ]
    token: Annotated[
        Password | None,
        ContextConverter(password_from),
        Accepts("file:/PATH, credential:NAME or env:NAME of a token", '"file:/etc/memwatchd/spark-2"', shown=False),
        Doc(
            'Its bearer token, from a file ("file:/PATH"), a credential of the unit ("credential:NAME") or '
            'the environment ("env:NAME"). Without https it is sent in plain text.'
        ),
    ] = None
    user: Annotated[
        str | None,
        Converter(parse_account),
        Accepts("the name or the number of a user", '"tunnel"', shown=False),
        Doc(
            "With an address of this machine, such as a tunnel: user of the program that listens there, a "
            "name in /etc/passwd or a number. The token is sent to no other. By default the first user who "
            "was seen there, which the state folder keeps."
        ),
    ] = None
    ca_file: Annotated[
        CertificateFile,
        Doc("CA of its certificate, with https. By default those of the system."),
    ] = None
    cert_file: Annotated[
        CertificateFile,
        Doc("Certificate and key that this machine shows there, with https."),
    ] = None
    key_file: KeyFile = None

    @property
    def files(self) -> tuple[str | None, str | None, str | None]:
        return self.ca_file, self.cert_file, self.key_file

    def __post_init__(self) -> None:
        if self.user and not self.token:
            raise InvalidValueError("has no effect without a token", (("user",),))
        if any(self.files) and self.url.scheme != "https":
            raise InvalidValueError("certificates need a URL that begins with https", (("url",),))
        if self.key_file and not self.cert_file:
            raise InvalidValueError("has no effect without cert_file", (("key_file",),))
        if any(self.files):
            client_context(*self.files)


def create_peers(neighbours: tuple[NeighbourSection, ...]) -> tuple[Peer, ...]:
    """Return the peers. Those with equal files share a TLS context, which takes 1 MiB."""
    contexts: dict[object, ssl.SSLContext] = {}
    return tuple(_create_peer(one, contexts) for one in neighbours)


def _create_peer(one: NeighbourSection, contexts: dict[object, ssl.SSLContext]) -> Peer:
    address, tls = one.url, None
    if address.scheme == "https":
        if one.files not in contexts:
            contexts[one.files] = client_context(*one.files)
        tls = contexts[one.files]
    login = one.token.authorization(None) if one.token else None
    place = (address.scheme, address.host, address.port, address.prefix)
    return Peer(one.name, str(address), *place, login, tls, one.user or "")


INSTALL_OTEL = "pip install 'memwatchd[otel]'"
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
            f"needs OpenTelemetry's SDK and OTLP exporter, which are not installed; install them with: "
            f"{INSTALL_OTEL}",
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
        Doc("Base URL, http:// or https://; /v1/metrics is appended. Logs show only scheme, host and port."),
    ] = None
    interval: Annotated[Duration, Bounds(seconds(1), seconds(3600)), Doc("Time between two pushes, {bounds}.")] = (
        seconds(60)
    )
    user: Annotated[
        str | None,
        Converter(parse_account),
        Accepts("the name or the number of a user", '"otelcol"', shown=False),
        Doc(
            "User of the receiver, a name in /etc/passwd or a number: on this machine nothing is sent to "
            "another user who listens there. By default headers and a URL with a secret go to the first user "
            "who was seen there, which the state folder keeps."
        ),
    ] = None
    ca_file: Annotated[
        CertificateFile,
        Doc("CA of the receiver's certificate, with https. By default those of the library certifi."),
    ] = None
    headers: Annotated[
        dict[
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
        ],
        Doc(
            'HTTP headers, such as a tenant or a login: a text, "file:/PATH", "credential:NAME" or "env:NAME".',
            ("authorization", '"file:/etc/memwatchd/otlp-authorization"'),
        ),
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


INSTALL_MDNS = "pip install 'memwatchd[mdns]'"


class DiscoverySection(Section, frozen=True, kw_only=True):
    """Announce this memwatchd by mDNS, and show others that are not joined."""

    mdns: bool = False

    def __post_init__(self) -> None:
        if self.mdns and find_spec("zeroconf") is None:
            raise InvalidValueError(
                f"needs the zeroconf library, which is not installed: {INSTALL_MDNS}",
                (("mdns",),),
                has_example=False,
            )
