"""Notices and receivers to try webhooks with."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memwatch.alerts import Notice
from memwatch.snapshot import Level, Reason
from memwatch_web.webhook_delivery import Receiver, notify
from memwatch_web.webhooks import endpoint_of, secret_of
from sample_snapshots import critical_gb10
from webhook_site import (
    Site,
)

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
QUICK = (0.0, 0.05, 0.05, 0.05, 0.05)


def notice(number: int = 1, firing: bool = True, target: str = "ram") -> Notice:
    return Notice(
        id=f"msg_{number}",
        event="pressure.critical" if firing else "pressure.resolved",
        unix=1_795_256_553.25,
        target=target,
        level=Level.CRITICAL if firing else Level.LOW,
        previous=Level.HIGH if firing else Level.CRITICAL,
        reasons=(Reason("util", "96.2 % used"),),
        firing=firing,
    )


@contextmanager
def receiver(url: str, **options: Any) -> Iterator[Receiver]:
    made = Receiver(
        "ops", endpoint_of(url), secret_of(SECRET), **{"schedule": QUICK, "timeout_seconds": 2.0, **options}
    )
    made.start()
    try:
        yield made
    finally:
        made.close()


def told(made: Receiver, *notices: Notice) -> None:
    for one in notices:
        notify([made], one, critical_gb10())


def ids(site: Site) -> list[str]:
    return [delivery.headers["webhook-id"] for delivery in site.deliveries]
