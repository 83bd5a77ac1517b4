"""Slots of model servers: those with evidence first, then one of each account in turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from memwatch.core.engines.command import Command
from memwatch.core.engines.kinds import KIND_BY_NAME
from memwatch.core.linux.accounts import Accounts, IdRange, parse_subuid
from memwatch.core.linux.engine_processes import MAX_ENGINES, ServerProcess, share_slots

ANA, BEN, EVE = 1000, 1001, 1002


def server(pid: int, account: int | None, evidence: int = 2) -> ServerProcess:
    return ServerProcess(pid, pid, account, KIND_BY_NAME["vllm"], Command(), account, 0, evidence)


def servers(account: int | None, first: int, count: int, evidence: int = 2) -> list[ServerProcess]:
    return [server(first + number, account, evidence) for number in range(count)]


def accounts_of(chosen: list[ServerProcess]) -> dict[int | None, int]:
    return dict(Counter(one.account for one in chosen))


@pytest.mark.parametrize("evidence", [0, 1])
def test_fakes_take_no_slot_of_a_server_with_more_evidence(evidence: int) -> None:
    chosen = share_slots([*servers(EVE, 1, 40, evidence), *servers(ANA, 900, 12)], [])
    assert accounts_of(chosen) == {ANA: 12, EVE: MAX_ENGINES - 12}


def test_accounts_with_the_same_evidence_share_the_slots() -> None:
    """Fakes may listen and hold memory as well."""
    chosen = share_slots([*servers(EVE, 1, 40), *servers(ANA, 900, 3), *servers(BEN, 950, 10)], [])
    assert accounts_of(chosen) == {ANA: 3, BEN: 6, EVE: 7}


def test_slots_with_more_evidence_count_for_the_share_of_the_rest() -> None:
    chosen = share_slots([*servers(ANA, 1, 8, 2), *servers(ANA, 20, 8, 0), *servers(BEN, 900, 8, 0)], [])
    assert accounts_of(chosen) == {ANA: 8, BEN: 8}


def test_server_that_is_followed_stays() -> None:
    listed = servers(ANA, 1, 20)
    before = [one.key for one in listed[4:]]
    assert {one.key for one in share_slots(listed, before)} == set(before)


def test_oldest_servers_of_an_account_are_first() -> None:
    assert [one.pid for one in share_slots(reversed(servers(ANA, 1, 20)), [])] == list(range(1, MAX_ENGINES + 1))


def test_servers_of_unknown_users_are_one_account() -> None:
    chosen = share_slots([*servers(None, 1, 40), *servers(ANA, 900, 8)], [])
    assert accounts_of(chosen) == {None: 8, ANA: 8}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"ana:100000:65536\n1001:165536:65536\n", [IdRange(100000, 65536, ANA), IdRange(165536, 65536, BEN)]),
        (b"eve:231072:65536\n", []),  # no such user
        (b"# a comment\n\nana:1\nana:x:5\nana:5:x\nana:5:0\nana:4294967295:2\nana:99999999999:1\n:5:5\n", []),
    ],
)
def test_lines_of_subuid(text: bytes, expected: list[IdRange]) -> None:
    assert parse_subuid(text, {b"ana": ANA, b"ben": BEN}) == expected


@pytest.mark.parametrize(
    ("uid", "account"),
    [
        (None, None),
        (0, 0),
        (ANA, ANA),
        (99_999, 99_999),
        (100_000, ANA),
        (165_535, ANA),
        (165_536, BEN),
        (231_072, 231_072),
    ],
)
def test_subordinate_ids_belong_to_their_account(tmp_path: Path, uid: int | None, account: int | None) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(f"ana:x:{ANA}:1000::/:/bin/sh\nben:x:{BEN}:1001::/:/bin/sh\n")
    (tmp_path / "etc/subuid").write_text("ana:100000:65536\nben:165536:65536\n")
    accounts = Accounts(tmp_path)
    accounts.refresh()
    assert accounts.of(uid) == account


def test_accounts_without_files_are_users(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    accounts.refresh()
    assert accounts.of(100_000) == 100_000
