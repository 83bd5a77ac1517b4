"""Budgets: shares of accounts, the part for services and operators, and which thing goes."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.budget import (
    KINDS,
    MAX_NAMES,
    RECENT_SECONDS,
    ROOT,
    Account,
    Budget,
    Budgets,
    Held,
    Kind,
    Rank,
    share_of,
    share_out,
    users_part,
)

ANA, BEN, EVE = Account("uid 1000"), Account("uid 1001"), Account("uid 1002")
MAIL = Account("uid 101", Rank.SYSTEM)
ALL = [*KINDS.values()]
LOG = Kind("log", 16, 1 / 4, "entries", "entries were dropped", replaces="any")
SLOTS = Kind("slots", 16, 1 / 4, "slots", "slots were refused", replaces="smaller")
PLACES = Kind("places", 16, 3 / 4, "places", "places were refused")


def flood(budget: Budget, account: Account, count: int, size: int = 0) -> int:
    """Ask for things of an account. Return how many were admitted."""
    first = len(list(budget)) + budget.refused
    return sum(budget.admit((account, first + number), account, size).is_admitted for number in range(count))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_each_kind_has_room_for_others_beside_one_account(kind: Kind) -> None:
    budget = Budget(kind)
    flood(budget, EVE, 3 * kind.most)

    assert budget.count(EVE) == share_of(kind, kind.most, EVE) <= users_part(kind.most)
    assert all(budget.admit(one, one).is_admitted for one in (ANA, BEN, MAIL, ROOT))
    assert kind.rotates or budget.refused >= 2 * kind.most


def test_mark_that_makes_room_for_the_next_of_its_account_is_no_refusal() -> None:
    """A training program that marks each step is no flood. One that takes the place of another account's is."""
    budget = Budget(KINDS["marks"])
    for step in range(2000):
        budget.admit(step, ANA)
    alone = budget.refused
    for step in range(2000, 2375):
        budget.admit(step, BEN)

    assert alone == 0
    assert budget.refused > 0


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_each_kind_keeps_a_quarter_for_services_and_operators(kind: Kind) -> None:
    """Many accounts together: more than any user has subordinate ids for."""
    budget = Budget(kind)
    for number in range(3 * kind.most):
        flood(budget, Account(f"containers with uid {number}"), 2)
    assert budget.held == users_part(kind.most)

    services = [Account(f"uid {number}", Rank.SYSTEM) for number in range(kind.most - users_part(kind.most))]
    assert all(budget.admit(one, one).is_admitted for one in services)
    assert budget.admit("operator", EVE.as_operator()).is_admitted or kind.most == budget.held


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_root_is_never_refused_and_takes_no_place(kind: Kind) -> None:
    budget = Budget(kind)
    assert flood(budget, ROOT, 2 * kind.most) == 2 * kind.most
    assert budget.admit("of ana", ANA).is_admitted
    assert budget.count(ANA) == 1


def test_account_with_the_most_gives_its_smallest() -> None:
    budget = Budget(PLACES)
    for size in (5, 3, 9, 3, 8, 7, 6, 4, 8, 9, 9, 9):
        budget.admit((EVE, budget.held), EVE, size)
    assert budget.admit("of ana", ANA, 1) == (True, (EVE, 1))  # the older of two with 3


def test_accounts_do_not_take_a_place_from_each_other_in_turn() -> None:
    budget = Budget(PLACES)
    flood(budget, ANA, 6)
    flood(budget, BEN, 6)
    assert not budget.admit("more", ANA).is_admitted
    assert not budget.admit("more", BEN).is_admitted


def test_larger_thing_replaces_the_smallest_of_its_account_only_where_it_may() -> None:
    budget = Budget(SLOTS)
    assert flood(budget, EVE, 10, size=5) == 4
    assert budget.admit("large", EVE, 6) == (True, (EVE, 0))
    assert not budget.admit("equal", EVE, 5).is_admitted
    assert budget.refused == 8


def test_newest_entry_of_a_log_replaces_the_oldest_of_its_account() -> None:
    budget = Budget(LOG)
    budget.admit("of ana", ANA)
    for number in range(20):
        assert budget.admit(number, EVE).is_admitted
    assert list(budget) == ["of ana", 16, 17, 18, 19]


def test_smallest_of_the_account_with_the_most_goes_first_and_then_the_lowest_rank() -> None:
    budget = Budget(LOG)
    for key, account, size in (("a", ANA, 9), ("e", EVE, 1), ("f", EVE, 5), ("m", MAIL, 0), ("r", ROOT, 0)):
        budget.admit(key, account, size)
    assert [budget.drop_next() for _ in range(5)] == ["e", "f", "a", "m", "r"]


def test_many_small_things_of_root_displace_no_other_account() -> None:
    """In the file of incidents bytes are short: root's records without a kill go."""
    budget = Budget(LOG)
    budget.admit("kill of ana", ANA, 1 << 20)
    for number in range(16):
        budget.admit(number, ROOT, 0)
    assert "kill of ana" not in [budget.drop_next() for _ in range(15)]


def test_account_is_the_same_over_tcp_and_as_operator_over_the_socket_file() -> None:
    budget = Budget(PLACES)
    flood(budget, EVE, 12)
    assert budget.count(EVE.as_operator()) == 12
    assert not budget.admit("more", EVE.as_operator()).is_admitted
    assert budget.recent() == Counter({EVE.name: 1})


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_root_grows_to_a_bound_and_gives_its_own_smallest(kind: Kind) -> None:
    budget = Budget(kind)
    budget.admit("of ana", ANA)
    flood(budget, ROOT, 4 * kind.most)
    assert budget.count(ROOT) == kind.most
    assert budget.held == kind.most + 1


