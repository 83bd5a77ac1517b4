"""docs/reference/memwatchd.md and memwatch.md: both command lines, from the help that they print."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout

import click

from memwatch.cli import cli as client
from memwatchd import cli as daemon
from memwatchd.settings.load import CONFIG, FLAGS, PREFIX, SYSTEMD_STATE
from scripts.published_models import BUILT, COUNTED, HEADER
from scripts.published_models import rows as rows_of_models
from scripts.published_sources import SOURCES
from scripts.reference.markdown import block, code, page, table

WIDTH = 100

DAEMON_INTRO = """
`memwatchd` is the daemon: it reads the machine and serves pages, metrics and JSON. Settings can also be set in a
file or in the environment. [Configuration](configuration.md) lists them all.
"""
CLIENT_INTRO = """
`memwatch` shows the data of a daemon, on this machine or another. Without a daemon on this machine, most commands
read the machine directly and report that on stderr.
"""
MODELS_INTRO = """
Figures of `memwatch fit` from a `config.json` alone, beside the parameters in the published files. The cache is
that of one sequence at 16 bits. A test compares this table. It is a selection: a model whose difference could not
be explained is not in it.

The published counts were written down by hand. `make test-torch` builds the first {built} models without memory
with the code of transformers 5.24 and finds the same counts. {read} of {all} shapes were compared with the public
code or list in the last column: layers, heads, their size, widths, vocabulary and experts. The others are from
memory.
"""


def _models_intro() -> str:
    return MODELS_INTRO.strip().format(built=len(BUILT), read=len(SOURCES), all=len(COUNTED))


SIGNALS = (
    ("SIGHUP", "reload the settings; [Configuration](configuration.md) lists the keys that need a restart"),
    ("SIGTERM, SIGINT", "stop within five seconds"),
)
HEADS = {"Exit codes": ("code", "meaning"), "Checks by other programs": ("program", "line")}
CLIENT_VARIABLES = (
    ("MEMWATCH_URL", "the daemon's address, if `--url` does not name one: `http://HOST:PORT` or `unix:/PATH`"),
    ("MEMWATCH_TOKEN", "the token to log in with"),
    (
        "MEMWATCH_DAEMON_USER",
        "name or number of the user who gets it at a port of this machine; by default root, you and memwatchd",
    ),
)


def help_of(command: click.Command, name: str, group: click.Command | None = None) -> str:
    """Return the help that a command prints in a terminal of this width, within its group if it has one."""
    # click's own limit is 80 columns, of which it leaves two free.
    most: int = (group or command).context_settings.get("max_content_width", 80)
    context = click.Context(command, info_name=name, terminal_width=min(WIDTH, most) - 2)
    context.help_option_names = ["--help"]
    with redirect_stdout(io.StringIO()):
        return re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)


def daemon_page() -> str:
    """Return the page of the daemon."""
    rows = [(code(f"{PREFIX}{flag.upper()}"), code(f"--{flag.replace('_', '-')}")) for flag in FLAGS]
    rows = [(code(CONFIG), code("--config")), *rows]
    variables = (
        "Each option of the first three groups has a variable. A key of the file is `MEMWATCHD_<SECTION>_<KEY>`. "
        f"memwatchd uses `{SYSTEMD_STATE}`, which systemd sets, if no state folder is set."
    )
    return page(
        "memwatchd",
        DAEMON_INTRO,
        block(help_of(daemon.command_line(), "memwatchd")),
        "## Environment variables\n\n" + variables + "\n\n" + table(("variable", "option"), rows),
        "## Signals\n\n" + table(("signal", "effect"), SIGNALS),
    )


def section(title: str, content: str | Sequence[tuple[str, str]]) -> str:
    """Return a section of the manual page: a text, or a table of two columns."""
    if isinstance(content, str):
        return content
    return table(HEADS.get(title, ("command", "purpose")), [(code(term), text) for term, text in content])


def client_page() -> str:
    """Return the page of the client: the command, then each of its commands."""
    group = client.memwatch
    ctx = click.Context(group)
    rows = [(code(name), text) for name, text in CLIENT_VARIABLES]
    commands = [
        f"## memwatch {name}\n\n" + block(help_of(command, f"memwatch {name}", group))
        for name in group.list_commands(ctx)
        if (command := group.get_command(ctx, name))
    ]
    return page(
        "memwatch",
        CLIENT_INTRO,
        block(help_of(group, "memwatch")),
        *(f"## {title}\n\n{section(title, content)}" for title, content in group.sections),
        "## Environment variables\n\n" + table(("variable", "meaning"), rows),
        *commands,
        "## Published models\n\n" + _models_intro() + "\n\n" + "\n".join((HEADER, *rows_of_models())),
    )
