"""Keys of sections: their declarations, and the parsers of their values. Invalid values raise InvalidValueError."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from memwatch.core.doc import Doc
from memwatch.core.options import (
    Accepts,
    Bounds,
    Converter,
    InvalidValueError,
    Section,
    Size,
    duration_text,
    parse_host,
    parse_size,
    parse_socket,
)
from memwatch.core.runtime.own_files import remedy_to_read
from memwatch_monitor.notify.http_post import Endpoint, parse_endpoint
from memwatch_web.asgi.login import TOKEN_USER


class ContextConverter(Struct, frozen=True):
    """Parses a value that may refer to a file or a variable. The function's second argument is a SecretContext."""

    function: Callable[[Any, Any], object]


class TakesEffect(Struct, frozen=True):
    """Time at which a changed value takes effect. Every key declares one, itself or through its section.

    `at`: the next start, a reload, or the reading of the settings for a key that only permits other values.
    `while_set` names a key of the same section: a reload is enough only if it is set before and after. `simulated`
    is false for settings that are not used during replay. `program`: the one that is started or reloaded.
    """

    at: Literal["start", "reload", "reading"]
    while_set: str = ""
    simulated: bool = True
    program: str = "memwatchd"


AT_START = TakesEffect("start")
ON_RELOAD = TakesEffect("reload")
ON_RELOAD_OF_MACHINE = TakesEffect("reload", simulated=False)
ON_RELOAD_OF_GUARDIAN = TakesEffect("reload", program="memwatchd-guardian")
AT_START_OF_GUARDIAN = TakesEffect("start", program="memwatchd-guardian")
ON_READING = TakesEffect("reading")


class Key(Struct, frozen=True):
    """A key of a section: its type, the type's annotations, and its default or NODEFAULT."""

    name: str
    kind: Any
    extras: tuple[object, ...]
    default: object


# Cache of `section_keys`.
KEYS_BY_SECTION: dict[type[Section], dict[str, Key]] = {}


def section_keys(section: type[Section]) -> dict[str, Key]:
    """Return the keys of a section, in order."""
    if section not in KEYS_BY_SECTION:
        hints = get_type_hints(section, include_extras=True)
        KEYS_BY_SECTION[section] = {one.name: describe_key(one, hints[one.name]) for one in fields(section)}
    return KEYS_BY_SECTION[section]


def describe_key(field: FieldInfo, hint: object) -> Key:
    """Describe a field. A derived section is declared as its base class; its default has the derived type."""
    kind, extras = unwrap(hint)
    default = default_of(field)
    if is_section(kind) and isinstance(default, kind):
        kind = type(default)
    return Key(field.name, kind, extras, default)


def default_of(key: FieldInfo) -> object:
    return key.default if key.default_factory is NODEFAULT else key.default_factory()


def unwrap(hint: Any) -> tuple[Any, tuple[object, ...]]:  # noqa: ANN401  any annotation
    """Return a type without `| None`, and its annotations."""
    extras: tuple[object, ...] = ()
    while True:
        inside = [kind for kind in get_args(hint) if kind is not NoneType]
        if get_origin(hint) is Annotated:
            extras += hint.__metadata__
            hint = hint.__origin__
        elif len(inside) == 1 and NoneType in get_args(hint):
            hint = inside[0]
        else:
            return hint, extras


def documentation(key: Key) -> str:
    """Return the documentation of a key. Its line feeds are in the file only."""
    text = next((extra.text for extra in key.extras if isinstance(extra, Doc)), "")
    bounds = next((extra for extra in key.extras if isinstance(extra, Bounds)), "")
    return text.replace("{bounds}", re.sub("^from ", "", str(bounds)))


def default_words(key: Key) -> str:
    """Return the default as the help of a command line shows it, empty if the key is not set by default."""
    values = key.default if isinstance(key.default, tuple) else (key.default,)
    shown = ", ".join(setting_text(value).strip('"') for value in values if value not in (None, False))
    return f" [default: {shown}]" if shown else ""


