"""What a user may decide about the faces, and figures that they are handed."""

from __future__ import annotations

from msgspec import Struct

from memwatch_web.asgi.auth import Login


class FaceOptions(Struct, frozen=True):
    """May change while the faces are served.

    `hosts` are further names this machine answers to; `process_metrics` is how many processes /metrics names.
    `patterns`: whether /patterns is served.
    """

    hosts: tuple[str, ...] = ()
    process_metrics: int = 0
    login: Login = Login()
    patterns: bool = False
