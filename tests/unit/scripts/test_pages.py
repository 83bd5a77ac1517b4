"""Pages are parsed: fenced blocks with directives, links, anchors."""

from __future__ import annotations

import pytest

from support.pages import Link, anchors, fences, links, slug, without_fences

PAGE = """# Title

A [link](start/install.md#units) and ![a picture](page.webp), [![both](a.svg)](b.md), not `[code](x.md)`.

<!-- checked: needs root -->
```sh
sudo true
```

1. In a list:

   ```toml
   [web]
   listen = []
   ```

## What it costs, in µs: `cpu`
"""


def test_blocks_have_language_code_line_and_directive() -> None:
    shell, settings = fences(PAGE)

    assert shell == ("sh", "sudo true\n", 7, ("checked", "needs root"))
    assert settings == ("toml", "[web]\nlisten = []\n", 13, None)


def test_block_that_is_not_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 3"):
        fences("# Title\n\n```sh\ntrue\n")


def test_fences_within_longer_fences_are_code() -> None:
    (fence,) = fences("````text\n```sh\ntrue\n```\n````\n")

    assert fence.code == "```sh\ntrue\n```\n"


def test_links_are_found_outside_of_code() -> None:
    assert list(links(PAGE)) == [
        Link(3, "start/install.md#units", False),
        Link(3, "page.webp", True),
        Link(3, "b.md", False),
        Link(3, "a.svg", True),
    ]


def test_lines_keep_their_numbers_without_blocks() -> None:
    assert without_fences(PAGE).count("\n") == PAGE.count("\n")
    assert "sudo" not in without_fences(PAGE)


def test_anchors_are_those_of_forges() -> None:
    assert anchors(PAGE) == {"title", "what-it-costs-in-µs-cpu"}
    assert slug("[web.auth](x.md) & GET /api/v1/pools") == "webauth--get-apiv1pools"
