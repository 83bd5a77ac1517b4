"""The metric that keeps Prometheus's shipped rules from repeating alerts that memwatchd sends itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.notify.receiver import Subscription
from memwatch_web.metrics.samples import gauge

TEXT = "1 for alerts that a receiver of memwatchd gets in place of those of Prometheus's rules."


def pushed_family(snapshot: Snapshot, subscriptions: Iterable[Subscription]) -> Metric:
    targets = [verdict.target for verdict in snapshot.pressure]
    rows = {row for subscription in subscriptions for row in pushed_alerts(subscription, targets)}
    return gauge("alert_pushed", TEXT, [(row, 1) for row in sorted(rows)], ("event", "target"))


def pushed_alerts(subscription: Subscription, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield events with their targets: pressure by target, for other events none.

    A receiver of some targets only does not get all of such an event. Prometheus's rules then report it, too.
    """
    for event in subscription.events:
        if event.startswith("pressure."):
            yield from ((event, target) for target in targets if subscription.covers(event, target))
        elif not subscription.targets:
            yield event, ""
