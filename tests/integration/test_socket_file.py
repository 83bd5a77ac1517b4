"""The socket file of the service: listened on by default, and used by memwatch and the library."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memwatch.core.linux.daemon_connection import TCP_URL, default_url, read_authorization
from support.daemon_process import MEMWATCHD, clean_environment, run_program, running_daemon
from support.login_settings import BEARER, TOKEN, login_config

MEMWATCH = str(Path(MEMWATCHD).with_name("memwatch"))


def listen_of(tmp_path: Path, config: str = "", **environ: str) -> str:
    """Return the line of the setting that --check-config prints."""
    settings = tmp_path / "check.toml"
    settings.write_text(config)
    done = run_program(MEMWATCHD, "--config", settings, "--check-config", **environ)
    return next(line for line in done.stdout.splitlines() if line.startswith("web.listen"))


def test_runtime_folder_of_the_unit_adds_a_socket_file_to_the_default(tmp_path: Path) -> None:
    """Set addresses are used as they are."""
    (tmp_path / "run").mkdir()
    added = listen_of(tmp_path, RUNTIME_DIRECTORY=f"{tmp_path}/run:/run/other")
    chosen = listen_of(tmp_path, "[web]\nlisten = ['127.0.0.1:7000']\n", RUNTIME_DIRECTORY=f"{tmp_path}/run")
    foreign = listen_of(tmp_path, RUNTIME_DIRECTORY=f"{tmp_path}/missing")

    assert f'["127.0.0.1:6360", "unix:{tmp_path}/run/memwatchd.sock"]' in added
    assert added.endswith("# RUNTIME_DIRECTORY")
    assert "unix:" not in chosen
    assert "unix:" not in foreign


def test_default_url_is_the_socket_file_while_it_is_served(tmp_path: Path) -> None:
    """A file that a killed daemon left behind is not used."""
    path = str(tmp_path / "memwatchd.sock")
    assert default_url(path) == TCP_URL
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        assert default_url(path) == f"unix:{path}"
        assert [default_url(path) for _ in range(5)] == [f"unix:{path}"] * 5
    assert default_url(path) == TCP_URL


@contextmanager
def service_folder(tmp_path: Path) -> Iterator[list[str]]:
    """Yield a command prefix that shows `tmp_path`/run as /run. Without root: none."""
    (tmp_path / "run/memwatchd").mkdir(parents=True)
    script = f'mount --bind {tmp_path}/run /run && exec "$@"'
    yield ["unshare", "--mount", "sh", "-c", script, "sh"] if os.geteuid() == 0 else []


def test_memwatch_and_the_library_use_the_socket_file_by_themselves(tmp_path: Path) -> None:
    """No address is set, and a login is. Without root the same with the address of the file."""
    mark = "import memwatch.library.reporter as r; r.reporter.mark('by itself'); r.reporter.flush()"
    with service_folder(tmp_path) as prefix:
        path = f"unix:{tmp_path}/run/memwatchd/memwatchd.sock"
        environ = clean_environment(**({} if prefix else {"MEMWATCH_URL": path}))
        with running_daemon(tmp_path, "--listen", path, config=login_config(tmp_path)) as daemon:
            released = subprocess.run(
                [*prefix, MEMWATCH, "--json", "release", "--for", "1s"],
                capture_output=True,
                text=True,
                check=False,
                env=environ,
            )
            subprocess.run([*prefix, sys.executable, "-c", mark], check=True, env=environ)
            texts = [one["text"] for one in daemon.get("/api/v1/events", **BEARER).json]

    assert json.loads(released.stdout)["seconds"] == 1
    assert [text for text in texts if text.startswith("by itself")]


def test_library_sends_the_token(tmp_path: Path) -> None:
    """A mark is accepted with MEMWATCH_TOKEN, and not without it."""
    mark = "import memwatch.library.reporter as r; r.reporter.mark('{}'); r.reporter.flush()"
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        for text, environ in (("with", {"MEMWATCH_TOKEN": TOKEN}), ("without", {})):
            command = [sys.executable, "-c", mark.format(text)]
            subprocess.run(command, check=True, env=clean_environment(MEMWATCH_URL=daemon.url, **environ))
        texts = [one["text"] for one in daemon.get("/api/v1/events", **BEARER).json if one["kind"] == "mark"]

    assert len(texts) == 1
    assert texts[0].startswith("with (process ")


def test_unusable_token_is_not_sent() -> None:
    assert read_authorization({"MEMWATCH_TOKEN": "a\nb"}) == read_authorization({"MEMWATCH_TOKEN": " "}) == {}
    assert read_authorization({"MEMWATCH_TOKEN": " abc\n"}) == {"Authorization": "Bearer abc"}
