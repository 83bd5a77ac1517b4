"""`make surface` compares words, order and fields, without the numbers of the moment."""

from __future__ import annotations

from pathlib import Path

from scripts.surface import differences, readable, without_numbers


def test_numbers_with_their_units_are_one_sign() -> None:
    assert without_numbers("used 5.2 GiB of 128 GiB, 12 s ago, gb10") == "used 0 of 0, 0, gb0"


def test_json_is_compared_by_fields_and_words() -> None:
    text = '{"pools": [{"id": "ram", "used_bytes": 5}, {"id": "ram", "used_bytes": 7}], "level": null, "ok": true}'
    expected = [".pools[].id 'ram'", ".pools[].used_bytes number", ".level None", ".ok True"]
    assert readable("application/json", text).splitlines() == expected


def test_html_is_compared_by_line_without_shapes() -> None:
    text = '<p>12 MiB</p><svg viewBox="0 0 7 7"><path d="M1 2"/></svg>'
    lines = readable("text/html; charset=utf-8", text).splitlines()
    assert lines == ["<p>0</p>", '<svg viewBox="">', '<path d=""/>', "</svg>"]


def test_a_file_that_is_missing_or_changed_is_a_difference(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, files in ((old, {"a.txt": "one\n", "b.txt": "b\n"}), (new, {"a.txt": "two\n", "b.txt": "b\n"})):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    (new / "c.md").write_text("c\n")
    lines = list(differences(old, new))
    assert [line for line in lines if line.startswith("+++")] == ["+++ now/a.txt", "+++ now/c.md"]
    assert {"-one", "+two", "+c"} <= set(lines)


def test_the_commit_and_its_folder_are_no_difference(tmp_path: Path) -> None:
    shown = (
        "memwatchd 0.dev0+checkout.g0d0e0c0\n<dd>0d0e0c0de0da0b0a0e0fc0</dd>\n'/tmp/x0/tests/machines/a: none'\n",
        "memwatchd 0.dev0+checkout.g0f0ebd0\n<dd>0f0ebd0c0aa0b0c0e0f0e0</dd>\n'/home/a/tests/machines/a: none'\n",
    )
    for name, text in zip(("old", "new"), shown, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text)

    assert list(differences(tmp_path / "old", tmp_path / "new")) == []
