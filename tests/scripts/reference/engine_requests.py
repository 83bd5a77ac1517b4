"""docs/reference/engine-requests.md: the requests that model servers get, and what each does to a sleeping one."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.collectors.engines import PERIOD_SECONDS
from memwatch.engines.kinds import KINDS
from memwatch.engines.server import RARE_SECONDS, SILENT_SECONDS
from scripts.reference.markdown import codes, page, table

INTRO = f"""
memwatchd must not change the servers that it watches: a request that loads a model, wakes a server or restarts its
idle time is not sent. These are all requests to a [model server](../howto/engines.md), with the effect of each on a
server that sleeps or loads a model. All are `GET`. They are sent every {PERIOD_SECONDS:g} s or once in
{RARE_SECONDS:g} s, and after no answer {SILENT_SECONDS:g} s later.

In the tests, simulated servers fall asleep while they are asked, and stay asleep for ten minutes.
"""
NEVER = """
## Servers that start on a connection

A proxy or a systemd socket may start its server on the first connection. memwatchd finds only servers that run, but
always asks an address under `[[engines]]`: name no such address there.
"""


def rows() -> Iterator[tuple[str, ...]]:
    """Yield engine, path, frequency and effect of each request."""
    for kind in KINDS:
        for one in kind.requests:
            yield kind.title, codes(one.path.split("|"), ", else "), one.asked, one.effect


def render() -> str:
    return page("Requests to model servers", INTRO, table(("server", "request", "sent", "effect"), rows()), NEVER)
