"""`memwatch mcp`: the figures of a daemon as tools for AI assistants (Model Context Protocol, over stdio)."""

from __future__ import annotations

from importlib.util import find_spec

import click

from memwatch.cli.address import Address
from memwatch.cli.context import EXIT_OK, build_context, common
from memwatch.cli.errors import CommandError


@click.command(short_help="Serve an AI assistant on stdin and stdout (MCP).")
@common
def mcp(url: Address | None, as_json: bool) -> int:
    """Serve five read-only tools to an AI assistant on stdin and stdout, in the Model Context Protocol.

    They answer how full memory is, who holds it, if a model fits, how it changed, and what happened in an
    incident. It opens no port and changes nothing. Needs the extra mcp.
    """
    context = build_context(url, as_json)
    if find_spec("mcp") is None:
        raise CommandError("memwatch mcp needs the MCP SDK; install it with: pip install 'memwatch[mcp]'")
    from memwatch.cli._mcp_tools import create_server

    create_server(context).run("stdio")
    return EXIT_OK
