"""Command group: sections of the help text, and commands that are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

import click

Rows = Sequence[tuple[str, str]]

# Errors of click without a remedy. Not all of them have a class of their own in each version.
BARE_ERRORS = (click.MissingParameter, click.NoSuchOption, click.BadOptionUsage)
BARE_BEGINNINGS = ("No such command", "Got unexpected extra argument")


def usage_sentence(error: click.ClickException, program: str) -> str:
    """Return the message about a wrong command line in one line, with a remedy where click gives none."""
    text = " ".join(error.format_message().split())
    is_bare = isinstance(error, BARE_ERRORS) or text.startswith(BARE_BEGINNINGS)
    if not is_bare or text.endswith("?"):  # click asks: Did you mean …?
        return text
    context = error.ctx if isinstance(error, click.UsageError) else None  # none if an option lacks its value
    return f"{text.removesuffix('.')}; see {context.command_path if context else program} --help"


class DocumentedGroup(click.Group):
    """Command group whose help fits a screen of 24 lines. `deferred`: commands by their module.

    `groups`: names of related commands, and what they show. `sections`: a text, or rows of two columns, for the
    manual page. Importing all commands takes three times as long as most of them do.
    """

    groups: Rows = ()
    hint = ""
    sections: Sequence[tuple[str, Rows | str]] = ()
    deferred: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.deferred})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.deferred and cmd_name not in self.commands:
            self.add_command(getattr(import_module(self.deferred[cmd_name]), cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_paragraph()
        formatter.write_text(self.hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(self.groups, col_max=36)