def test_thing_that_asks_at_each_tick_is_counted_once_an_hour() -> None:
    now = 0.0
    budget = Budget(SLOTS, monotonic=lambda: now)
    flood(budget, EVE, 4)
    for tick in range(100):
        now = float(tick)
        budget.admit("same", EVE)
    assert (budget.refused, budget.count_recent()) == (1, 1)
    now += RECENT_SECONDS + 1
    budget.admit("same", EVE)
    assert (budget.refused, budget.count_recent()) == (2, 1)


def test_refusals_of_a_flood_cost_no_tick_its_time() -> None:
    """The number of the last hour is kept, not computed: of a hundred thousand refusals as of one. CPU time."""
    now = 0.0
    budgets = Budgets(lambda: now)
    for budget in budgets.by_kind.values():
        for number in range(4000):
            now = number / 2
            budget.refuse(number, Account(f"192.0.2.{number % 1000}"))
    began = time.thread_time()
    for _ in range(100):
        counts = budgets.left_out()
    took = (time.thread_time() - began) / 100

    assert counts["leases"] == 4000
    assert all(len(names) <= MAX_NAMES + 1 for _, names in budgets["leases"]._recent)
    assert took < 0.0005


def test_refusals_are_recent_for_an_hour() -> None:
    now = 0.0
    budget = Budget(SLOTS, monotonic=lambda: now)
    flood(budget, EVE, 6)
    assert budget.recent() == Counter({"uid 1002": 2})
    now = RECENT_SECONDS + 1
    assert (budget.recent(), budget.refused) == (Counter(), 2)


def test_smaller_limit_applies_to_new_things() -> None:
    budgets = Budgets()
    flood(budgets["leases"], ANA, 16)
    budgets.use({"leases": 8})
    assert budgets["leases"].held == 16
    assert not budgets["leases"].admit("more", ANA).is_admitted
    assert budgets["leases"].describe(ANA) == "uid 1000 has 16 of 8 leases, its share"


def test_known_thing_stays_at_the_limit() -> None:
    budget = Budget(SLOTS)
    flood(budget, ANA, 4)
    assert budget.admit((ANA, 0), ANA, 3) == (True, None)


def test_account_has_its_turn_where_a_list_names_few() -> None:
    things: dict[str | int, Held] = {number: Held(EVE, 100 - number) for number in range(40)}
    things |= {"of ana": Held(ANA, 1), "of mail": Held(MAIL, 1), "of root": Held(ROOT, 1)}

    assert share_out(things, 5) == ["of root", "of mail", 0, "of ana", 1]
    # The largest of all, but of one account not more than twelve before those of others.
    assert share_out(things, 16, 12) == [*range(12), "of ana", "of mail", "of root", 12]
    assert share_out(things, 100, 12) == [*range(12), "of ana", "of mail", "of root", *range(12, 40)]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_real_event_survives_hundreds_of_seeded_floods(kind: Kind) -> None:
    """Users, root without a size, a service and an operator flood; bytes run short. The one of another stays."""
    real = Account("uid 5000")
    floods = [Account(f"uid {1000 + number}") for number in range(4)] + [MAIL, ROOT, EVE.as_operator()]
    for seed in range(60):
        chance = random.Random(seed)
        most = chance.randint(24, 48)
        budget = Budget(kind, most)
        crowd = chance.sample(floods, chance.randint(1, len(floods)))
        at = chance.randint(0, 80)
        for number in range(160):
            if number == at:
                is_possible = kind.gives or budget.held < users_part(most)
                assert budget.admit("real", real, 10).is_admitted or not is_possible, (seed, number)
            was_held = "real" in set(budget)
            account = chance.choice(crowd)
            budget.admit(number, account, 0 if account is ROOT else chance.randint(0, 100))
            if chance.random() < 0.1 and budget.held > 2 * len(floods) + 2:
                budget.drop_next()
            if chance.random() < 0.1:
                budget.release(chance.choice([key for key in budget if key != "real"]))
            assert ("real" in set(budget)) == was_held, (seed, number)
            assert budget.held <= 2 * most
            assert budget.count(EVE) <= share_of(kind, most, EVE)


@given(
    st.sampled_from([LOG, SLOTS, PLACES, *ALL]),
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()),
        max_size=300,
    ),
    st.integers(0, 300),
)
def test_floods_never_displace_the_event_of_another_account(
    kind: Kind, history: list[tuple[int, int, bool]], at: int
) -> None:
    """Five accounts begin and end things of any size. The one large thing of another stays until it ends."""
    most = min(kind.most, 32)
    budget = Budget(kind, most)
    accounts = [Account(f"uid {1000 + number}") for number in range(5)] + [MAIL]
    for number, (account, size, ends) in enumerate(history):
        if number == min(at, len(history) - 1):
            assert budget.admits(ANA.as_operator(), 10)
            # Of accounts with two or more, one gives a place: five accounts cannot have one each of 24.
            is_possible = kind.gives or budget.count(accounts[account]) * len(accounts) < users_part(most)
            admitted = budget.admit("real", Account("uid 5000"), 10).is_admitted
            assert admitted or not is_possible
        if ends:
            for key in [key for key in budget if key != "real"][:1]:
                budget.release(key)
        was_held = "real" in set(budget)
        budget.admit(number, accounts[account], size)
        assert ("real" in set(budget)) == was_held
        counts = {one: budget.count(one) for one in accounts}
        assert all(count <= share_of(kind, most, one) for one, count in counts.items())
        assert sum(counts[one] for one in accounts[:5]) <= users_part(most)
