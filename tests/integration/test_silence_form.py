"""The silence form: parsing, authorization and persistence."""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages_app import MAX_HOURS, FormError, parse_silence_form
from support.daemon_process import RunningDaemon, running_daemon
from support.login_settings import BEARER, PASSWORD, basic, login_config
from support.waiting import MAX_WAIT_SECONDS

FORM = b"event=pressure.critical&target=ram&hours=2&reason=new+disk"


def post(daemon: RunningDaemon, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Status, Location, body."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    try:
        connection.request("POST", "/alerts", body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.getheader("location", ""), answer.read().decode()
    finally:
        connection.close()


def test_valid_form_is_parsed() -> None:
    """Hours become seconds. Empty alert and target mean all."""
    one, all_ = parse_silence_form(FORM), parse_silence_form(b"hours=0.5&reason=%C3%BCbung&event=&target=")

    assert (one.seconds, one.event, one.target, one.reason) == (7200.0, "pressure.critical", "ram", "new disk")
    assert (all_.seconds, all_.event, all_.target, all_.reason) == (1800.0, None, None, "übung")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "reason has 0 characters"),
        (b"hours=8&reason=+++", "reason has 0 characters"),
        (b"hours=8&reason=" + b"x" * 501, "reason has 501 characters"),
        (b"reason=x", "hours is ''"),
        (b"reason=x&hours=nan", "hours is 'nan': use a number from 0.1 to 720, such as 8."),
        (b"reason=x&hours=1e9", "hours is '1e9'"),
        (b"reason=x&hours=" + b"9" * 5000, "hours is '99999999999999999999'"),
        (b"reason=x&hours=8&event=fire", "event is 'fire': use one of pressure.critical"),
        (b"reason=x&hours=8&target=" + b"y" * 300, "target has 300 characters"),
        (b"\xff\xfe", "the body is not a UTF-8 form"),
        (b"reason=%ff&hours=8", "the body is not a UTF-8 form"),
        (b"&".join([b"a=b"] * 50), "the body is not a UTF-8 form"),
        (b"reason=x&hours=1&hours=99", "hours is given 2 times: give it once."),
    ],
)
def test_invalid_form_is_refused_with_a_sentence(body: bytes, words: str) -> None:
    """The sentence has the field, its value and the valid values."""
    with pytest.raises((FormError, ProblemError)) as caught:
        parse_silence_form(body)

    assert words in str(caught.value)


@given(
    st.binary(max_size=200)
    | st.text(max_size=80).map(lambda text: f"reason=x&hours={text}".encode("utf-8", "replace"))
)
def test_any_body_is_parsed_or_refused(body: bytes) -> None:
    """No other error is raised, and no silence exceeds the maximum."""
    try:
        wish = parse_silence_form(body)
    except (FormError, ProblemError):
        return
    assert 0 < wish.seconds <= MAX_HOURS * 3600


def test_silence_needs_a_login_and_the_same_origin(tmp_path: Path) -> None:
    """The silence has the name of the user."""
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        stranger = post(daemon, FORM)
        foreign = post(daemon, FORM, {**BEARER, "Origin": "http://evil.example"})
        by_user = post(daemon, FORM, basic("ada", PASSWORD))
        by_token = post(daemon, FORM, BEARER)
        bad = post(daemon, b"hours=x&reason=y", BEARER)
        made = daemon.get("/api/v1/silences", **BEARER).json
        events = daemon.get("/alerts", **BEARER).text.partition("Recent events")[2]

    assert stranger[0] == 401
    assert foreign[0] == 403
    assert by_user[:2] == by_token[:2] == (303, "alerts#silences")
    assert bad[0] == 422
    assert "hours is 'x'" in bad[2]
    assert [one["made_by"] for one in made] == ["user ada", "bearer token"]
    assert events.count("silenced for") == 2
    assert "by user ada" in events


def test_silence_with_user_and_comment_survives_a_restart(tmp_path: Path) -> None:
    state = f"--state-dir={tmp_path / 'state'}"
    with running_daemon(tmp_path, state) as daemon:
        assert post(daemon, FORM)[0] == 303
    with running_daemon(tmp_path, state) as daemon:
        page = daemon.get("/alerts").text

    assert "new disk" in page
    assert f"uid {os.geteuid()}" in page
    assert "pressure.critical on ram" in page
