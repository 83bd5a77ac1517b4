"""Ways in which a configuration breaks between two starts: each with what a problem has to say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="  # the alphabet
TOKEN = "a-token-of-the-tests"
GOOD = """[web]
listen = ["127.0.0.1:0"]
[web.auth]
bearer_token = "file:{folder}/token"
[pressure]
high_percent = 77
[[alerts.webhooks]]
name = "ops"
url = "http://127.0.0.1:9/"
secret = "file:{folder}/secret"
[[alerts.webhooks]]
name = "night"
url = "http://127.0.0.1:9/"
secret = "{secret}"
"""
BOTH = ("ops", "night")


class Breakage(Struct, frozen=True):
    """`says`: a part of a problem. `receivers`: those that are left.

    `change` edits the text or the files; without it `append` is added to the text. `seen_by`: the settings, as most
    ways; a daemon only, which opens sockets; or the service only, whose user is not the one of the files.
    `mode`: of the configuration. `closes_access`: [web] is at fault.
    """

    name: str
    says: str
    append: str = ""
    change: Callable[[Path, str], str] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    receivers: tuple[str, ...] = BOTH
    high_percent: float = 77.0
    seen_by: Literal["settings", "daemon", "service"] = "settings"
    mode: int = 0o644
    closes_access: bool = False

    @property
    def is_of_start(self) -> bool:
        """True for what only a start tries, so that a check and a reload accept it."""
        return self.says.startswith(("cannot listen", "the recording", "/etc cannot"))

    @property
    def lasts(self) -> bool:
        """True if another start has to end it: a reload of a mended configuration does not."""
        parts = ("mDNS", "the push over OTLP", "model server")
        return self.is_of_start or self.closes_access or self.says.startswith(parts)

    def apply(self, folder: Path) -> str:
        """Break the files in the folder, and return the new text of the configuration."""
        text = good(folder)
        return self.change(folder, text) if self.change else text + self.append


def good(folder: Path) -> str:
    """Write the files that the configuration names, and return its text."""
    (folder / "token").write_text(TOKEN)
    (folder / "secret").write_text(SECRET)
    return GOOD.format(folder=folder, secret=SECRET)


def replacing(old: str, new: str) -> Callable[[Path, str], str]:
    return lambda _, text: text.replace(old, new)


def without(name: str) -> Callable[[Path, str], str]:
    def change(folder: Path, text: str) -> str:
        (folder / name).unlink()
        return text

    return change


def with_content(name: str, content: str) -> Callable[[Path, str], str]:
    def change(folder: Path, text: str) -> str:
        (folder / name).write_text(content)
        return text

    return change


def as_pipe(folder: Path, text: str) -> str:
    (folder / "secret").unlink()
    os.mkfifo(folder / "secret")
    return text


def as_folder(folder: Path, text: str) -> str:
    (folder / "secret").unlink()
    (folder / "secret").mkdir()
    return text


def as_mode(mode: int) -> Callable[[Path, str], str]:
    """Give the secret to root with this mode."""

    def change(folder: Path, text: str) -> str:
        (folder / "secret").chmod(mode)
        return text

    return change


def as_loop(folder: Path, text: str) -> str:
    (folder / "secret").unlink()
    (folder / "secret").symlink_to("secret")
    return text


OTLP = '[otlp]\nendpoint = "http://127.0.0.1:9"\nheaders = { authorization = "file:/nowhere" }\n'
ENGINE = '[[engines]]\nname = "chat"\nkind = "vllm"\nurl = "http://127.0.0.1:9"\ntoken = "file:/nowhere"\n'
PEER = '[[neighbours]]\nname = "spark-2"\nurl = "https://127.0.0.1:9"\nca_file = "/nowhere.pem"\n'
MTLS = '[web.tls]\nclient_ca_file = "/nowhere.pem"\n'
RECORDING = '[recording]\nfile = "/nowhere/x"\n'
PROXY = 'proxy = "file:/nowhere"\n'
BREAKAGES = (
    Breakage("second table", "web is declared again, first on line 1", "[web]\nmax_streams = 9\n"),
    Breakage("key twice", "high_percent is declared again", change=replacing("77\n", "77\nhigh_percent = 78\n")),
    Breakage("half a line", "is not valid TOML", "high_perc"),
    Breakage("text without its quote", "close the text with a quote", '[log]\nlevel = "info\n'),
    Breakage("not UTF-8", "is not UTF-8", change=lambda _, text: text + "# \udcff"),
    Breakage(
        "no streams",
        "web.max_streams is 0",
        change=replacing("[web]", "[web]\nmax_streams = 0"),
        closes_access=True,
    ),
    Breakage("unknown section", "webb is not a setting", "[webb]\nlisten = []\n"),
    Breakage("unknown key", "did you mean", change=replacing("high_percent", "high_procent")),
    Breakage("value out of bounds", "high_percent is 177", change=replacing("77", "177")),
    Breakage("value of another type", "high_percent is true", change=replacing("77", "true")),
    Breakage("number in place of a table", "log is 1", change=lambda _, text: f"log = 1\n{text}"),
    Breakage("bad URL", "url", change=replacing('url = "http://127.0.0.1:9/"', 'url = "127.0.0.1"')),
    Breakage("two receivers of one name", "another receiver is named", change=replacing('"night"', '"ops"')),
    Breakage("receiver without a name", "name is missing", change=replacing('name = "ops"\n', "")),
    Breakage("file is gone", "cannot be read", change=lambda *_: ""),
    Breakage("secret is gone", 'receiver "ops" is off', change=without("secret"), receivers=("night",)),
    Breakage("secret is bad", 'receiver "ops" is off', change=with_content("secret", "x"), receivers=("night",)),
    Breakage("secret is empty", 'receiver "ops" is off', change=with_content("secret", ""), receivers=("night",)),
    Breakage("secret is a pipe", "not a regular file", change=as_pipe, receivers=("night",)),
    Breakage("secret is a folder", 'receiver "ops" is off', change=as_folder, receivers=("night",)),
    Breakage("secret is a loop of links", 'receiver "ops" is off', change=as_loop, receivers=("night",)),
    Breakage(
        "credential that the unit does not load",
        "LoadCredential=ops",
        change=lambda folder, text: text.replace(f"file:{folder}/secret", "credential:ops"),
        receivers=("night",),
    ),
    Breakage(
        "variable that is not set",
        "OPS_SECRET, which is not set",
        change=lambda folder, text: text.replace(f"file:{folder}/secret", "env:OPS_SECRET"),
        receivers=("night",),
    ),
    Breakage(
        "proxy is gone",
        "the proxy is off",
        change=lambda _, text: text.replace("[[alerts", f"[alerts]\n{PROXY}[[alerts", 1),
        receivers=(),
    ),
    Breakage("header of OTLP is gone", "the push over OTLP is off", OTLP),
    Breakage("token of a model server is gone", 'model server "chat" is off', ENGINE),
    Breakage("certificate of a neighbour is gone", 'neighbour "spark-2" is off', PEER),
    Breakage("token is gone", "only this machine has access", change=without("token"), closes_access=True),
    Breakage(
        "token is short", "only this machine has access", change=with_content("token", "short"), closes_access=True
    ),
    Breakage(
        "certificate is gone",
        "only this machine has access",
        '[web.tls]\ncert_file = "/nowhere.pem"\n',
        closes_access=True,
    ),
    Breakage(
        "hosts are bad",
        "only this machine has access",
        change=replacing("[web]", '[web]\nhosts = ["a b"]'),
        closes_access=True,
    ),
    Breakage("CA of clients without a certificate", "only this machine has access", MTLS, closes_access=True),
    Breakage("mDNS without its library", "mDNS is off", "[discovery]\nmdns = true\n", seen_by="service"),
    Breakage(
        "name that DNS does not know",
        "cannot listen on name.invalid:6361: ",
        change=replacing('["', '["name.invalid:6361", "'),
        seen_by="service",
    ),
    Breakage("recording in no folder", "the recording is off: ", RECORDING, seen_by="daemon"),
    Breakage(
        "secret of another user",
        'receiver "ops" is off',
        change=as_mode(0o600),
        receivers=("night",),
        seen_by="service",
    ),
    Breakage(
        "secret of no mode", 'receiver "ops" is off', change=as_mode(0), receivers=("night",), seen_by="service"
    ),
    Breakage(
        "file of another user",
        "cannot be read (Permission denied)",
        change=lambda _, text: text,
        seen_by="service",
        mode=0o600,
    ),
    Breakage("foreign state folder", "/etc cannot be used (", '[state]\ndir = "/etc"\n', seen_by="service"),
    Breakage("unknown variable", "MEMWATCHD_FOO is not a setting", environ={"MEMWATCHD_FOO": "1"}),
    Breakage("bad variable", "MEMWATCHD_LOG_LEVEL", environ={"MEMWATCHD_LOG_LEVEL": "loud"}),
)
OF_SETTINGS = tuple(one for one in BREAKAGES if one.seen_by == "settings")
OF_DAEMON = tuple(one for one in BREAKAGES if one.seen_by != "service")
