"""Write the pages of docs/reference, and the template of /runbooks: python -m scripts.reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference import commands, configuration, http_api, library, metrics, rules, runbooks

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.render,
    "metrics.md": metrics.render,
    "http-api.md": http_api.render,
    "memwatchd.md": commands.daemon_page,
    "memwatch.md": commands.client_page,
    "rules.md": rules.render,
    "library.md": library.render,
}


def main() -> None:
    """Write each page, and print its name if that changed it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        write(FOLDER / name, render())
    write(runbooks.TEMPLATE, runbooks.render())


def write(file: Path, text: str) -> None:
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
        print(f"wrote {file.relative_to(FOLDER.parents[1])}")


if __name__ == "__main__":
    main()
