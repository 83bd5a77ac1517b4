"""Test that secrets of receivers come from files, variables or the configuration, and are in no message."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatchd.settings.alerts import Alertmanager
from memwatchd.settings.diff import flat
from memwatchd.settings.keys import setting_text
from memwatchd.settings.load import load
from support.settings_sample import ALERTMANAGER, SECRET, WEBHOOK, problems_from, settings_from, webhooks_of


@pytest.mark.parametrize("public", [True, False])
def test_secret_file_readable_by_all_users_warns(tmp_path: Path, public: bool) -> None:
    """A secret file that every user can read works, with a warning that names it."""
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET + "\n")
    secret_file.chmod(0o644 if public else 0o600)

    settings = settings_from(tmp_path, WEBHOOK.replace(SECRET, f"file:{secret_file}"))

    assert webhooks_of(settings)[0].secret.keys == (b"a secret of thirty-two bytes len",)
    assert [str(secret_file) in warning for warning in settings.warnings] == ([True] if public else [])


def test_literal_secret_in_a_public_file_warns(tmp_path: Path) -> None:
    """A configuration file with a secret is itself a secret file."""
    file = tmp_path / "public.toml"
    file.write_text(WEBHOOK)
    file.chmod(0o644)

    warnings = load({"config": str(file)}, {}).warnings

    assert warnings == (f"every user of this machine can read the secret in {file}; run: chmod o-r {file}",)


def test_secret_from_a_variable_may_be_named_like_a_setting(tmp_path: Path) -> None:
    """env:NAME works with any name, even one that would be rejected as an unknown setting."""
    text = WEBHOOK.replace(SECRET, "env:MEMWATCHD_WEBHOOK_SECRET")
    settings = settings_from(tmp_path, text, environ={"MEMWATCHD_WEBHOOK_SECRET": f"{SECRET} {SECRET}"})

    assert len(webhooks_of(settings)[0].secret.keys) == 2


def test_secret_is_read_from_a_systemd_credential(tmp_path: Path) -> None:
    """A credential of LoadCredential= is found by its name, and no file outside its folder is."""
    (tmp_path / "hook").write_text(SECRET)
    (tmp_path / "hook").chmod(0o400)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}

    settings = settings_from(tmp_path, WEBHOOK.replace(SECRET, "credential:hook"), environ=environ)
    problems = problems_from(tmp_path, WEBHOOK.replace(SECRET, "credential:../hook"), environ=environ)

    assert webhooks_of(settings)[0].secret.keys == (b"a secret of thirty-two bytes len",)
    assert "must not contain /" in problems[0]


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("hunter2", "secret is not file:/PATH, credential:NAME, env:NAME, or whsec_"),
        ("credential:hook", "names the credential hook, but the unit loads none: add LoadCredential=hook:/PATH"),
        ("whsec_hunter2", "secret is not whsec_ followed by the base64 of 24 to 64 bytes"),
        ("env:NOT_THERE", "names the environment variable NOT_THERE, which is not set"),
        ("env:EMPTY", "names the environment variable EMPTY, which is empty"),
        ("env:SHORT", "names the environment variable SHORT, which is not whsec_ followed by"),
        ("file:/no/such", "which cannot be read (No such file or directory); check the name"),
        ("file:secret", "use an absolute path"),
        ("file:/dev/zero", "names /dev/zero, which is not a regular file"),
    ],
)
def test_invalid_secret_is_rejected_and_not_repeated(tmp_path: Path, secret: str, words: str) -> None:
    """The message never contains the secret, and has an example only for a malformed one."""
    environ = {"EMPTY": " ", "SHORT": "whsec_hunter2"}

    problems = problems_from(tmp_path, WEBHOOK.replace(SECRET, secret), environ=environ)

    assert words in problems[0]
    assert "hunter2" not in "".join(problems)
    assert ("use for example" in problems[0]) == secret.endswith("hunter2")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("", None),
        ('user = "ada"\nsecret = "env:PASSWORD"', "Basic YWRhOmNvcnJlY3QgaG9yc2U="),
        ('user = "Zoë"\nsecret = "file:{file}"', "Basic Wm/DqzpodW50ZXIy"),
        ('secret = "file:{file}"', "Bearer hunter2"),
    ],
)
def test_alertmanager_gets_a_password_or_a_token(tmp_path: Path, lines: str, shown: str | None) -> None:
    """RFC 7617 and RFC 6750; the newline at the end of the file is cut, and no message has the secret."""
    file = tmp_path / "password"
    file.write_text("hunter2\n")

    settings = settings_from(
        tmp_path, ALERTMANAGER + lines.format(file=file), environ={"PASSWORD": "correct horse"}
    )
    (one,) = settings.alerts.receivers
    assert isinstance(one, Alertmanager)

    assert (one.secret.authorization(one.user) if one.secret else None) == shown
    for words in (repr(settings), str(settings), repr([setting_text(value) for _, value in flat(settings)])):
        assert "hunter2" not in words
        assert "horse" not in words


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            'user = "ada"',
            'line 4: alerts.alertmanagers[0].user: "ada" has no password; add for example secret',
        ),
        ('user = "a:b"\nsecret = "env:GOOD"', "is not a user name (1 to 255 characters, no colon)"),
        ('secret = "hunter2"', "secret is not file:/PATH, credential:NAME or env:NAME of a password or a token"),
        (
            'secret = "env:EMPTY"',
            "names the environment variable EMPTY, which is not a password or a token of",
        ),
        (
            'secret = "env:LINES"',
            "names the environment variable LINES, which is not a password or a token of",
        ),
        ('secret = "file:/no/such"', "names the file '/no/such', which cannot be read"),
    ],
)
def test_invalid_credentials_of_an_alertmanager_are_rejected(tmp_path: Path, lines: str, words: str) -> None:
    """A header takes one line of printable characters; a rejected value is not repeated."""
    environ = {"EMPTY": "\n", "LINES": "hunter2\nX-Other: 1", "GOOD": "hunter2"}

    problems = problems_from(tmp_path, ALERTMANAGER + lines, environ=environ)

    assert words in problems[0]
    assert "hunter2" not in "".join(problems)


@pytest.mark.parametrize(
    "line",
    [
        f'secrt = "{SECRET}"',
        'url = "https://user:hunter2@example.com/"',
        'url = "https://example.com:99999/hunter2"',
        'url = "https://example.com:hunter2/"',
        'proxy = "http://user:hunter2@proxy.example.com:port"',
        'url = "ftp://example.com/hunter2"',
        'url = ["https://example.com/hunter2"]',
        'secret = { hunter2 = "hunter2" }',
        'secret = "hunter2',
    ],
)
def test_no_problem_repeats_a_secret(tmp_path: Path, line: str) -> None:
    """However malformed a webhook is, no message contains its secret or the path of its URL."""
    problems = problems_from(tmp_path, f'[[alerts.webhooks]]\nname = "ops"\n{line}\n')

    text = " ".join(problems).replace("{ hunter2", "")
    assert "hunter2" not in text
    assert SECRET not in text


def test_settings_do_not_reveal_secrets(tmp_path: Path) -> None:
    """repr, str and the changes of a reload contain neither the secret nor the path of a webhook's URL."""
    settings = settings_from(tmp_path, WEBHOOK)

    for shown in (repr(settings), str(settings), repr([setting_text(value) for _, value in flat(settings)])):
        assert "example.com" in shown
        assert "thirty-two" not in shown
        assert SECRET not in shown
        assert "hook/token" not in shown


