"""Write docs/reference and other generated files: the template of /runbooks, the description of the API,
systemd/memwatchd.toml and deploy/otel/collector.yml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from memwatch_web.api_app import DESCRIPTION_FILE
from scripts import otel_collector, shipped_configuration
from scripts.reference import (
    commands,
    configuration,
    effects,
    http_api,
    incident_samples,
    library,
    metrics,
    models,
    rules,
    runbooks,
)

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.render,
    "metrics.md": metrics.render,
    "http-api.md": http_api.render,
    "memwatchd.md": commands.daemon_page,
    "memwatch.md": commands.client_page,
    "models.md": models.render,
    "rules.md": rules.render,
    "effects.md": effects.render,
    "incident-samples.md": incident_samples.render,
    "library.md": library.render,
    "training.md": library.render_training,
}


def main() -> None:
    """Write each page, and print its name if that changed it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        write(FOLDER / name, render())
    write(runbooks.TEMPLATE, runbooks.render())
    write(DESCRIPTION_FILE, http_api.render_description())
    write(shipped_configuration.SHIPPED, shipped_configuration.render())
    write(otel_collector.SHIPPED, otel_collector.with_conventions(otel_collector.SHIPPED.read_text()))


def write(file: Path, text: str) -> None:
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
        print(f"wrote {file.relative_to(FOLDER.parents[1])}")


if __name__ == "__main__":
    main()
