"""Answers of mDNS, which any machine of the network may send: machines within the limits, or a rejection."""

from __future__ import annotations

from contextlib import suppress

from memwatch.core.budget import KINDS, Account, Budget
from memwatch_monitor.neighbours.found import FoundMachines
from memwatchd.neighbours.mdns import MAX_SERVICES, NAME_LENGTH, SERVICE, PacketError, parse_services, read_service


def check(data: bytes) -> None:
    found = FoundMachines()
    with suppress(PacketError):
        services = parse_services(data, SERVICE)
        assert len(services) <= MAX_SERVICES
        for service in services:
            machine = read_service(service)
            if machine is not None:
                assert machine.name.isprintable()
                assert len(machine.name) <= NAME_LENGTH
                assert machine.url.isascii()
                found.put("10.0.0.2", service.name, machine)
    assert len(found.others((), ())) <= Budget(KINDS["machines_found"]).share(Account("192.0.2.1"))
