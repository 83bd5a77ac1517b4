"""Command group: sections of the help text, and commands that are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

import click

Rows = Sequence[tuple[str, str]]


class DocumentedGroup(click.Group):
    """Command group with extra help sections: a text, or rows of two columns. `deferred`: commands by their module.

    Importing all of them takes three times as long as most commands do.
    """

    sections: Sequence[tuple[str, Rows | str]] = ()
    deferred: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.deferred})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.deferred and cmd_name not in self.commands:
            self.add_command(getattr(import_module(self.deferred[cmd_name]), cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, content in self.sections:
            with formatter.section(heading):
                if isinstance(content, str):
                    formatter.write_text(content)
                else:
                    formatter.write_dl(content, col_max=52)
