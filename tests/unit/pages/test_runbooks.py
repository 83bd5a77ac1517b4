"""The page of runbooks: generated from the documentation, complete, and safe."""

from __future__ import annotations

import re

import pytest

from memwatch_monitor.alerts.rules import EVENTS, runbook_anchor
from memwatch_web.pages.renderer import Pages
from scripts.reference.runbooks import SOURCE, TEMPLATE, RunbookError, anchors, inline, render, render_sections
from support.html_reader import Reader


def test_template_is_that_of_the_documentation() -> None:
    assert TEMPLATE.read_text() == render(), "run: make reference"


def test_page_has_every_section_and_loads_little() -> None:
    """Anchors are unique, and the page loads nothing but the scripts of every page."""
    page = Reader(Pages().runbooks())

    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert page.open == []
    assert set(anchors(SOURCE.read_text())) <= set(ids)
    assert len(ids) == len(set(ids))
    assert [attrs["src"] for tag, attrs in page.tags if tag == "script"] == [
        "static/theme.js",
        "static/page.js",
    ]
    assert [link for link in links if re.match(r"https?:|//", link or "")] == []


def test_own_alerts_link_to_sections_of_the_page() -> None:
    ids = {attrs.get("id") for _, attrs in Reader(Pages().runbooks()).tags}

    assert {runbook_anchor(event, target) for event in EVENTS for target in ("ram", "gpu0")} <= ids


def test_page_begins_with_links_to_all_sections() -> None:
    links = [attrs["href"] for tag, attrs in Reader(render().encode()).tags if tag == "a"]
    names = anchors(SOURCE.read_text())

    assert links[: len(names)] == [f"runbooks#{name}" for name in names]
    assert render().count("runbooks#memorycritical") > 1, "sections that name it link to it"


def test_section_names_the_own_alerts_that_it_is_for() -> None:
    heads = dict(re.findall(r'<h2 id="(\w+)-label">\w+</h2>(.*)</header>', render()))

    assert "<code>kernel.oom_kill</code>: the OOM killer killed a process" in heads["memoryoomkill"]
    assert "<code>pressure.critical</code>: memory is critical" in heads["gpumemorycritical"]
    assert heads["memoryleak"] == ""


@pytest.mark.parametrize(
    ("of_one_kind", "of_another"),
    [("nvidia-smi", "amd-smi"), ("-i xid", "-i amdgpu"), ("systemctl", " Mac"), ("`nvml`", "`amdgpu`")],
)
def test_section_with_a_command_of_one_kind_of_machine_has_that_of_another(
    of_one_kind: str, of_another: str
) -> None:
    """On AMD, "nvidia-smi --gpu-reset" was all that GPULost offered."""
    bodies = re.split(r"^## ", SOURCE.read_text(), flags=re.MULTILINE)[1:]
    naming = [body for body in bodies if of_one_kind in body]

    assert naming
    assert [body.split()[0] for body in naming if of_another not in body] == []


def test_option_of_a_command_is_not_broken() -> None:
    """On a phone "journalctl -k -b -1" was broken after a hyphen."""
    assert inline("`a -k -b`") == '<code>a <span class="figure">-k</span> <span class="figure">-b</span></code>'
    assert inline("`oom-kill`") == "<code>oom-kill</code>"


def test_text_is_escaped_and_own_paths_are_links() -> None:
    assert inline("a < b & `<i>` **<b>**") == "a &lt; b &amp; <code>&lt;i&gt;</code> <b>&lt;b&gt;</b>"
    assert inline("`/processes`") == '<a href="processes"><code>/processes</code></a>'
    assert inline("see [drop-ins](../start/install.md#drop-ins)") == "see drop-ins (docs/start/install.md#drop-ins)"
    assert inline("[`x`](#memoryleak)") == '<a href="runbooks#memoryleak"><code>x</code></a>'


@pytest.mark.parametrize("line", ["- a list", "| a | table |", "```sh", "<script>", "### Deeper", "{{ template }}"])
def test_unknown_markdown_is_an_error(line: str) -> None:
    with pytest.raises(RunbookError, match="cannot be shown at /runbooks"):
        list(render_sections(f"## Name\n\ntext\n\n{line}\n"))
