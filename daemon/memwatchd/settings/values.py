"""Settings as people write them: durations, addresses, folders. What cannot be read is refused with a reason."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path

from msgspec import Struct

from memwatch.options import Refused, Size, bytes_of, socket_of

HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*\.?")
USER = re.compile(r"[^:\x00-\x1f\x7f]{1,255}")


class TcpAddress(Struct, frozen=True):
    """Where to listen; port 0 lets the kernel choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(Struct, frozen=True):
    """A socket file to listen on."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def resident_of(value: object) -> Size | str:
    """A size, or the word "auto"."""
    return "auto" if value == "auto" else bytes_of(value)


def address_of(value: object) -> TcpAddress | UnixAddress:
    """An address from HOST:PORT, [IPv6]:PORT or unix:/PATH."""
    if not isinstance(value, str):
        raise Refused
    if value.startswith("unix:"):
        return UnixAddress(socket_of(value))
    host, colon, port = value.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise Refused
    if host.startswith("[") and host.endswith("]"):
        return TcpAddress(ipv6_of(host[1:-1]), int(port))
    return TcpAddress(host_of(host), int(port))


def ipv6_of(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise Refused from None


def host_of(value: object) -> str:
    """A host name or an IPv4 address, in lower case."""
    if not isinstance(value, str) or not HOST_NAME.fullmatch(value):
        raise Refused
    if re.fullmatch(r"[0-9.]+", value):
        try:
            ipaddress.IPv4Address(value)
        except ValueError:
            raise Refused from None
    return value.lower()


def allowed_host_of(value: object) -> str:
    """A name under which a browser may ask for the page: a host name, or an IP address without its port."""
    if isinstance(value, str) and ":" in value:
        return ipv6_of(value.removeprefix("[").removesuffix("]"))
    return host_of(value).removesuffix(".")


def folder_of(value: object) -> Path:
    """A folder that exists."""
    if not isinstance(value, str) or not os.path.isdir(value):
        raise Refused
    return Path(value).absolute()


def new_folder_of(value: object) -> Path:
    """A folder that is made where it is not there yet."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise Refused
    return Path(value).absolute()


def file_of(value: object) -> str:
    """A file's absolute path. Whether it can be used is seen by using it."""
    if isinstance(value, str) and os.path.isabs(value) and "\0" not in value:
        return value
    raise Refused


def user_of(value: object) -> str:
    if isinstance(value, str) and USER.fullmatch(value):
        return value
    raise Refused("is not a user name, which has 1 to 255 characters and no colon")


def tuple_of(value: object) -> tuple[object, ...]:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise Refused


def some_of(value: object) -> tuple[object, ...]:
    """The same with something in it."""
    if found := tuple_of(value):
        return found
    raise Refused


def from_text(text: str, kind: object) -> object:
    """A setting from the environment, where everything is text; `kind` is the type that is wanted.

    What cannot be understood stays text, and is refused like the same text in a file.
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