PROXY = "http://user:hunter2%40home@proxy.example.org:3128"


@pytest.mark.parametrize("value", ["file:{folder}/proxy", "env:HTTPS_PROXY", "credential:proxy", PROXY])
def test_proxy_with_a_password_is_read_and_hidden(tmp_path: Path, value: str) -> None:
    """Only its address is shown. In a file that every user can read, a literal password warns."""
    (tmp_path / "proxy").write_text(PROXY + "\n")
    (tmp_path / "proxy").chmod(0o600)
    environ = {"HTTPS_PROXY": PROXY, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    file = tmp_path / "public.toml"
    file.write_text(f'[alerts]\nproxy = "{value.format(folder=tmp_path)}"\n')
    file.chmod(0o644)

    settings = load({"config": str(file)}, environ)

    assert settings.alerts.proxy is not None
    assert settings.alerts.proxy.headers == {"Proxy-Authorization": "Basic dXNlcjpodW50ZXIyQGhvbWU="}
    shown = repr(settings) + repr([setting_text(value) for _, value in flat(settings)])
    assert '"http://proxy.example.org:3128"' in shown
    assert "hunter2" not in shown
    assert "dXNlcjpodW50ZXIyQGhvbWU" not in shown
    assert len(settings.warnings) == (value == PROXY)


def test_proxy_without_a_password_is_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "public.toml"
    file.write_text('[alerts]\nproxy = "http://proxy.example.org:3128"\n')
    file.chmod(0o644)

    assert load({"config": str(file)}, {}).warnings == ()


def test_variables_of_other_programs_set_no_proxy(tmp_path: Path) -> None:
    """Container engines set them in every container, where the Alertmanager may be on an inner network."""
    environ = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"), PROXY)

    assert settings_from(tmp_path, environ=environ).alerts.proxy is None
    named = settings_from(tmp_path, environ={"MEMWATCHD_ALERTS_PROXY": "http://proxy.example.org:1"})
    assert str(named.alerts.proxy) == "http://proxy.example.org:1"


@pytest.mark.parametrize(
    "value",
    [
        "https://user:hunter2@a:1",
        "http://user:hunter2@a",
        "http://user:hunter2/x@a:1",
        "http://hunter2",
        "env:P",
        "none",
    ],
)
def test_unusable_proxy_is_refused_without_its_text(tmp_path: Path, value: str) -> None:
    problems = problems_from(tmp_path, f'[alerts]\nproxy = "{value}"\n', environ={"P": "http://user:hunter2@a:x"})

    assert "alerts.proxy " in problems[0]
    assert "is not http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT" in problems[0]
    assert "hunter2" not in problems[0]
