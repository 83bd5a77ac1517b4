"""Write manual pages and shell completions from the help texts: python deploy/package/manual.py FOLDER."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from memwatch.cli import cli as client
from memwatch_build import read_build
from memwatchd import cli as daemon
from memwatchd import guardian_cli

ROOT = Path(__file__).parent.parent.parent
SHELLS = {"bash": "bash/{}", "zsh": "zsh/_{}", "fish": "fish/{}.fish"}
Rows = Sequence[tuple[str, str]]

FILES = (
    ("/etc/memwatchd/memwatchd.toml", "the configuration, see memwatchd.toml(5)"),
    ("/var/lib/memwatchd", "state that survives a restart of the service"),
    ("/usr/share/memwatchd", "rules for Prometheus, dashboards for Grafana, and files for other systems"),
    ("/usr/share/doc/memwatchd", "the documentation; index.md lists its pages"),
    ("/usr/share/doc/memwatchd/drop-ins", "drop-ins that give the service further permissions"),
    ("/usr/share/doc/memwatchd/examples", "units and drop-ins of other programs that use memwatchd"),
)


def roff(text: str) -> str:
    """Escape text for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)
    return re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)


def heading(name: str, section: int, what: str) -> Iterator[str]:
    yield f'.TH {name.upper()} {section} "" "memwatchd {read_build().version}" "memwatchd"'
    yield f".SH NAME\n{roff(name)} \\- {roff(what)}"


def paragraphs(text: str) -> str:
    return "\n.PP\n".join(roff(re.sub(r"\s+", " ", one.strip())) for one in text.split("\n\n"))


def rows(pairs: Rows) -> Iterator[str]:
    for term, meaning in pairs:
        yield f".TP\n.B {roff(term)}\n{roff(meaning)}"


def list_options(command: click.Command) -> Rows:
    context = click.Context(command)
    return [record for one in command.get_params(context) if (record := one.get_help_record(context))]


def daemon_page() -> Iterator[str]:
    command = daemon.command_line()
    yield from heading("memwatchd", 8, "memory monitor for hosts and GPUs")
    yield ".SH SYNOPSIS\n.B memwatchd\n[OPTIONS]"
    yield f".SH DESCRIPTION\n{paragraphs(daemon.ABOUT)}"
    yield ".SH OPTIONS"
    yield from rows(list_options(command))
    yield f".SH SETTINGS\n{paragraphs(daemon.SETTINGS)}"
    for title, pairs in (("EXIT STATUS", daemon.EXIT_CODES), ("FILES", FILES), ("EXAMPLES", daemon.EXAMPLES)):
        yield f".SH {title}"
        yield from rows(pairs)
    yield ".SH SEE ALSO\n.BR memwatch (1),\n.BR memwatchd.toml (5)"


def list_commands(group: click.Group) -> Iterator[str]:
    yield ".SH COMMANDS"
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        yield f".SS {roff(name)}\n{paragraphs(command.help or '')}"
        yield from rows(list_options(command))


def guardian_page() -> Iterator[str]:
    group = guardian_cli.guardian
    yield from heading("memwatchd-guardian", 8, "end a process before a machine runs out of memory")
    yield ".SH SYNOPSIS\n.B memwatchd-guardian\n[OPTIONS] [COMMAND]"
    yield f".SH DESCRIPTION\n{paragraphs(group.help or '')}"
    yield ".SH OPTIONS"
    yield from rows(list_options(group))
    yield from list_commands(group)
    yield ".SH SEE ALSO\n.BR memwatchd (8),\n.BR memwatchd.toml (5)"


def client_page() -> Iterator[str]:
    group = client.memwatch
    yield from heading("memwatch", 1, "query memwatchd and show a machine's memory")
    yield ".SH SYNOPSIS\n.B memwatch\n[OPTIONS] COMMAND [ARGS]..."
    yield f".SH DESCRIPTION\n{paragraphs(client.ABOUT)}"
    yield ".SH OPTIONS"
    yield from rows(list_options(group))
    yield from list_commands(group)
    for title, content in group.sections:
        yield f".SH {title.upper()}"
        if isinstance(content, str):
            yield paragraphs(content)
        else:
            yield from rows(content)
    yield ".SH SEE ALSO\n.BR memwatchd (8)"


def settings_page() -> Iterator[str]:
    """Return the page with the installed configuration file."""
    yield from heading("memwatchd.toml", 5, "configuration of memwatchd")
    yield ".SH DESCRIPTION"
    yield "The installed file: every key with its default, commented out.\n.PP\n.nf"
    yield roff((ROOT / "systemd" / "memwatchd.toml").read_text().rstrip())
    yield ".fi\n.SH SEE ALSO\n.BR memwatchd (8)"


PAGES = {
    "memwatchd.8": daemon_page,
    "memwatchd-guardian.8": guardian_page,
    "memwatch.1": client_page,
    "memwatchd.toml.5": settings_page,
}


def completion(program: str, command: click.Command, shell: str) -> str:
    found = get_completion_class(shell)
    if found is None:
        raise SystemExit(f"click has no completion for {shell}")
    source = found(command, {}, program, f"_{program.upper()}_COMPLETE").source()
    return source.rstrip() + "\n"


def write_all(folder: Path) -> None:
    """Write all pages and completions below `folder`."""
    (folder / "man").mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / "man" / name).write_text("\n".join(page()) + "\n")
    for program, command in (("memwatchd", daemon.command_line()), ("memwatch", client.memwatch)):
        for shell, place in SHELLS.items():
            file = folder / "completions" / place.format(program)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(completion(program, command, shell))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
