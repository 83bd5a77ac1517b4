"""JSON in messages of failed tests."""

import json

from support.short_json import short_json


def test_small_value_is_printed_in_full() -> None:
    value = {"pools": [{"name": "ram", "used_bytes": 1}, None], "text": "ü"}

    assert json.loads(short_json(value)) == value


def test_large_value_fits_forty_lines_and_counts_the_rest() -> None:
    pools = [{"name": f"gpu{n}", "shares": [{"pid": n, "bytes": m} for m in range(30)]} for n in range(30)]
    text = short_json({"seq": 7, "pools": pools, "host": "vm"})

    assert len(text.splitlines()) <= 40
    assert '"seq": 7' in text
    assert '"host": "vm"' in text
    assert "gpu0" in text
    assert "more" in text


def test_each_key_of_a_wide_object_is_kept() -> None:
    value = {f"key{n}": {"nested": list(range(9))} for n in range(34)}
    text = short_json(value)

    assert all(f'"{key}"' in text for key in value)
    assert len(text.splitlines()) <= 40


def test_long_text_is_cut() -> None:
    assert "340 more characters" in short_json("x" * 500)


def test_more_keys_than_lines_are_counted() -> None:
    text = short_json({f"key{n}": n for n in range(1000)})

    assert len(text.splitlines()) <= 40
    assert "964 more" in text
