"""Pages as they are installed, and the places of files. test_package.py and test_deb.py look at built packages."""

from __future__ import annotations

import pytest

from shared_files import installed_page, place_of
from support.paths import ROOT

PAGE = "docs/howto/prometheus.md"


@pytest.mark.parametrize(
    ("text", "installed"),
    [
        ("[a](alerts.md#timing)", "[a](alerts.md#timing)"),
        ("[a](../../README.md)", "[a](../README.md)"),
        ("![a](../page-phone.webp)", "![a](../page-phone.webp)"),
        ("[a](../../deploy/otel/collector.yml)", "[a](../../../memwatchd/otel/collector.yml)"),
        ("[a](../../systemd/drop-ins)", "[a](../drop-ins)"),
        ("[`a`](../../deploy)", "`a`"),
        ("[a](../../CONTRIBUTING.md#on-real-hardware)", "a"),
        ("[a](../contributing/architecture.md)", "a"),
        ("[a](https://example.org/#b) [c](#d)", "[a](https://example.org/#b) [c](#d)"),
        ("[a](missing.md)", "[a](missing.md)"),
        ("<!-- checked: needs root -->\n```sh\n", "```sh\n"),
    ],
)
def test_links_of_an_installed_page_lead_to_installed_files(text: str, installed: str) -> None:
    """Other files of the repository become text. A wrong link stays, and fails the tests of the packages."""
    assert installed_page(ROOT, PAGE, text) == installed


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("deploy/prometheus/rules/alerts.yml", "memwatchd/prometheus/rules/alerts.yml"),
        ("systemd/memwatchd.toml", "memwatchd/systemd/memwatchd.toml"),
        ("systemd/examples/a.conf", "doc/memwatchd/examples/a.conf"),
        ("docs/start/install.md", "doc/memwatchd/start/install.md"),
        ("docs/contributing/extending.md", None),
        ("deploy/grafana/board.py", None),
        ("deploy/package/deb.py", None),
        ("documents.md", None),
    ],
)
def test_files_have_conventional_places(path: str, place: str | None) -> None:
    assert place_of(path) == place
