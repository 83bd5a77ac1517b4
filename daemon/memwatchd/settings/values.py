"""Settings as people write them: durations, addresses, folders. What cannot be read is refused with a reason."""

from __future__ import annotations

import ipaddress
import os
import re
from datetime import timedelta
from pathlib import Path

from msgspec import Struct

DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|min|h|d)?", re.ASCII)
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:([KMGT])(i?)B|B)?", re.ASCII)
HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*\.?")
USER = re.compile(r"[^:\x00-\x1f\x7f]{1,255}")
# sun_path in Linux's sockaddr_un holds 108 bytes with its NUL; macOS has 104.
SOCKET_PATH_MOST_BYTES = 103


KeyPath = tuple[str | int, ...]


class Refused(ValueError):
    """A value that cannot be used.

    The message, if any, says why in words that can follow the setting's name ("names a file that …").
    `keys` are the settings at fault, relative to the section, where that is not the value itself. An example would
    be none where the value is written as it should be, and what it names is at fault (`has_example` is false).
    """

    def __init__(self, why: str = "", keys: tuple[KeyPath, ...] = (), has_example: bool = True) -> None:
        super().__init__(why)
        self.keys = keys
        self.has_example = has_example


class Accepts(Struct, frozen=True):
    """What a setting takes, in words that follow "which is not", and a value that would work.

    Without an example the default is one. `shown` is false for a setting whose value must not be repeated
    in a message.
    """

    words: str
    example: str = ""
    shown: bool = True


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


def duration_of(value: object) -> timedelta:
    """A duration from "500ms", "1s", "5m" or "5 min", "1h", "30d", or a number of seconds."""
    if isinstance(value, str):
        match = DURATION.fullmatch(value.strip())
        if match is None:
            raise Refused
        value = float(match[1]) * UNITS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise Refused from None


def duration_text(duration: timedelta) -> str:
    """A duration in the largest unit that leaves it a whole number; one day is 24 hours."""
    microseconds = duration // timedelta(microseconds=1)
    if duration.days > 1 and not duration % timedelta(days=1):
        return f"{duration.days}d"
    for unit in ("h", "m", "s"):
        size = int(UNITS[unit] * 1_000_000)
        if microseconds % size == 0 and microseconds:
            return f"{microseconds // size}{unit}"
    whole, rest = divmod(microseconds, 1000)
    return f"{whole}{f'.{rest:03}'.rstrip('0') if rest else ''}ms" if microseconds else "0s"


class Size(int):
    """A number of bytes, and how people write it."""

    @property
    def text(self) -> str:
        """In the largest binary unit that leaves it a whole number."""
        for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
            if self and self % 1024**power == 0:
                return f"{self // 1024**power}{letter}iB"
        return f"{int(self)}B"


def bytes_of(value: object) -> Size:
    """A size from "20GiB", "512 MiB", "24GB" (thousands), or a number of bytes; at least one byte."""
    if isinstance(value, str) and (match := SIZE.fullmatch(value.strip())):
        power = "KMGT".index(match[2]) + 1 if match[2] else 0
        value = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 60:
        raise Refused
    return Size(value)


def resident_of(value: object) -> Size | str:
    """A size, or the word "auto"."""
    return "auto" if value == "auto" else bytes_of(value)


def address_of(value: object) -> TcpAddress | UnixAddress:
    """An address from HOST:PORT, [IPv6]:PORT or unix:/PATH."""
    if not isinstance(value, str):
        raise Refused
    if value.startswith("unix:"):
        return unix_address_of(value.removeprefix("unix:"))
    host, colon, port = value.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise Refused
    if host.startswith("[") and host.endswith("]"):
        return TcpAddress(ipv6_of(host[1:-1]), int(port))
    return TcpAddress(host_of(host), int(port))


def unix_address_of(path: str) -> UnixAddress:
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise Refused
    if len(os.fsencode(path)) > SOCKET_PATH_MOST_BYTES:
        raise Refused(f"has a path longer than the {SOCKET_PATH_MOST_BYTES} bytes that a socket's name may have")
    return UnixAddress(path)


def socket_of(value: object) -> str:
    """A socket file, from unix:/PATH."""
    if not isinstance(value, str) or not value.startswith("unix:"):
        raise Refused
    return str(unix_address_of(value.removeprefix("unix:")))


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


def program_of(value: object) -> str:
    """A program's absolute path, or "auto" for the one that is found on PATH. It may be installed later."""
    if isinstance(value, str) and (value == "auto" or os.path.isabs(value)) and "\0" not in value:
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
