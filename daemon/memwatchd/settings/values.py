"""Parse the text forms of settings: addresses, host names, paths. Invalid values raise InvalidValueError."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path

from msgspec import Struct

from memwatch.core.options import InvalidValueError, Size, parse_host, parse_size, parse_socket
from memwatch.core.runtime.file_remedies import remedy_to_read

# Domains that cannot be registered. Of all others one label is not enough: ".com" would allow an attacker's names.
PRIVATE_DOMAINS = frozenset({"internal", "lan", "local"})
# As useradd(8) permits, with the dot that others do.
ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?")
USER = re.compile(r"[^:\x00-\x1f\x7f]{1,255}")


class TcpAddress(Struct, frozen=True):
    """TCP listen address. With port 0 the kernel chooses a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(Struct, frozen=True):
    """Path of a Unix socket to listen on."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def why_unreadable(error: OSError | ValueError) -> str:
    """Return the reason in parentheses, with what to do."""
    if isinstance(error, OSError):
        return f"({error.strerror}); {remedy_to_read(error, 'the user of memwatchd')}"
    return "(its name contains a NUL byte)"


def parse_resident(value: object) -> Size | str:
    """Parse a size or the word "auto"."""
    return "auto" if value == "auto" else parse_size(value)


def parse_address(value: object) -> TcpAddress | UnixAddress:
    """Parse HOST:PORT, [IPv6]:PORT or unix:/PATH."""
    if not isinstance(value, str):
        raise InvalidValueError
    if value.startswith("unix:"):
        return UnixAddress(parse_socket(value))
    host, colon, port = value.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise InvalidValueError
    if host.startswith("[") and host.endswith("]"):
        return TcpAddress(parse_ipv6(host[1:-1]), int(port))
    return TcpAddress(parse_host(host), int(port))


def parse_ipv6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise InvalidValueError from None


def parse_allowed_host(value: object) -> str:
    """Parse an allowed Host name: a host name, a domain with a leading dot, or an IP address without its port."""
    if isinstance(value, str) and value.startswith("."):
        return "." + parse_domain(value[1:])
    if isinstance(value, str) and ":" in value:
        return parse_ipv6(value.removeprefix("[").removesuffix("]"))
    return parse_host(value).removesuffix(".")


def parse_domain(value: str) -> str:
    domain = parse_host(value).removesuffix(".")
    if "." not in domain and domain not in PRIVATE_DOMAINS:
        raise InvalidValueError(f"is {'.' + value!r} as a domain, which would allow names of other owners")
    if re.fullmatch(r"[0-9.]+", domain):
        raise InvalidValueError
    return domain


def parse_account(value: object) -> str:
    """Parse the name or the number of a user of this machine."""
    if not isinstance(value, str) or not ACCOUNT.fullmatch(value):
        raise InvalidValueError('is not the name or the number of a user, in quotes, such as "vllm" or "998"')
    return value


def parse_folder(value: object) -> Path:
    """Parse the path of an existing directory."""
    if not isinstance(value, str) or not os.path.isdir(value):
        raise InvalidValueError
    return Path(value).absolute()


def parse_new_folder(value: object) -> Path:
    """Parse a path that need not exist yet."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidValueError
    return Path(value).absolute()


def parse_file(value: object) -> str:
    """Parse the absolute path of a file. The file itself is checked when it is used."""
    if isinstance(value, str) and os.path.isabs(value) and "\0" not in value:
        return value
    raise InvalidValueError


def parse_user(value: object) -> str:
    from memwatch_web.asgi.auth import TOKEN_USER  # its dependencies take 50 ms

    if value == TOKEN_USER:
        raise InvalidValueError("is reserved: its password is the bearer token; choose another name")
    if isinstance(value, str) and USER.fullmatch(value):
        return value
    raise InvalidValueError("is not a user name (1 to 255 characters, no colon)")


def parse_tuple(value: object) -> tuple[object, ...]:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise InvalidValueError


def parse_nonempty_tuple(value: object) -> tuple[object, ...]:
    """Parse a list that is not empty."""
    if found := parse_tuple(value):
        return found
    raise InvalidValueError


def from_text(text: str, kind: object) -> object:
    """Parse the text of an environment variable as the type `kind`.

    Text that cannot be parsed is returned unchanged; validation rejects it like the same text in a file.
    """
    if kind is bool:
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        return words.get(text.strip().lower(), text)
    if kind is tuple:
        return [part.strip() for part in text.split(",")]
    if kind is int and re.fullmatch(r"-?[0-9]{1,15}", text.strip()):
        return int(text)
    if kind is float and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text.strip()):
        return float(text)
    return text
