"""Sentences about silences: by scope, with their end, in the title, the status of the unit and on terminals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from msgspec.structs import replace

from memwatch.cli.status import render_lines as status_lines
from memwatch.cli.status import tree_lines
from memwatch.cli.terminal.frame import View
from memwatch.cli.terminal.moment import Moment
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.past import past_snapshot
from memwatch.cli.terminal.state import State
from memwatch.cli.terminal.style import line_cells, plain
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import build_snapshot, snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import Redactor
from memwatch.reporting.render.json import snapshot_json
from memwatch.reporting.render.summary import build_latest, build_notices, find_widest, notice_lines, until_utc
from memwatch_monitor.render.status_line import build_status_line
from memwatchd.wiring import render_status
from support.sample_snapshots import SAMPLES, critical_gb10

NOON = datetime(2026, 11, 27, 12, 0, tzinfo=timezone.utc).timestamp()
END = NOON + 6 * 3600 + 17 * 60
LABELS = {"ram": "System RAM"}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is that of no zone of this machine."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def silence(
    name: str = "sil_1",
    event: str | None = None,
    target: str | None = None,
    until: float = END,
    made_by: str = "root (uid 0)",
) -> Silence:
    return Silence(name, until, NOON, 0.0, event, target, "new GPUs", made_by)


def silenced(*silences: Silence, of: Snapshot | None = None) -> Snapshot:
    return replace(of or critical_gb10(), unix=NOON, silences=silences)


@pytest.mark.parametrize(
    ("event", "target", "sentence"),
    [
        (None, None, "silenced by root until 18:17: no one is notified"),
        (None, "ram", "System RAM is silenced by root until 18:17: no one is notified of it"),
        (None, "gone0", "gone0 is silenced by root until 18:17: no one is notified of it"),
        ("device.lost", None, "device.lost alerts are silenced by root until 18:17: no one is notified of them"),
        (
            "pressure.critical",
            "ram",
            "pressure.critical alerts of System RAM are silenced by root until 18:17: no one is notified of them",
        ),
    ],
)
def test_sentence_names_the_muted_part_its_author_and_its_end(
    event: str | None, target: str | None, sentence: str
) -> None:
    assert notice_lines(build_notices([silence("sil_9", event, target)], LABELS), NOON) == [
        f"{sentence} (end it: memwatch silence --end sil_9)"
    ]


@pytest.mark.parametrize(
    ("made_by", "by"),
    [("root (uid 0)", " by root"), ("uid 1000", " by uid 1000"), ("bearer token", " by bearer token"), ("", "")],
)
def test_author_is_named_if_known(made_by: str, by: str) -> None:
    (notice,) = build_notices([silence(made_by=made_by)], LABELS)

    assert notice.text("18:17") == f"silenced{by} until 18:17: no one is notified"


def test_end_on_another_day_has_its_date() -> None:
    tomorrow = build_notices([silence(until=END + 86_400)], LABELS)

    assert "until 2026-11-28 18:17: no one" in notice_lines(tomorrow, NOON)[0]
    assert until_utc(END + 86_400, NOON) == "2026-11-28 18:17 UTC"
    assert until_utc(END, NOON) == "18:17 UTC"


def test_silence_within_a_wider_one_is_named_only_if_it_lasts_longer() -> None:
    everything = silence("all")
    ram, longer = silence("ram", target="ram"), silence("longer", target="ram", until=END + 60)
    event = silence("event", "pressure.critical", "ram")

    assert [one.id for one in find_widest([event, ram, everything])] == ["all"]
    assert [one.id for one in find_widest([event, longer, everything])] == ["all", "longer"]
    assert [one.id for one in find_widest([event, silence("lost", "device.lost"), ram])] == ["lost", "ram"]


def test_more_than_three_silences_are_counted() -> None:
    notices = build_notices([silence(f"sil_{at}", target=f"gpu{at}") for at in range(5)], LABELS)

    assert notice_lines(notices, NOON)[3:] == ["2 more silences (memwatch silence --list)"]


@pytest.mark.parametrize(
    ("event", "target", "is_named"),
    [
        (None, None, True),
        (None, "ram", True),
        ("pressure.critical", None, True),
        ("device.lost", None, False),
        (None, "cuda0", False),
    ],
)
def test_title_has_the_silence_that_mutes_the_worst_level(
    event: str | None, target: str | None, is_named: bool
) -> None:
    """A title has room for one sentence. Where the level is silenced, no button offers a silence."""
    shown = silenced(silence("sil_1", event, target))
    latest = build_latest(shown)

    assert latest["title"].startswith("critical, full in ~40 s · ")
    assert (" until 18:17 UTC: no one is notified" in latest["title"]) is is_named
    assert latest["silence"] == ({"until_unix": END, "words": "18:17 UTC"} if is_named else None)
    assert (build_status_line(shown).notice is not None) is is_named


def test_status_of_the_unit_names_silences() -> None:
    levels = render_status(silenced())

    assert "silenced" not in levels
    assert render_status(silenced(silence())) == (
        f"{levels}; silenced by root until 18:17: no one is notified (end it: memwatch silence --end sil_1)"
    )


@pytest.mark.parametrize("snapshot", [make() for make in SAMPLES.values()])
def test_status_tree_and_top_name_silences(snapshot: Snapshot) -> None:
    """At every level: what is silenced at noon is silenced at the next critical level."""
    found = snapshot_from(to_bytes(snapshot_json(silenced(silence(), of=snapshot))))
    sentence = "silenced by root until 18:17: no one is notified (end it: memwatch silence --end sil_1)"
    frame = render(View(Moment(found), State(), 80, 24, NOON))
    top = [plain(line) for line in frame.lines]

    assert any(plain(line) == f"  {sentence}" for line in status_lines(found, None, 80, False))
    assert sentence in tree_lines(found, None)
    assert f"{top[1].strip()} {top[2].strip()}" == sentence
    assert all(line_cells(line) <= 80 for line in frame.lines)


def test_past_moments_and_older_daemons_have_no_silences() -> None:
    found = json.loads(to_bytes(snapshot_json(silenced(silence()))))
    past = past_snapshot(build_snapshot(found), {}, NOON - 60, 15.0)
    del found["silences"]

    assert past.silences == ()
    assert "silenced" not in "\n".join(tree_lines(build_snapshot(found), None))


def test_redacted_recordings_hide_author_and_comment() -> None:
    (found,) = Redactor().redact(snapshot_json(silenced(silence())))["silences"]

    assert found["made_by"].startswith("client")
    assert "GPUs" not in found["comment"]
