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
from support.daemon_process import WITHOUT_COVERAGE, running_daemon
from support.lossy_proxy import lossy_link
from support.neighbours import event, folder, machine, neighbours, serving, streams, tick_data, wait_for_state
from support.waiting import MAX_WAIT_SECONDS, run_delay_seconds, wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import SECRET

# N=20 for a longer run.
REPEATS = int(os.environ.get("N", "3"))
AT_ONCE = 5
MAX_TICK_AGE_SECONDS = 1.5
LOSSY_SECONDS = 120.0
# Budgets of one neighbour.
NEIGHBOURS, MAX_CPU_RATIO, MAX_BYTES = 30, 0.0002, 0.4 * (1 << 20)

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_last_tick_is_at_most_one_and_a_half_seconds_older_than_the_fault(
    tmp_path: Path, fault: signal.Signals
) -> None:
    """At a random moment of the interval; the follower is asked a second later."""
    draw, ages = random.Random(fault), []
    for batch in range(0, REPEATS, AT_ONCE):
        names = [f"n{batch + number}" for number in range(min(AT_ONCE, REPEATS - batch))]
        with ExitStack() as stack:
            followed = {
                name: stack.enter_context(running_daemon(folder(tmp_path, name), "--demo", "rtx4090"))
                for name in names
            }
            urls = {name: daemon.url for name, daemon in followed.items()}
            daemon = stack.enter_context(running_daemon(folder(tmp_path, f"a{batch}"), config=neighbours(urls)))
            for name in names:
                daemon.wait_for(f"/api/v1/machines/{name}", lambda found: len(found["recent"]) >= 3)
            for name in names:
                time.sleep(draw.random())
                waited = run_delay_seconds(daemon.pid, followed[name].pid)
                stack.callback(followed[name].process.send_signal, signal.SIGCONT)
                fault_unix = time.time()
                followed[name].process.send_signal(fault)
                time.sleep(1.0)
                delayed = run_delay_seconds(daemon.pid) - waited
                ages.append(fault_unix - machine(daemon, name)["last_tick_unix"] - max(0.0, delayed))

    assert len(ages) == REPEATS
    assert max(ages) <= MAX_TICK_AGE_SECONDS, sorted(ages)


def test_lossy_link_raises_no_false_silence(tmp_path: Path) -> None:
    """One segment of five is lost for two minutes, on each of three links."""
    with ExitStack() as stack:
        followed = stack.enter_context(running_daemon(folder(tmp_path, "b"), "--demo", "rtx4090"))
        urls = {f"n{seed}": stack.enter_context(lossy_link(followed.port, 0.2, seed)).url for seed in range(3)}
        daemon = stack.enter_context(running_daemon(folder(tmp_path, "a"), config=neighbours(urls)))
        for name in urls:
            wait_for_state(daemon, name, "up")
        oldest, until = 0.0, time.monotonic() + LOSSY_SECONDS
        while time.monotonic() < until:
            found = [one for one in daemon.get("/api/v1/machines").json if not one["is_self"]]
            assert {one["state"] for one in found} == {"up"}
            oldest = max(oldest, *(one["age_seconds"] for one in found))
            time.sleep(0.25)
        events = daemon.get("/api/v1/events?limit=100").json

    assert [one["text"] for one in events if one["kind"].startswith("neighbour.")] == []
    assert oldest > 1.5, "the links lost nothing"


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
        link = stack.enter_context(lossy_link(far.port, 0.0, 1))
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
