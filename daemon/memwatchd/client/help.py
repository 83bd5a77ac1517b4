"""Extra sections of the help text: connection, examples, exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

Rows = Sequence[tuple[str, str]]


class DocumentedGroup(click.Group):
    """Command group with extra help sections: a text, or rows of two columns."""

    sections: Sequence[tuple[str, Rows | str]] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, content in self.sections:
            with formatter.section(heading):
                if isinstance(content, str):
                    formatter.write_text(content)
                else:
                    formatter.write_dl(content, col_max=52)
