"""Slots of model servers: those with evidence first, then one of each account in turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from memwatch.core.budget import KINDS, ROOT, UNKNOWN, Account, Budget, Rank
from memwatch.core.engines.command import Command
from memwatch.core.engines.kinds import KIND_BY_NAME
from memwatch.core.linux.accounts import IdRange, parse_subuid
from memwatch.core.linux.engine_processes import EngineSlots, ServerProcess, share_slots
from memwatch.core.linux.listeners import ListenerTables

ANA_UID, BEN_UID = 1000, 1001
ANA, BEN, EVE = Account("uid 1000"), Account("uid 1001"), Account("uid 1002")
MAIL = Account("uid 101", Rank.SYSTEM)
MOST, USERS = KINDS["engines"].most, KINDS["engines"].most * 3 // 4


def server(pid: int, account: Account, evidence: int = 2) -> ServerProcess:
    return ServerProcess(pid, pid, 0, KIND_BY_NAME["vllm"], Command(), account, 0, evidence)


def servers(account: Account, first: int, count: int, evidence: int = 2) -> list[ServerProcess]:
    return [server(first + number, account, evidence) for number in range(count)]


def accounts_of(chosen: list[ServerProcess]) -> dict[Account, int]:
    return dict(Counter(one.account for one in chosen))


@pytest.mark.parametrize(
    ("found", "shares"),
    [
        ([*servers(EVE, 1, 40, 0), *servers(ANA, 900, 12)], {ANA: 12, EVE: USERS - 12}),
        ([*servers(EVE, 1, 40, 1), *servers(ANA, 900, 12)], {ANA: 12, EVE: USERS - 12}),
        ([*servers(EVE, 1, 40), *servers(ANA, 900, 3), *servers(BEN, 950, 10)], {ANA: 3, BEN: 7, EVE: 8}),
        ([*servers(ANA, 1, 9, 2), *servers(ANA, 20, 8, 0), *servers(BEN, 900, 9, 0)], {ANA: 9, BEN: 9}),
        ([*servers(UNKNOWN, 1, 40), *servers(ANA, 900, 9)], {UNKNOWN: 9, ANA: 9}),
    ],
    ids=["fakes", "fakes that listen", "same evidence", "slots with evidence count", "unknown users are one"],
)
def test_servers_with_evidence_come_first_and_then_one_of_each_account(
    found: list[ServerProcess], shares: dict[Account, int]
) -> None:
    """Fakes may listen and hold memory as well, as those with the same evidence do."""
    assert accounts_of(share_slots(found, [])) == shares


def test_server_that_is_followed_stays() -> None:
    listed = servers(ANA, 1, USERS + 4)
    before = [one.key for one in listed[4:]]
    assert {one.key for one in share_slots(listed, before)} == set(before)


def test_oldest_servers_of_an_account_are_first() -> None:
    assert [one.pid for one in share_slots(reversed(servers(ANA, 1, 30)), [])] == list(range(1, USERS + 1))


def test_users_leave_a_quarter_to_services_and_take_none_from_root() -> None:
    users = [
        one for number, account in enumerate((ANA, BEN, EVE)) for one in servers(account, 100 * number + 1, 30)
    ]
    chosen = accounts_of(share_slots([*users, *servers(MAIL, 900, 30), *servers(ROOT, 950, 30)], []))
    assert (chosen[MAIL], chosen[ROOT]) == (6, MOST)
    assert sum(chosen[one] for one in (ANA, BEN, EVE)) == USERS


def test_server_without_a_slot_is_counted_once(tmp_path: Path) -> None:
    budget = Budget(KINDS["engines"])
    slots = EngineSlots(tmp_path, budget)
    for _ in range(4):
        slots.choose(servers(ANA, 1, USERS + 2), ListenerTables())
    assert (budget.refused, budget.recent()) == (2, {ANA.name: 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b"ana:100000:65536\n1001:165536:65536\n",
            [IdRange(100000, 65536, ANA_UID), IdRange(165536, 65536, BEN_UID)],
        ),
        (b"eve:231072:65536\n", []),  # no such user
        (b"# a comment\n\nana:1\nana:x:5\nana:5:x\nana:5:0\nana:4294967295:2\nana:99999999999:1\n:5:5\n", []),
    ],
)
def test_lines_of_subuid(text: bytes, expected: list[IdRange]) -> None:
    assert parse_subuid(text, {b"ana": ANA_UID, b"ben": BEN_UID}) == expected
