"""Files that an installation has below share/: those of the repository, and pages with links to installed files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from support.pages import anchors, links, pages
from support.paths import ROOT

DATA, DOCUMENTS = Path("memwatchd"), Path("doc/memwatchd")
# Folders of the repository whose files are installed unchanged, and their places.
UNCHANGED = {
    "deploy/alertmanager": DATA / "alertmanager",
    "deploy/ansible": DATA / "ansible",
    "deploy/grafana/dashboards": DATA / "grafana/dashboards",
    "deploy/grafana/provisioning": DATA / "grafana/provisioning",
    "deploy/helm": DATA / "helm",
    "deploy/kubernetes": DATA / "kubernetes",
    "deploy/launch": DATA / "launch",
    "deploy/otel": DATA / "otel",
    "deploy/prometheus": DATA / "prometheus",
    "systemd/drop-ins": DOCUMENTS / "drop-ins",
    "systemd/examples": DOCUMENTS / "examples",
}
UNITS = (
    "memwatchd.service",
    "memwatchd-guardian.service",
    "memwatchd.slice",
    "memwatchd.sysusers",
    "memwatchd.toml",
)
# They are about work in the repository.
NOT_INSTALLED = {"rules_test.yml", "prometheusrule.py", ".ansible-lint"}


def is_installed(path: Path) -> bool:
    """Return if a file or folder below share/ is installed, by its source."""
    sources = {**{place: ROOT / folder for folder, place in UNCHANGED.items()}, DOCUMENTS: ROOT / "docs"}
    for place in sorted(sources, key=lambda one: len(one.parts), reverse=True):
        if path.is_relative_to(place):
            return (sources[place] / path.relative_to(place)).exists()
    units = [DATA / "systemd" / name for name in UNITS]
    return any(one.is_relative_to(path) for one in (*sources, *units))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, those behind links to folders as well."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [one for one in folders if one != "__pycache__"]
        yield from (Path(place, file) for file in files)


def expected_files() -> dict[Path, Path]:
    """Return the place of each file that an installation has, and its source."""
    found = {DATA / "systemd" / name: ROOT / "systemd" / name for name in UNITS}
    for folder, place in UNCHANGED.items():
        sources = [one for one in files_below(ROOT / folder) if one.name not in NOT_INSTALLED]
        found |= {place / one.relative_to(ROOT / folder): one for one in sources}
    pictures = [one.relative_to(ROOT) for one in (ROOT / "docs").iterdir() if one.suffix in (".webp", ".svg")]
    for page in (*pages(), *pictures):
        if page.parts[:2] != ("docs", "contributing") and page.name != "CONTRIBUTING.md":
            found[DOCUMENTS / (page.relative_to("docs") if page.parts[0] == "docs" else page)] = ROOT / page
    return found


def changed_files(share: Path) -> list[Path]:
    """Return the files, except pages, that are not as in the repository, in content or in mode."""
    return [
        place
        for place, source in expected_files().items()
        if place.suffix != ".md"
        and (
            (share / place).read_bytes() != source.read_bytes()
            or os.access(share / place, os.X_OK) != os.access(source, os.X_OK)
        )
    ]


def dead_links(share: Path) -> list[str]:
    """Return links of the installed pages to files or headings that are not installed."""
    found = []
    for page in (share / DOCUMENTS).rglob("*.md"):
        for link in links(page.read_text()):
            path, _, anchor = link.target.partition("#")
            if ":" in path:
                continue
            target = Path(os.path.normpath(page.parent / path)) if path else page
            known = target.exists() and (
                not anchor or target.suffix != ".md" or anchor in anchors(target.read_text())
            )
            if not known:
                found.append(f"{page.relative_to(share)}:{link.line}: {link.target}")
    return found
