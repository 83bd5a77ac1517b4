"""Alerts page: firing alerts first, with their notifications, then silences, receivers and rules."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from memwatch.reporting.answers import AlertRow
from memwatch.reporting.render import words
from memwatch_monitor.alerts.rules import title_rule
from memwatch_monitor.notify.status import AlertView, DeliveryRow, ReceiverRow
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.template_environment import break_name
from support.html_reader import Reader
from support.pattern_samples import ALERTS, RULE_ROWS, SILENCES, receivers
from support.sample_parts import UNIX
from support.sample_snapshots import critical_gb10

SENT = DeliveryRow("ops", "msg_1", "pressure.critical", "ram", "firing", "delivered", 1, 200, "", UNIX - 80, None)


def text_of(found: Sequence[ReceiverRow]) -> str:
    view = AlertView(ALERTS, SILENCES, found)
    return Reader(Pages(alerting=lambda: view).page("alerts", critical_gb10())).text


def with_deliveries(*rows: DeliveryRow) -> list[ReceiverRow]:
    return [replace(next(receivers()), deliveries=rows)]


def test_page_begins_with_firing_alerts_and_their_notifications() -> None:
    text = text_of(with_deliveries(SENT))

    headings = ("Firing and pending, worst first", "Silences", "Receivers", "Rules", "Recent events")
    places = [text.index(one) for one in headings]
    assert places == sorted(places)
    assert "Notified: ops" in text
    assert "Not notified: silenced" in text


def test_failed_queued_and_earlier_notifications_are_no_notice() -> None:
    """A delivery from before the alert began is of an earlier one, and so is its end."""
    failed = replace(SENT, receiver="chat", result="gave_up", failure="refused")
    queued = replace(SENT, receiver="mail", result="queued", unix=None)
    earlier, end = replace(SENT, receiver="old", unix=UNIX - 500), replace(SENT, receiver="end", kind="resolved")

    assert "Notified: mail queued, chat gave up" in text_of(with_deliveries(failed, queued, earlier, end))
    assert "Not notified: no receiver has this rule" in text_of(with_deliveries(earlier, end))
    assert "Not notified: no receiver" in text_of([])


def test_firing_alert_whose_condition_has_ended_says_since_and_until_when() -> None:
    """For minutes the row had the reasons and ages of the last critical tick."""
    held = replace(ALERTS[0], clear_since_unix=UNIX - 60, resolves_unix=UNIX + 60)

    def text(row: AlertRow) -> str:
        return Reader(Pages(alerting=lambda: AlertView((row,))).page("alerts", critical_gb10())).text

    times = (
        f"Clear since {words.clock(UNIX - 60)}, resolves at {words.clock(UNIX + 60)} unless it returns; before: "
    )
    assert times + ALERTS[0].reasons[0].text in text(held)
    assert "Clear since" in text(replace(held, resolves_unix=None, reasons=()))
    assert "resolves at" not in text(replace(held, resolves_unix=None, reasons=()))
    assert "Clear since" not in text(ALERTS[0])


def test_names_of_rules_break_after_dots_and_underscores() -> None:
    """In 390 pixels guardian.would_have_acted was cut in the middle of a word."""
    page = Pages(alerting=lambda: AlertView(ALERTS, SILENCES, [])).page("alerts", critical_gb10()).decode()

    assert ">pressure.<wbr>critical<" in page
    assert break_name("guardian.would_have_acted") == "guardian.<wbr>would_<wbr>have_<wbr>acted"
    assert break_name("GPUMemoryErrors") == "GPUMemory<wbr>Errors"
    assert break_name("<b>_x.") == "&lt;b&gt;_<wbr>x."


def test_default_rules_are_a_list_in_words() -> None:
    assert "the default is pressure.critical, collector.failed and guardian.acted." in text_of([])


def test_list_has_places_for_one_alert_more_than_usually_fire() -> None:
    """Places for three alerts of one pool were an empty card, and so were those of three pools while one fired."""
    base = critical_gb10()
    for targets, places in ((0, 1), (1, 1), (2, 2), (7, 2), (9, 3)):
        pressure = (base.pressure * 9)[:targets]
        assert f"alert-list-{places}" in Pages().page("alerts", replace(base, pressure=pressure)).decode()


def test_buttons_of_a_silence_say_what_they_do() -> None:
    """On a phone the head of their column is hidden."""
    page = Reader(Pages(alerting=lambda: AlertView(ALERTS, SILENCES, [])).page("alerts", critical_gb10()))

    assert page.text.count("Silence for 1 h") == len(ALERTS)
    assert page.values("aria-label").count("Silence for 8 h") == len(ALERTS) + 1, "and one for all of a rule"


def test_rules_have_words_then_their_name_and_their_runbook() -> None:
    """ "pressure.critical" is a key of the settings, and its section of the runbooks has another name."""
    view = AlertView(ALERTS, SILENCES, [], rules=RULE_ROWS)
    text = Reader(Pages(alerting=lambda: view).page("alerts", critical_gb10())).text

    assert "Memory is critical, from 95% used critical pressure.critical · MemoryCritical 2 receivers" in text
    assert "Memory will be full soon warning pressure.forecast · MemoryFullSoon no receiver" in text
    assert title_rule("daemon.unclean_restart") == "memwatchd ended unexpectedly"


def test_no_receiver_is_said_once() -> None:
    view = AlertView(rules=[replace(one, receivers=0) for one in RULE_ROWS])
    text = Reader(Pages(alerting=lambda: view).page("alerts", critical_gb10())).text

    assert text.count("Sent to") == 1
    assert "Sent to no receiver yet." in text
