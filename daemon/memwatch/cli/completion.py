"""`memwatch completion SHELL`: generate the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from memwatch.cli.context import EXIT_OK
from memwatch.cli.errors import CommandError

WHERE = {
    "bash": "~/.local/share/bash-completion/completions/memwatch",
    "zsh": "a file _memwatch in a directory of $fpath",
    "fish": "~/.config/fish/completions/memwatch.fish",
}


@click.command(short_help="Generate shell completion.")
@click.argument("shell", type=click.Choice(tuple(WHERE)))
def completion(shell: str) -> int:
    """Print the completion script for SHELL.

    bash: save it as ~/.local/share/bash-completion/completions/memwatch. zsh: save it as _memwatch in a directory
    of $fpath. fish: save it as ~/.config/fish/completions/memwatch.fish.
    """
    kind = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if kind is None:
        raise CommandError(f"this version of click does not support completion for {shell}; upgrade click")
    click.echo(kind(root, {}, "memwatch", "_MEMWATCH_COMPLETE").source())
    return EXIT_OK
