"""Settings of the web server: addresses, access, TLS."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import field

from memwatch.core.doc import Doc
from memwatch.core.http import is_loopback
from memwatch.core.linux.daemon_connection import PORT
from memwatch.core.options import Accepts, Bounds, Converter, InvalidValueError, Section
from memwatch_monitor.notify.http_post import is_on_this_machine, parse_endpoint
from memwatch_web.asgi.login import Login, PasswordHash, Token, parse_token
from memwatchd.settings.credentials import SecretContext, read_reference, refuse_bad_tls, warn_public
from memwatchd.settings.keys import (
    AT_START,
    ON_READING,
    ON_RELOAD,
    CertificateFile,
    ContextConverter,
    KeyFile,
    TakesEffect,
    TcpAddress,
    UnixAddress,
    checked_url,
    parse_address,
    parse_allowed_host,
    parse_file,
    parse_nonempty_tuple,
    parse_tuple,
    parse_user,
)

# Format of htpasswd -B, bcrypt and exporter-toolkit. A cost of 31 would take days.
BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|1[0-6])\$[./A-Za-z0-9]{53}", re.ASCII)


def token_from(value: object, context: SecretContext) -> Token:
    """Read a token from "file:/path", "credential:NAME" or "env:NAME"."""
    text, whose = read_reference(value, context)
    try:
        return parse_token(text)
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}", has_example=not whose) from None


def password_hash_from(value: object, context: SecretContext) -> PasswordHash:
    """Parse a bcrypt hash. Warns if every user can read it: a weak password can then be guessed offline."""
    found = parse_password_hash(value)
    if context.public_file:
        warn_public(context, context.public_file)
    return found


def parse_password_hash(value: object) -> PasswordHash:
    if not isinstance(value, str) or not BCRYPT.fullmatch(value):
        raise InvalidValueError
    try:
        import bcrypt  # noqa: F401  checks that it is installed
    except ImportError:
        raise InvalidValueError(
            "needs the library bcrypt, which is not installed; install it with: pip install bcrypt"
        ) from None
    return PasswordHash(value)


# Value of `url` for notifications without links.
NO_URL = "none"


def page_url_from(value: object, context: SecretContext) -> str:
    """Check the URL of the pages. Warns if only this machine can open it."""
    if value == NO_URL:
        return NO_URL
    url = checked_url(value)
    if not leads_elsewhere(url):
        context.warnings.append(f"url under [web] is {url}, which no other machine can open: no link is sent")
    return url


def leads_elsewhere(url: str) -> bool:
    """Check whether other machines can open a URL by its host. The wildcard addresses are none."""
    endpoint = parse_endpoint(url)
    return not is_on_this_machine(endpoint) and endpoint.host not in WILDCARDS


WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  compared


def is_local(address: TcpAddress | UnixAddress) -> bool:
    """True if only this machine can reach an address."""
    return isinstance(address, UnixAddress) or address.host == "localhost" or is_loopback(address.host)


Address = Annotated[TcpAddress | UnixAddress, Converter(parse_address)]
HostName = Annotated[str, Converter(parse_allowed_host)]
# A TLS listener can switch to another certificate; a plain listener cannot switch to TLS.
WHILE_TLS = TakesEffect("reload", while_set="cert_file")
HASH_EXAMPLE = '"$2y$10$" and 53 more characters, as htpasswd -nB writes them'


class Auth(Section, frozen=True, kw_only=True):
    bearer_token: Annotated[
        Token | None,
        ContextConverter(token_from),
        Accepts("file:/PATH, credential:NAME or env:NAME of a token", '"file:/etc/memwatchd/token"', shown=False),
        Doc(
            'Token for "Authorization: Bearer …", at least 16 characters; `openssl rand -hex 32` makes one. '
            'From a file ("file:/PATH") that only memwatchd can read, a credential of the unit '
            '("credential:NAME"), or the environment ("env:NAME").'
        ),
    ] = None
    users: Annotated[
        dict[
            Annotated[str, Converter(parse_user)],
            Annotated[
                PasswordHash,
                ContextConverter(password_hash_from),
                Accepts("a bcrypt hash with a cost of 4 to 16", HASH_EXAMPLE, shown=False),
            ],
        ],
        Doc(
            "User names and bcrypt hashes of their passwords, in exporter-toolkit's format; `htpasswd -nBC "
            "10 NAME` makes one. Needs bcrypt (pip install bcrypt), which the package and the image include.",
            ("prometheus", '"$2y$10$abcdefghijklmnopqrstuuj7m4XYqbm74SxoBcXyw8to0CQ061DVG"'),
        ),
    ] = field(default_factory=dict)


class Tls(Section, frozen=True, kw_only=True):
    cert_file: Annotated[
        CertificateFile,
        WHILE_TLS,
        Doc("Certificate chain, server certificate first, and its key without a password."),
    ] = None
    key_file: Annotated[KeyFile, WHILE_TLS] = None
    client_ca_file: Annotated[
        str | None,
        Converter(parse_file),
        Accepts("the path of a file", '"/etc/memwatchd/clients.pem"'),
        AT_START,
        Doc("Require client certificates signed by one of these, for /healthz also."),
    ] = None

    def __post_init__(self) -> None:
        refuse_bad_tls(self.cert_file, self.key_file, self.client_ca_file)


class Web(Section, frozen=True, kw_only=True):
    listen: Annotated[
        tuple[Address, ...],
        Converter(parse_nonempty_tuple),
        Accepts("HOST:PORT (port 0 to 65535), [IPv6]:PORT or unix:/PATH", '["127.0.0.1:6360"]'),
        AT_START,
        Doc(
            "Listen addresses: HOST:PORT, [IPv6]:PORT or unix:/PATH. Port 0 lets the kernel choose. "
            "Addresses that other machines can reach need a login ([web.auth], or client_ca_file under "
            "[web.tls]), or insecure. A socket file needs no login; its owner and group can use it, also for "
            'changes. The unit\'s default is ["127.0.0.1:6360", "unix:/run/memwatchd/memwatchd.sock"], from '
            "its RuntimeDirectory=."
        ),
    ] = (TcpAddress("127.0.0.1", PORT),)
    hosts: Annotated[
        tuple[HostName, ...],
        Converter(parse_tuple),
        Accepts("a host name, a domain like .example.com, or an IP address without a port", '["gpu1.example.com"]'),
        ON_RELOAD,
        Doc(
            'Further allowed Host names, without ports, such as "gpu1.example.com", or ".example.com" for a '
            "domain with all its names. localhost, the names of this machine and of its certificate, that of url, "
            "and numeric addresses are always allowed. Other names get 400, as protection against DNS rebinding, "
            "except with a right token, password or client certificate."
        ),
    ] = ()
    url: Annotated[
        str | None,
        ContextConverter(page_url_from),
        Accepts('a URL, or "none"', '"https://gpu1.example.com/memory"', shown=False),
        ON_RELOAD,
        Doc(
            "External URL of the dashboard, for the links in notifications and in those of Prometheus: http:// or "
            "https://, without user name and password. Not set by default: the first address in listen that "
            "other machines can reach, with the first of hosts; without one there are no links. No link leads "
            'to a loopback address. "none" for no links, where such an address is only for a proxy or a container.'
        ),
    ] = None
    max_streams: Annotated[
        int,
        Bounds(1, 10_000),
        ON_RELOAD,
        Doc(
            "Maximum number of concurrent streams (open pages, /api/v1/stream), {bounds}. One client gets "
            "three quarters. Further ones get 503."
        ),
    ] = 64
    insecure: Annotated[
        bool, ON_READING, Doc("Allow unauthenticated access from other machines. Only for a trusted network.")
    ] = False
    auth: Annotated[
        Auth,
        ON_RELOAD,
        Doc(
            "Login over TCP. Without a token and without users, no login is required to read, and only root "
            "and the user of memwatchd can make changes. /healthz and /readyz never need one."
        ),
    ] = Auth()
    tls: Annotated[
        Tls,
        Doc(
            "TLS for all TCP addresses, from PEM files. A reload reads the certificate and key again, also "
            "from other files. To turn TLS on or off: Restart."
        ),
    ] = Tls()

    @property
    def login(self) -> Login:
        by_certificate = self.tls.client_ca_file is not None
        return Login(self.auth.bearer_token, self.auth.users, by_certificate=by_certificate)

    @property
    def exposed_addresses(self) -> tuple[str, ...]:
        """Addresses that other machines can reach."""
        return tuple(str(address) for address in self.listen if not is_local(address))

    @property
    def listener_for_others(self) -> TcpAddress | None:
        """Return the first listener that other machines can reach."""
        reachable = (one for one in self.listen if isinstance(one, TcpAddress) and one.port and not is_local(one))
        return next(reachable, None)

    def address_for_others(self, host: str) -> str | None:
        """Return HOST:PORT by which other machines reach the pages, None if they cannot. `host`: own name."""
        address = self.listener_for_others
        if address is None:
            return None
        name = host if address.host in WILDCARDS else address.host
        named = (one for one in (*self.hosts, name) if not one.startswith("."))
        reachable = (one for one in (TcpAddress(one, address.port) for one in named) if not is_local(one))
        return next(map(str, reachable), None)

    def url_for_others(self, host: str) -> str | None:
        """Return the URL by which other machines open the pages, None if they cannot. `host`: own name."""
        if self.url is not None:
            return self.url if self.url != NO_URL and leads_elsewhere(self.url) else None
        address, scheme = self.address_for_others(host), "http" if self.tls.cert_file is None else "https"
        return f"{scheme}://{address}" if address else None

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Names that requests may have as their Host: those of `hosts`, and that of the links to the pages."""
        named = None if self.url is None or self.url == NO_URL else urlsplit(self.url).hostname
        return self.hosts if named is None or named in self.hosts else (*self.hosts, named)

    @property
    def tcp_port(self) -> int | None:
        """Port of the first TCP address, None if there is none or the kernel chooses it."""
        ports = (address.port for address in self.listen if isinstance(address, TcpAddress))
        return next(ports, 0) or None

    @property
    def is_open(self) -> bool:
        """True if other machines have access without authentication."""
        login = self.login
        return bool(self.exposed_addresses) and not login.is_required and not login.by_certificate

    def __post_init__(self) -> None:
        if self.is_open and not self.insecure:
            raise InvalidValueError(
                f"other machines could read all data without a login at {', '.join(self.exposed_addresses)}: set "
                "bearer_token or users under [web.auth], client_ca_file under [web.tls], or, on a trusted network, "
                "insecure = true under [web] (--insecure)",
                (("listen",),),
            )
