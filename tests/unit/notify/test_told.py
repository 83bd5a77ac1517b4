"""Deliveries in the record of an incident: which count, what replaces what, and their words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.reporting.incidents.markdown import render
from memwatch.reporting.incidents.records import Entry, Told
from memwatch.reporting.incidents.words import describe_told, incident_json, list_timeline
from memwatch_monitor.incidents.store import pack, unpack
from memwatch_monitor.notify.manager import MAX_TOLD, update_told
from memwatch_monitor.notify.queue import Delivery
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader
from support.sample_incident import INCIDENT

CRITICAL = "pressure.critical"
FIRED = Delivery(1, "m1", f"{CRITICAL} ram", "firing", "delivered", 1, 200, "", 1005.0)
GOT = Told("ops", CRITICAL, 1005.0, "delivered")
LOST = Told("mail", CRITICAL, 1006.0, "failed", "timeout")


@pytest.mark.parametrize(
    ("delivery", "told"),
    [
        (FIRED, (GOT,)),
        (replace(FIRED, result="retry", failure="HTTP 500"), (replace(GOT, result="waiting", reason="HTTP 500"),)),
        (replace(FIRED, result="gave_up", failure="timeout"), (replace(GOT, result="failed", reason="timeout"),)),
        (replace(FIRED, result="superseded"), ()),
        (replace(FIRED, kind="resolved"), ()),
        (replace(FIRED, alert=f"{CRITICAL} gpu0"), ()),
        (replace(FIRED, unix=INCIDENT.began - 61), ()),
        (replace(FIRED, unix=1060.0 + 301), ()),
        (replace(FIRED, unix=None, result="queued"), ()),
    ],
)
def test_deliveries_about_the_target_within_the_time_of_the_incident_count(
    delivery: Delivery, told: tuple[Told, ...]
) -> None:
    """The sample has ended at 1060. Five minutes later its record is closed."""
    assert update_told(INCIDENT, [("ops", [delivery])]) == told


def test_queued_alert_of_an_incident_that_lasts_is_not_delivered_yet() -> None:
    queued = replace(FIRED, unix=None, result="queued")
    told = update_told(replace(INCIDENT, ended=None), [("ops", [queued])])

    assert told == (Told("ops", CRITICAL, None, "waiting"),)
    assert describe_told(replace(INCIDENT, told=told)) == "not delivered yet: ops"
    assert update_told(replace(INCIDENT, ended=None, told=told), [("ops", [FIRED])]) == (GOT,)


def test_receiver_that_is_gone_stays_in_the_record() -> None:
    assert update_told(replace(INCIDENT, told=(LOST,)), []) == (LOST,)
    assert update_told(replace(INCIDENT, told=(LOST,)), [("ops", [FIRED])]) == (LOST, GOT)


def test_more_deliveries_than_fit_do_not_take_turns() -> None:
    """A record that changed with each call would be written to disk at each tick."""
    receivers = [(f"receiver{number}", [FIRED]) for number in range(MAX_TOLD + 4)]
    told = update_told(INCIDENT, receivers)

    assert [one.receiver for one in told] == [name for name, _ in receivers[:MAX_TOLD]]
    assert update_told(replace(INCIDENT, told=told), receivers) == told


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "receivers not recorded"),
        ((), "no receiver was notified"),
        ((GOT, LOST), "delivered to ops; failed: mail (timeout)"),
        ((GOT, replace(LOST, receiver="ops")), "delivered to ops"),
    ],
)
def test_words_name_receivers_that_failed(told: tuple[Told, ...] | None, words: str) -> None:
    """One that got any alert of the incident has not failed."""
    assert describe_told(replace(INCIDENT, told=told)) == words


def test_told_is_on_the_page_in_the_report_and_in_the_answer() -> None:
    fired = Entry(1004.0, "alert", "alert firing: System RAM critical")
    one = replace(INCIDENT, told=(GOT, LOST), timeline=(*INCIDENT.timeline, fired))
    answer, text = incident_json(one), Reader(Pages().incident(one)).text

    assert [found["receiver"] for found in answer["told"]] == ["ops", "mail"]
    assert "failed: mail (timeout)" in text
    assert "mail: pressure.critical failed (timeout)" in text
    assert "` mail ` pressure.critical failed: ` timeout `" in render(one)
    assert [entry.unix for entry in list_timeline(one)] == [1001.0, 1004.0, 1005.0, 1006.0]


def test_record_without_deliveries_is_still_read() -> None:
    old = pack(INCIDENT)

    assert unpack(old).told is None
    assert unpack(pack(replace(INCIDENT, told=(GOT,)))) == replace(INCIDENT, told=(GOT,))


def test_hostile_receiver_and_reason_are_escaped() -> None:
    one = replace(INCIDENT, told=(Told("<i>evil", CRITICAL, 1005.0, "failed", "<script>"),))

    page = Pages().incident(one)

    assert b"<script>)" not in page
    assert b"<i>evil" not in page
