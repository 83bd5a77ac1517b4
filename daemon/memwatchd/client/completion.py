"""`memwatch completion SHELL`: the script that has a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from memwatchd.client.context import EXIT_OK
from memwatchd.client.errors import CommandError

WHERE = {
    "bash": "~/.local/share/bash-completion/completions/memwatch",
    "zsh": "a file _memwatch in a folder of $fpath",
    "fish": "~/.config/fish/completions/memwatch.fish",
}


@click.command(short_help="A script for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(tuple(WHERE)))
def completion(shell: str) -> int:
    """Print the completion script for SHELL.

    For bash, write it to ~/.local/share/bash-completion/completions/memwatch; for zsh, to a file _memwatch in a
    folder of $fpath; for fish, to ~/.config/fish/completions/memwatch.fish.
    """
    kind = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if kind is None:
        raise CommandError(f"this version of click knows no completion for {shell}")
    click.echo(kind(root, {}, "memwatch", "_MEMWATCH_COMPLETE").source())
    return EXIT_OK
