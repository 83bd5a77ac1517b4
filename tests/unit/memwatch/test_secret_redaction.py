"""Secrets in command lines, URLs and sentences are hidden, and nothing else."""

from __future__ import annotations

import logging
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.engines.text import name_of
from memwatch.core.linux.process_files import parse_command
from memwatch.core.redaction import redact_arguments, redact_text
from memwatch.reporting.recording import Redactor
from memwatch.reporting.report.redaction import TextRedactor
from memwatchd.logging_setup import PLAIN, LineFormatter
from memwatchd.settings.validation import value_text
from support.secret_lines import ORDINARY_LINES, SECRET_LINES, URLS, fill

SEEDS = range(12)


@pytest.mark.parametrize("line", SECRET_LINES)
def test_secret_of_a_command_line_is_hidden(line: str) -> None:
    for seed in SEEDS:
        command, secrets = fill(line, seed)
        shown = parse_command("\0".join(shlex.split(command)).encode() + b"\0", 1000)

        assert not [secret for secret in secrets if secret in shown], shown
        assert "***" in shown
        assert shown.split()[0] == line.split()[0]


@pytest.mark.parametrize("line", ORDINARY_LINES)
def test_ordinary_command_line_is_unchanged(line: str) -> None:
    for seed in SEEDS:
        command, _ = fill(line, seed)

        assert " ".join(redact_arguments(command.split())) == command


def test_tables_have_no_line_twice() -> None:
    assert len(set(SECRET_LINES)) == len(SECRET_LINES) >= 120
    assert len(set(ORDINARY_LINES)) == len(ORDINARY_LINES) >= 60


@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.slack.com/services/T0/B0/<base62>",
        "https://discord.com/api/webhooks/<digits>/<base64url>",
        "https://api.telegram.org/bot<digits>:<base64url>/sendMessage",
        "https://ntfy.sh/<word>",
        "https://ada:<word>@push.example.com/x",
        "https://push.example.com/in?token=<word>",
        "tgram://<digits>:<base64url>/1",
        "ada:<word>@push.example.com",
    ],
)
@pytest.mark.parametrize("face", ["log", "report", "settings", "model", "text"])
def test_secret_of_an_address_is_hidden_on_every_face(address: str, face: str) -> None:
    text, secrets = fill(address, 1)

    shown = write_on(face, text)

    assert not [secret for secret in secrets if secret in shown], shown
    assert "***" in shown or "mail-1" in shown


def write_on(face: str, text: str) -> str:
    if face == "log":
        record = logging.LogRecord("x", logging.WARNING, "", 0, "cannot reach %s: refused", (text,), None)
        return LineFormatter(PLAIN).format(record)
    if face == "report":
        return TextRedactor(Redactor()).text(f"cannot reach {text}: refused")
    if face == "settings":
        return value_text(text)
    return str(name_of(text)) if face == "model" else redact_text(f"cannot reach {text}: refused")


def test_traceback_in_the_log_has_no_secret_of_an_address() -> None:
    try:
        raise ValueError("https://ada:hunter2@push.example.com/x")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__)
        )

    shown = LineFormatter(PLAIN).format(record)

    assert "push.example.com" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize("host", ["hooks.slack.com", "discord.com", "ntfy.sh", "x.example"])
def test_host_of_an_address_is_shown(host: str) -> None:
    """A reader has to know which receiver is meant."""
    lines = [fill(line, 1)[0] for line in URLS if f"://{host}/" in line]

    assert lines
    assert all(f"://{host}/" in redact_text(line) for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach http://127.0.0.1:6360: connection refused",
        "see https://docs.kernel.org/accounting/psi.html#monitoring",
        "token = env:NAME is missing; add for example token = file:/etc/memwatchd/token",
        "GPU-5a3d1210-7c1e-4b02-9d8f-c0ffee000000 has 3 errors",
        "user ada@falcon-7 may not change: 403",
        "nvCheckOkFailedNoLog: Check failed: out of memory",
    ],
)
def test_ordinary_sentence_is_unchanged(text: str) -> None:
    assert redact_text(text) == text


@given(st.lists(st.text(alphabet="-ab=:/@'\" passwordtokenAZ019{}?&", max_size=60), max_size=8))
def test_any_arguments_are_redacted_without_an_error(arguments: list[str]) -> None:
    """The number of arguments stays."""
    assert len(redact_arguments(arguments)) == len(arguments)


@pytest.mark.parametrize(
    "piece",
    ["a", "=", "a=", "-token ", "://@", "hf_", "aA", '"', "x' ", " ", "a1B", "sk-", "eyJ.", "a:", "/hook", "?key=",
     "a.", "1", "a:b@", "&a=1f", "://a:b/", "-----BEGIN "],
)  # fmt: skip
def test_long_arguments_are_redacted_in_linear_time(piece: str) -> None:
    """20 kB take 0.06 s at most. In quadratic time they would take seconds."""
    argument = piece * (20_000 // len(piece))
    began = time.process_time()

    redact_arguments([argument, argument])
    redact_text(argument)

    assert time.process_time() - began < 1