class NamedTable(Section, frozen=True, kw_only=True):
    """A table of a list: its name is unique there, and identifies it in `--check-config` and in a reload."""

    name: str


def parse_table_name(value: object) -> str:
    if isinstance(value, str) and TABLE_NAME.fullmatch(value):
        return value
    raise InvalidValueError


def refuse_equal_names(lists: Mapping[str, tuple[NamedTable, ...]], kind: str) -> None:
    """Raise InvalidValueError if two tables of these lists have one name. `kind`: the word for a table."""
    seen: set[str] = set()
    for key, tables in lists.items():
        for index, table in enumerate(tables):
            if table.name in seen:
                why = f'another {kind} is named "{table.name}"; use a unique name'
                raise InvalidValueError(why, ((key, index, "name"),))
            seen.add(table.name)


def is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def checked_endpoint(value: object) -> Endpoint:
    if not isinstance(value, str):
        raise InvalidValueError
    try:
        return parse_endpoint(value)
    except ValueError as error:
        raise InvalidValueError(str(error)) from None


def checked_url(value: object) -> str:
    checked_endpoint(value)
    return str(value).rstrip("/")


# Domains that cannot be registered. Of all others one label is not enough: ".com" would allow an attacker's names.
PRIVATE_DOMAINS = frozenset({"internal", "lan", "local"})
# As useradd(8) permits, with the dot that others do.
ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?")
TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
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


CertificateFile = Annotated[
    str | None, Converter(parse_file), Accepts("the path of a file", '"/etc/memwatchd/tls.pem"')
]
KeyFile = Annotated[str | None, Converter(parse_file), Accepts("the path of a file", '"/etc/memwatchd/tls.key"')]


def parse_user(value: object) -> str:
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


LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", re.ASCII)
MAX_LABELS, MAX_VALUE_LENGTH = 16, 128
# Labels of alerts, those that Prometheus adds to each series, and those of memwatch_machine_info.
RESERVED = {
    "alertname": "names the alert",
    "collector": "names the collector of an alert",
    "device": "names the device of an alert",
    "severity": "is the severity of an alert",
    "target": "names the target of an alert",
    "instance": "comes from the scrape, or from instance under [alerts]",
    "job": "comes from the scrape, or from job under [alerts]",
    **dict.fromkeys(
        ("hostname", "model", "architecture", "kernel", "memory"), "is a label of memwatch_machine_info"
    ),
}


def parse_labels(value: object) -> dict[str, object]:
    """Check the type of the table and the number of labels."""
    if not isinstance(value, dict):
        raise InvalidValueError
    if len(value) > MAX_LABELS:
        raise InvalidValueError(f"has {len(value)} labels; leave {MAX_LABELS} at most", has_example=False)
    return value


def parse_label_name(value: object) -> str:
    if not isinstance(value, str) or not LABEL_NAME.fullmatch(value):
        raise refusal("is not a label name: letters, digits and _, 64 at most, and no digit first")
    if value.startswith("__"):
        raise refusal("begins with __, which Prometheus reserves for itself")
    if value in RESERVED:
        raise refusal(f"is reserved: this label {RESERVED[value]}")
    return value


def refusal(why: str) -> InvalidValueError:
    return InvalidValueError(f"{why}; use a name such as cluster or rack", has_example=False)


def parse_label_value(value: object) -> str:
    """Return a label's value. An empty one is refused: Prometheus drops such a label."""
    if isinstance(value, str) and 0 < len(value) <= MAX_VALUE_LENGTH and value.isprintable():
        return value
    raise InvalidValueError


def setting_text(value: object) -> str:
    """Format a value as in the configuration file. Of a URL only the origin is shown, of a secret nothing."""
    if value is None or value == ():
        return "not set" if value is None else "[]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f'"{duration_text(value)}"'
    if isinstance(value, Size):
        return f'"{value.text}"'
    if isinstance(value, tuple):
        return f"[{', '.join(setting_text(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)
