"""Settings of the other machines to follow: [[neighbours]]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from memwatch.cli.address import Address, parse_url
from memwatch.core.options import Accepts, Converter, InvalidValueError, Section
from memwatch.monitor.neighbours.book import MAX_NEIGHBOURS
from memwatch.monitor.notify.webhook_payload import Password
from memwatchd.neighbours.peer import Peer
from memwatchd.settings.certificates import client_context
from memwatchd.settings.channels import parse_receiver_name
from memwatchd.settings.secrets_source import password_from
from memwatchd.settings.section import ContextConverter
from memwatchd.settings.values import parse_account, parse_file, parse_tuple

if TYPE_CHECKING:
    import ssl

PEM = Accepts("the path of a file", '"/etc/memwatchd/neighbours.pem"')


def parse_peer_url(value: object) -> Address:
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


class NeighbourSection(Section, frozen=True, kw_only=True):
    """One machine to follow."""

    name: Annotated[str, Converter(parse_receiver_name), Accepts("made of a to z, 0 to 9, - and _", '"spark-2"')]
    url: Annotated[
        Address,
        Converter(parse_peer_url),
        Accepts("http://HOST:PORT, https://HOST:PORT or unix:/PATH", '"http://spark-2.example.com:6360"'),
    ]
    token: Annotated[
        Password | None,
        ContextConverter(password_from),
        Accepts("file:/PATH, credential:NAME or env:NAME of a token", '"file:/etc/memwatchd/spark-2"', shown=False),
    ] = None
    user: Annotated[
        str | None, Converter(parse_account), Accepts("the name or the number of a user", '"tunnel"', shown=False)
    ] = None
    ca_file: Annotated[str | None, Converter(parse_file), PEM] = None
    cert_file: Annotated[str | None, Converter(parse_file), PEM] = None
    key_file: Annotated[str | None, Converter(parse_file), PEM] = None

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


def refuse_equal_neighbours(neighbours: tuple[NeighbourSection, ...]) -> None:
    """Raise InvalidValueError if two neighbours have one name."""
    seen: set[str] = set()
    for index, one in enumerate(neighbours):
        if one.name in seen:
            why = f'another neighbour is named "{one.name}"; use a unique name'
            raise InvalidValueError(why, (("neighbours", index, "name"),))
        seen.add(one.name)


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
