"""Settings of model servers: the user who gets the API key."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatchd.settings.endpoints import engine_addresses
from support.settings_sample import problems_from, settings_from

ENGINE = '[[engines]]\nname = "chat"\nkind = "vllm"\nurl = "http://127.0.0.1:8000"\n'


@pytest.mark.parametrize("user", ["vllm", "998", "svc.llm-1", "_apt", "build$"])
def test_user_of_a_server_is_part_of_its_address(tmp_path: Path, user: str) -> None:
    (one,) = engine_addresses(settings_from(tmp_path, f'{ENGINE}user = "{user}"\n').engines).listed
    assert one.address.user == user


def test_server_without_a_user_has_none(tmp_path: Path) -> None:
    (one,) = engine_addresses(settings_from(tmp_path, ENGINE).engines).listed
    assert one.address.user == ""


@pytest.mark.parametrize("user", ['""', '"a b"', '"-vllm"', '"../etc"', "998", "true", '["vllm"]', f'"{"a" * 40}"'])
def test_user_that_is_none_is_rejected(tmp_path: Path, user: str) -> None:
    (problem,) = problems_from(tmp_path, f"{ENGINE}user = {user}\n")
    assert "user" in problem
    assert 'such as "vllm" or "998"' in problem
