"""Receiver of notifications with a manual clock, and an endpoint that answers without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from memwatch.core.http import GATEWAY_STATUSES
from memwatch_monitor.notify.http_post import Poster, PostResult, parse_endpoint, words_for_status
from memwatch_monitor.notify.outbox import Outbox
from memwatch_monitor.notify.receiver import SCHEDULE, Receiver
from memwatch_monitor.notify.webhook import WebhookChannel, parse_secret
from support.fakes import FakeClock, ManualWait
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_samples import SECRET, QueuedReceiver

URL = "http://hooks.example:8080/hook/token?key=value"


class Request(Struct, frozen=True):
    """Request as it was sent, and the second of the clock."""

    at: float
    headers: dict[str, str]
    body: bytes


class Endpoint(Poster):
    """Endpoint that gives these answers in turn, and repeats the last one.

    While `may_answer` is cleared, requests wait for their answer.
    """

    def __init__(self, answers: Sequence[PostResult], clock: FakeClock) -> None:
        self._answers = list(answers)
        self._clock = clock
        self.requests: list[Request] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def prepare(self) -> None:
        """Load nothing."""

    def post(self, headers: dict[str, str], body: bytes) -> PostResult:
        self.requests.append(Request(self._clock.now, headers, body))
        assert self.may_answer.wait(MAX_WAIT_SECONDS)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def abort(self) -> None:
        self.may_answer.set()

    @property
    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.requests]


class ManualReceiver(QueuedReceiver):
    """Receiver whose thread follows `clock`."""

    def __init__(self, endpoint: Endpoint, clock: FakeClock, schedule: Sequence[float]) -> None:
        self.endpoint = endpoint
        self.clock = clock
        self.wait = ManualWait()
        channel = WebhookChannel("ops", parse_endpoint(URL), parse_secret(SECRET), endpoint, clock.wall)
        outbox = Outbox(None, monotonic=clock.monotonic)
        receiver = Receiver("ops", channel, outbox.queue("ops"), schedule=schedule, clock=clock, wait=self.wait)
        super().__init__(receiver, outbox)

    def pass_seconds(self, seconds: float) -> None:
        """Advance the clock, and wait until nothing more is due."""
        self.clock.now += seconds
        self.wait.settle()

    def wait_for(self, outcome: str, count: int = 1) -> None:
        """Wait, without advancing the clock, until `outcome` has been counted this many times."""
        wait_until(lambda: self.counts()[outcome] == count, describe=lambda: self.counts())


def answer(status: int, retry_after_seconds: float = 0.0) -> PostResult:
    """Return the result of an HTTP response, as `Poster` does."""
    return PostResult(status, words_for_status(status), status in GATEWAY_STATUSES, retry_after_seconds)


@contextmanager
def manual_receiver(*answers: int | PostResult, schedule: Sequence[float] = SCHEDULE) -> Iterator[ManualReceiver]:
    """Run a receiver that gets these answers, by default 200, and stop it."""
    clock = FakeClock()
    results = [answer(one) if isinstance(one, int) else one for one in answers or (200,)]
    made = ManualReceiver(Endpoint(results, clock), clock, schedule)
    made.start()
    try:
        yield made
    finally:
        made.endpoint.may_answer.set()
        made.close()
