"""Static files and pages: compressed for clients that accept gzip, uncompressed for others."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from memwatch_web.asgi.static_files import FOLDER, MAX_COMPRESSED_BYTES, compress_if_smaller, files_under
from support.daemon_process import RunningDaemon, running_daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("files")) as one:
        yield one


def test_every_compressed_file_equals_the_original(daemon: RunningDaemon) -> None:
    """The decompressed content is identical. Both forms have their own ETag."""
    for name, path in files_under(FOLDER):
        small, whole = (daemon.get(f"/static/{name}", Accept_Encoding=how) for how in ("gzip, br", "identity"))

        packed = small.headers.get("content-encoding") == "gzip"
        assert (gzip.decompress(small.body) if packed else small.body) == whole.body == path.read_bytes()
        assert packed == (small.headers["etag"] != whole.headers["etag"])
        if packed:
            assert len(small.body) < 0.9 * len(whole.body)
            assert small.headers["vary"] == whole.headers["vary"].lower() == "accept-encoding"
        again = daemon.get(f"/static/{name}", Accept_Encoding="gzip, br", If_None_Match=small.headers["etag"])
        assert (again.status, again.body) == (304, b"")


def test_scripts_and_styles_are_compressed(daemon: RunningDaemon) -> None:
    """An icon of 120 bytes is not."""
    packed = {
        name
        for name, _ in files_under(FOLDER)
        if "content-encoding" in daemon.get(f"/static/{name}", Accept_Encoding="gzip").headers
    }
    large = {name for name, path in files_under(FOLDER) if path.stat().st_size > MAX_COMPRESSED_BYTES}

    assert {"app.css", "app.js", "history.js", "vendor/htmx-4.0.1.min.js"} <= packed
    assert "icon-high.svg" not in packed
    assert large <= packed
    assert compress_if_smaller(b"abc") is None


@pytest.mark.parametrize("path", ["/", "/processes", "/devices", "/alerts", "/about"])
def test_pages_are_compressed_on_request(daemon: RunningDaemon, path: str) -> None:
    """They have at most half the bytes, and `Vary` lists accept-encoding for caches."""
    small, whole = (daemon.get(path, Accept_Encoding=how) for how in ("gzip", "identity"))

    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in whole.headers
    assert small.headers["vary"] == whole.headers["vary"].lower() == "accept-encoding"
    assert gzip.decompress(small.body).endswith(b"</html>")
    assert 2 * len(small.body) < len(whole.body)


@pytest.mark.parametrize("path", ["/openapi.json", "/api/v1/snapshot", "/docs", "/fit"])
def test_other_answers_are_compressed_on_request(daemon: RunningDaemon, path: str) -> None:
    small, refused, whole = (daemon.get(path, Accept_Encoding=how) for how in ("gzip, br", "gzip;q=0", "identity"))

    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in {**refused.headers, **whole.headers}
    assert "accept-encoding" in whole.headers["vary"].lower()
    assert 2 * len(gzip.compress(whole.body, 4)) < len(whole.body)
    assert abs(len(gzip.decompress(small.body)) - len(whole.body)) < 200  # a tick later, perhaps
    assert 2 * len(small.body) < len(whole.body)


def test_short_answers_are_not_compressed(daemon: RunningDaemon) -> None:
    assert "content-encoding" not in daemon.get("/api/v1/collectors?x=1", Accept_Encoding="gzip").headers
