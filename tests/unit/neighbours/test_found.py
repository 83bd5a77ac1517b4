"""Machines found by mDNS: limited by source address, counted beyond, and gone when they do not answer."""

from __future__ import annotations

from pathlib import Path

from memwatch.core.budget import KINDS, users_part
from memwatch_monitor.neighbours.found import (
    EXPIRE_SECONDS,
    LATE_SECONDS,
    MAX_COUNTED,
    FoundMachine,
    FoundMachines,
    Peers,
    parse_arp,
)

MAX_FOUND = users_part(KINDS["machines_found"].most)
MAX_FOUND_BY_SOURCE = 4


def machine(number: int, name: str = "flood") -> FoundMachine:
    return FoundMachine(f"{name}{number}", f"http://10.1.0.2:{number}", f"{number:x}")


def names(machines: FoundMachines) -> list[str]:
    return [one.name for one in machines.others((), ())]


def test_flood_of_one_source_takes_four_places_and_is_counted() -> None:
    machines = FoundMachines()
    for number in range(100_000):
        machines.put("10.1.0.2", f"s{number}", machine(number))
    machines.put("10.0.0.2", "spark", FoundMachine("spark", "http://10.0.0.2:6360", "ab"))

    listed = machines.others((), ())
    assert len(listed) == MAX_FOUND_BY_SOURCE + 1
    assert machines.count_left_out() == MAX_COUNTED


def test_number_of_found_machines_is_limited() -> None:
    """Sources with several lose one to a source that has none. Those with one stay."""
    machines = FoundMachines()
    for number in range(MAX_FOUND):
        machines.put(f"10.0.0.{number // 2}", f"s{number}", machine(number))
    for number in range(100, 110):
        machines.put(f"10.0.9.{number}", f"s{number}", machine(number))
    pairs = len(names(machines))
    for number in range(200, 300):
        machines.put(f"10.0.9.{number}", f"s{number}", machine(number))

    assert pairs == len(names(machines)) == MAX_FOUND
    assert {"flood1", "flood100", "flood109"} <= set(names(machines))
    assert machines.count_left_out() == 100 - (MAX_FOUND // 2 - 10)
    assert len(machines.others({"1"}, {"http://10.1.0.2:3"})) == MAX_FOUND - 2


ARP = """IP address       HW type     Flags       HW address            Mask     Device
10.0.0.2         0x1         0x2         52:54:00:00:00:02     *        eth0
10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0
10.0.0.4         0x1         0xg         52:54:00:00:00:04     *        eth0
10.0.0.5         0x1
"""


def test_arp_table_has_the_link_addresses_of_complete_entries() -> None:
    assert parse_arp(ARP.encode()) == {"10.0.0.2": "52:54:00:00:00:02"}


def test_machine_with_many_addresses_takes_four_places(tmp_path: Path) -> None:
    """It sends from all addresses of its network. Its link address is one, and machines with another are listed."""
    path, head = tmp_path / "arp", ARP.partition("\n")[0]
    row = "{} 0x1 0x2 {} * eth0"
    of_flood = [row.format(f"10.0.0.{number}", "52:54:00:00:00:66") for number in range(100, 130)]
    real = [row.format(f"10.0.0.{number}", f"52:54:00:00:00:{number}") for number in range(10, 30)]
    path.write_text("\n".join([head, *of_flood, *real, ""]))
    machines = FoundMachines(account_of=Peers(path).account)
    for number in range(100, 130):
        for service in range(4):
            machines.put(f"10.0.0.{number}", f"s{service}", machine(4 * number + service))
    taken = len(names(machines))
    for number in range(200):  # addresses that answer to no one
        machines.put(f"10.0.1.{number}", "s", machine(2000 + number))
    for number in range(10, 30):
        machines.put(f"10.0.0.{number}", "spark", machine(number, "spark"))

    assert taken == MAX_FOUND_BY_SOURCE
    assert sum(name.startswith("spark") for name in names(machines)) == 20


def test_another_source_neither_replaces_nor_removes_a_machine() -> None:
    machines = FoundMachines()
    machines.put("10.0.0.2", "spark", machine(1, "spark"))
    machines.put("10.0.0.66", "spark", FoundMachine("spark1", "http://10.0.0.66:1", "1"))
    machines.remove("10.0.0.66", "spark")

    assert [one.url for one in machines.others((), ())] == ["http://10.1.0.2:1"]


def test_machine_with_two_addresses_is_listed_once() -> None:
    machines = FoundMachines()
    for source in ("10.0.0.2", "192.168.0.2"):
        machines.put(source, "spark", machine(1, "spark"))

    assert names(machines) == ["spark1"]


def test_machine_that_does_not_answer_is_dropped() -> None:
    """One that ends without a goodbye. The count of unlisted announcements is that of the last minute."""
    clock = [0.0]
    machines = FoundMachines(lambda: clock[0])
    for number in range(MAX_FOUND_BY_SOURCE + 3):
        machines.put("10.0.0.2", f"s{number}", machine(number))
    machines.expire()
    before = machines.count_left_out()
    machines.expire()
    after = machines.count_left_out()
    clock[0] = EXPIRE_SECONDS
    machines.put("10.0.0.2", "s1", machine(1))
    clock[0] = EXPIRE_SECONDS + 1
    machines.expire()

    assert (before, after) == (3, 0)
    assert names(machines) == ["flood1"]


def test_late_answer_of_an_ended_machine_is_ignored() -> None:
    """A new process at the same address is shown at once, and the same one when it comes back later."""
    clock = [0.0]
    machines = FoundMachines(lambda: clock[0])

    def shown_after(run: str, seconds: float) -> list[str]:
        clock[0] += seconds
        machines.put("10.0.0.2", "ember", FoundMachine("ember", "http://10.0.0.2:6360", run))
        return [one.run for one in machines.others((), ())]

    assert shown_after("1", 0.0) == ["1"]
    machines.remove("10.0.0.2", "ember")
    assert shown_after("1", 0.5) == []
    assert shown_after("2", 0.1) == ["2"]
    machines.remove("10.0.0.2", "ember")
    assert shown_after("1", LATE_SECONDS) == ["1"]
