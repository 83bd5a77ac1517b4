"""Faults of followed machines, many times each: how old the last tick is, who notifies, and no false silence."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from memwatch.neighbours.book import HOLD_SECONDS
from memwatch.neighbours.neighbour import SILENT_SECONDS
from support.cut_link import link_to
from support.daemon_process import WITHOUT_COVERAGE, running_daemon
from support.neighbour_faults import FAULTS
from support.neighbours import event, folder, machine, neighbours, serving, streams, tick_data, wait_for_state
from support.packet_loss import losing
from support.waiting import MAX_WAIT_SECONDS, run_delay_seconds, wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import SECRET

# N=20 for a longer run.
REPEATS = int(os.environ.get("N", "3"))
AT_ONCE = 5
MAX_TICK_AGE_SECONDS = 1.5
LOSS, LOSSY_SECONDS = 0.3, 36.0 * REPEATS
# Budgets of one neighbour.
NEIGHBOURS, MAX_CPU_RATIO, MAX_BYTES = 30, 0.0002, 0.4 * (1 << 20)

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("fault", FAULTS)
def test_last_tick_is_at_most_one_and_a_half_seconds_older_than_the_fault(tmp_path: Path, fault: str) -> None:
    """At a random moment of the interval; the follower is asked a second later, and again when it must know."""
    draw, ages = random.Random(fault), []
    for batch in range(0, REPEATS, AT_ONCE):
        names = [f"n{batch + number}" for number in range(min(AT_ONCE, REPEATS - batch))]
        with ExitStack() as stack:
            victims = {name: FAULTS[fault](stack, folder(tmp_path, name)) for name in names}
            urls = {name: victim.daemon.url for name, victim in victims.items()}
            daemon = stack.enter_context(running_daemon(folder(tmp_path, f"a{batch}"), config=neighbours(urls)))
            for name in names:
                daemon.wait_for(f"/api/v1/machines/{name}", lambda found: len(found["recent"]) >= 3)
            for name, victim in victims.items():
                time.sleep(draw.random())
                waited = run_delay_seconds(daemon.pid, victim.daemon.pid)
                fault_unix = time.time() + victim.clock_seconds
                victim.inject()
                time.sleep(1.0)
                delayed = run_delay_seconds(daemon.pid) - waited
                ages.append(fault_unix - machine(daemon, name)["last_tick_unix"] - max(0.0, delayed))
            time.sleep(SILENT_SECONDS + 3.0)
            states = {name: machine(daemon, name)["state"] for name in names}

            assert states == {name: victim.state for name, victim in victims.items()}

    print(f"\n{fault}: {len(ages)} times, oldest last tick {max(ages):.2f} s")
    assert len(ages) == REPEATS
    assert max(ages) <= MAX_TICK_AGE_SECONDS, sorted(ages)


def test_loss_of_segments_raises_no_false_silence(tmp_path: Path) -> None:
    """Three segments of ten are lost both ways, on 30 links: N=20 are six hours of one link."""
    with ExitStack() as stack:
        many = "[web]\nmax_streams = 1000\n"
        followed = stack.enter_context(running_daemon(folder(tmp_path, "b"), "--demo", "rtx4090", config=many))
        urls = {f"n{number}": followed.url for number in range(NEIGHBOURS)}
        daemon = stack.enter_context(running_daemon(folder(tmp_path, "a"), config=neighbours(urls)))
        for name in urls:
            wait_for_state(daemon, name, "up")
        lost = stack.enter_context(losing(followed.port, LOSS))
        ages, until = [0.0], time.monotonic() + LOSSY_SECONDS
        while time.monotonic() < until:
            found = [one for one in daemon.get("/api/v1/machines").json if not one["is_self"]]
            ages.append(max(one["age_seconds"] for one in found))
            assert {one["state"] for one in found} == {"up"}, sorted(one["age_seconds"] for one in found)
            time.sleep(0.25)
        events = daemon.get("/api/v1/events?limit=100").json
        count = lost()

    print(f"\n{count} segments lost, oldest tick {max(ages):.1f} s")
    assert [one["text"] for one in events if one["kind"].startswith("neighbour.")] == []
    assert count > LOSSY_SECONDS * NEIGHBOURS * LOSS / 2
    assert max(ages) > 1.5, "no tick was late"


def test_machines_that_see_each_other_send_one_notification(tmp_path: Path) -> None:
    """Three machines follow a fourth and each other. It is killed."""
    names = ("a", "b", "c", "victim")
    sockets = {name: f"unix:{tmp_path}/{name}.sock" for name in names}
    with ExitStack() as stack, receiving() as site:
        hook = (
            f'[[alerts.webhooks]]\nname = "ops"\nurl = "{site.url}"\nsecret = "{SECRET}"\n'
            'events = ["neighbour.silent"]\n'
        )
        daemons = {}
        for name in names:
            others = {other: sockets[other] for other in names if other != name}
            config = (neighbours(others) + hook) if name != "victim" else ""
            made = running_daemon(folder(tmp_path, name), "--listen", sockets[name], config=config)
            daemons[name] = stack.enter_context(made)
        for name in names[:3]:
            for other in names:
                if other != name:
                    wait_for_state(daemons[name], other, "up")
        time.sleep(3.0)
        daemons["victim"].process.send_signal(signal.SIGKILL)
        for name in names[:3]:
            wait_for_state(daemons[name], "victim", "silent")
        wait_until(lambda: site.deliveries, MAX_WAIT_SECONDS)
        time.sleep(HOLD_SECONDS + 10.0)

        assert [json.loads(one.body)["target"] for one in site.deliveries] == ["victim"]


def test_network_between_two_machines_is_told_apart(tmp_path: Path) -> None:
    """A third machine still receives the one that is lost here."""
    with ExitStack() as stack, receiving() as site:
        hook = (
            f'[[alerts.webhooks]]\nname = "ops"\nurl = "{site.url}"\nsecret = "{SECRET}"\n'
            'events = ["neighbour.silent"]\n'
        )
        far = stack.enter_context(running_daemon(folder(tmp_path, "far"), "--demo", "rtx4090"))
        third = stack.enter_context(running_daemon(folder(tmp_path, "third"), config=neighbours({"far": far.url})))
        link = stack.enter_context(link_to(far.port))
        config = neighbours({"far": link.url, "third": third.url}) + hook
        daemon = stack.enter_context(running_daemon(folder(tmp_path, "a"), config=config))
        for name in ("far", "third"):
            wait_for_state(daemon, name, "up")
        time.sleep(2.0)
        link.cut()
        found = wait_for_state(daemon, "far", "unreachable")
        time.sleep(5.0)

    assert found["text"].startswith("third still receives it: check the network between this machine and far")
    assert site.deliveries == []


def test_thirty_neighbours_stay_within_their_budgets(tmp_path: Path) -> None:
    """CPU time and resident memory of a daemon with 30 neighbours, against one without."""

    def measure(count: int) -> tuple[float, int]:
        with ExitStack() as stack:
            urls = {
                f"n{number}": stack.enter_context(serving(streams(lambda: event(tick_data()), 1.0)))
                for number in range(count)
            }
            started = running_daemon(
                folder(tmp_path, f"a{count}"), config=neighbours(urls), installed=True, environ=WITHOUT_COVERAGE
            )
            daemon = stack.enter_context(started)
            assert daemon.get("/machines").status == 200
            time.sleep(10.0)
            process, began = psutil.Process(daemon.pid), time.monotonic()
            cpu = sum(process.cpu_times()[:2])
            time.sleep(125.0)
            used = sum(process.cpu_times()[:2]) - cpu
            return used / (time.monotonic() - began), process.memory_info().rss

    (cpu_before, size_before), (cpu_after, size_after) = measure(0), measure(NEIGHBOURS)
    cpu, size = (cpu_after - cpu_before) / NEIGHBOURS, (size_after - size_before) / NEIGHBOURS

    print(f"\neach neighbour: {cpu:.4%} of a core, {size / (1 << 20):.2f} MiB")
    assert cpu <= MAX_CPU_RATIO
    assert size <= MAX_BYTES
