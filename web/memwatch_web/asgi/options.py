"""Options of the web interface that may change at run time."""

from __future__ import annotations

from msgspec import Struct

from memwatch_web.asgi.auth import Login


class WebOptions(Struct, frozen=True):
    """Options that may change while the server runs.

    `hosts`: additional host names of this machine, and domains such as ".example.com". `certificate_names`: names
    in the TLS certificate, with wildcards. `process_metrics`: number of processes in /metrics.
    `owner_metrics`: number of owners of each kind there.
    """

    hosts: tuple[str, ...] = ()
    certificate_names: tuple[str, ...] = ()
    process_metrics: int = 0
    owner_metrics: int = 0
    login: Login = Login()
