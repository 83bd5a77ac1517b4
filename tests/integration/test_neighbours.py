"""Machines that follow each other: the pages of a pair, hostile neighbours, silence and its notification."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from support.budget import within
from support.client_process import memwatch
from support.daemon_process import running_daemon
from support.html_reader import Reader
from support.libc_faults import SOURCE, LibcFaults, built_library
from support.neighbours import (
    HEAD,
    answers,
    event,
    folder,
    machine,
    neighbours,
    serving,
    streams,
    tick_data,
    wait_for_state,
)
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_receiver import receiving
from support.webhook_samples import SECRET

MIB = 1 << 20
# Of the last tick before a fault: one interval, and the time to send it.
MAX_TICK_AGE_SECONDS = 1.5


def hook(url: str) -> str:
    return (
        f'[[alerts.webhooks]]\nname = "ops"\nurl = "{url}"\nsecret = "{SECRET}"\n'
        'events = ["neighbour.silent"]\nallow_link_local = true\n'
    )


def test_pair_of_machines_is_on_one_page_of_both(tmp_path: Path) -> None:
    """Two demos: pages, API, metrics and command line of each show the other."""
    with ExitStack() as stack:
        sockets = {name: tmp_path / f"{name}.sock" for name in ("spark", "ember")}
        demos = {"spark": "dgx-spark", "ember": "rtx4090"}
        daemons = {}
        for name, other in (("spark", "ember"), ("ember", "spark")):
            config = neighbours({other: f"unix:{sockets[other]}"})
            arguments = ("--demo", demos[name], "--at", "0s", "--listen", f"unix:{sockets[name]}")
            daemons[name] = stack.enter_context(running_daemon(folder(tmp_path, name), *arguments, config=config))
        spark = daemons["spark"]
        for name, other in (("spark", "ember"), ("ember", "spark")):
            wait_for_state(daemons[name], other, "up")
        listed = spark.get("/api/v1/machines").json
        pages = {path: spark.get(path).text for path in ("/machines", "/machines/ember", "/devices")}
        done = memwatch("machines", "--url", spark.url)
        placed = memwatch("fit", "20GiB", "--machines", "--url", spark.url)
        placed_json = memwatch("fit", "200GiB", "--machines", "--json", "--url", spark.url)
        metrics = spark.get("/metrics").text
        missing = spark.get("/machines/unknown")
        drawn = spark.get("/picture.svg?machine=ember")
        not_drawn = spark.get("/picture.svg?machine=unknown")

        assert {one["name"]: one["is_self"] for one in listed} == {"spark-1a2b": True, "ember": False}
        assert 'memwatch_neighbour_up{neighbour="ember"} 1.0' in metrics
        assert "RTX 4090" in pages["/machines"]
        assert "NVIDIA GeForce RTX 4090" in pages["/machines/ember"]
        for path, text in pages.items():
            assert Reader(text.encode()).open == [], path
            assert "Machines</a>" in text, path
        assert "python3" in pages["/machines/ember"]
        assert done.returncode == 0
        assert done.stdout.startswith("machine ")
        assert "ember" in done.stdout
        assert placed.returncode == 0
        assert re.search(r"✓ ember: 2\d\.\d GiB can be allocated on NVIDIA GeForce RTX 4090", placed.stdout)
        assert placed_json.returncode == 1
        found = {one["name"]: one["fits"] for one in json.loads(placed_json.stdout)["machines"]}
        assert found == {"spark-1a2b": False, "ember": False}
        assert missing.status == 404
        assert "the neighbours are: ember" in missing.text
        assert (drawn.status, drawn.headers["content-type"]) == (200, "image/svg+xml")
        assert "ember" in drawn.text
        assert (not_drawn.status, "the neighbours are: ember" in not_drawn.text) == (404, True)


def test_machine_without_neighbours_has_no_entry_and_no_thread(shared_daemons: SharedDaemons) -> None:
    daemon = shared_daemons.demo("dgx-spark")
    assert "Machines</a>" not in daemon.get("/").text
    assert "No neighbours are configured" in daemon.get("/machines").text
    assert len(daemon.get("/api/v1/machines").json) == 1
    assert "neighbour" not in daemon.get("/metrics").text  # also not among the threads


@pytest.mark.measure
def test_hostile_neighbours_are_named_and_cost_little(tmp_path: Path) -> None:
    """Every kind at once: each has its reason, the good one stays up, and memory and ticks are as before."""
    redirect = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    kinds = {
        "garbage": (answers(os.urandom(4096)), "it does not answer in HTTP"),
        "page": (
            answers(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"),
            "it answers 200",
        ),
        "redirect": (answers(redirect), "it answers 307, a redirect, which is not followed"),
        "older": (
            answers(b"HTTP/1.1 422 U\r\nContent-Length: 0\r\n\r\n"),
            "it answers 422: its memwatchd is older",
        ),
        "schema": (answers(HEAD + event(tick_data(schema=2))), "it sends schema 2, and this version reads 1"),
        "nonsense": (answers(HEAD + event(b"{}")), "it sends data that is not a tick"),
        "huge": (streams(lambda: b"x" * 65536), "it sends an event of more than 8192 bytes"),
        "head": (answers(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 9999), "its answer has no end within 16384 bytes"),
    }
    token = tmp_path / "token"
    token.write_text("a-token-of-sixteen")
    with ExitStack() as stack:
        closed = stack.enter_context(
            running_daemon(folder(tmp_path, "closed"), config=f"[web.auth]\nbearer_token = 'file:{token}'\n")
        )
        urls = {name: stack.enter_context(serving(send)) for name, (send, _) in kinds.items()}
        urls |= {
            "token": closed.url,
            "good": stack.enter_context(serving(streams(lambda: event(tick_data()), 0.5))),
        }
        urls["flood"] = stack.enter_context(
            serving(streams(lambda: event(tick_data(sentence="<b>\x1b[2J</b>")) * 50))
        )
        urls["mute"] = stack.enter_context(serving(answers(b"")))
        daemon = stack.enter_context(running_daemon(folder(tmp_path, "a"), config=neighbours(urls)))
        process = psutil.Process(daemon.pid)
        for name, (_, why) in kinds.items():
            assert wait_for_state(daemon, name, "refused")["text"].startswith(why), name
        assert "check the token" in wait_for_state(daemon, "token", "refused")["text"]
        for name in ("good", "flood"):
            wait_for_state(daemon, name, "up")
        began, cpu, size = time.monotonic(), sum(process.cpu_times()[:2]), process.memory_info().rss
        first = daemon.snapshot()["seq"]
        time.sleep(4.0)
        seconds, used = time.monotonic() - began, sum(process.cpu_times()[:2]) - cpu
        grown = process.memory_info().rss - size
        page = "".join(daemon.get(path).text for path in ("/machines", "/machines/flood"))
        states = {name: machine(daemon, name)["state"] for name in ("good", "flood")}

        assert daemon.snapshot()["seq"] - first >= 3
        within("CPU beside hostile neighbours", used / seconds, 0.25, "cores")
        within("growth beside hostile neighbours", grown, 16 * MIB, "bytes")
        assert states == {"good": "up", "flood": "up"}
        assert "<b>\\u001b" not in page
        assert "\x1b" not in page
        assert "&lt;b&gt;\\u001b[2J" in page


@pytest.mark.measure
@pytest.mark.long
def test_silence_is_told_once_with_the_last_words(tmp_path: Path) -> None:
    """One is killed, one stopped by SIGSTOP with a clock 5 min ahead, one shut down in order."""
    faults = LibcFaults.of(tmp_path)
    faults.set_wall_clock(300)
    with ExitStack() as stack, receiving() as site:
        followed = {
            name: stack.enter_context(running_daemon(folder(tmp_path, name), environ=environ))
            for name, environ in (("killed", {}), ("frozen", faults.environ), ("leaving", {}))
        }
        urls = {name: daemon.url for name, daemon in followed.items()}
        config = neighbours(urls) + hook(site.url)
        daemon = stack.enter_context(running_daemon(folder(tmp_path, "a"), config=config))
        for name in followed:
            wait_for_state(daemon, name, "up")
        time.sleep(2.5)
        fault_unix = time.time()
        followed["killed"].process.send_signal(signal.SIGKILL)
        stack.callback(followed["frozen"].process.send_signal, signal.SIGCONT)
        followed["frozen"].process.send_signal(signal.SIGSTOP)
        followed["leaving"].terminate()
        found = {
            name: wait_for_state(daemon, name, state)
            for name, state in (("leaving", "stopped"), ("killed", "silent"), ("frozen", "silent"))
        }
        time.sleep(1.5)
        texts = [
            one["text"] for one in daemon.get("/api/v1/events?limit=50").json if one["kind"] == "neighbour.silent"
        ]
        told = sorted(json.loads(delivery.body)["target"] for delivery in site.deliveries)
        followed["frozen"].process.send_signal(signal.SIGCONT)
        back = wait_for_state(daemon, "frozen", "up")

    assert fault_unix - found["killed"]["last_tick_unix"] <= MAX_TICK_AGE_SECONDS
    assert fault_unix + 300 - found["frozen"]["last_tick_unix"] <= MAX_TICK_AGE_SECONDS
    assert 295 < found["frozen"]["clock_offset_seconds"] < 301
    assert found["killed"]["clock_offset_seconds"] is None
    assert found["killed"]["absent"]["clock_offset_seconds"] == "not_available"
    assert found["killed"]["text"].endswith("(connection refused: memwatchd does not run there)")
    assert found["killed"]["last_tick"]["holders"]
    assert len(found["killed"]["recent"]) >= 3
    assert told == ["frozen", "killed"]
    assert len(texts) == 3
    assert back["last_tick_unix"] > found["frozen"]["last_tick_unix"]


def test_stalled_stream_is_replaced_before_silence(tmp_path: Path) -> None:
    """The first connection brings three ticks, then nothing, as if its segments were lost. The second is good."""
    taken = threading.Event()
    closed = threading.Event()

    def send(connection: socket.socket) -> None:
        if taken.is_set():
            streams(lambda: event(tick_data(sentence="from the second connection")), 0.3)(connection)
        taken.set()
        connection.sendall(HEAD + event(tick_data()) * 3)
        if connection.recv(1) == b"":
            closed.set()

    with serving(send) as url, running_daemon(tmp_path, config=neighbours({"one": url})) as daemon:
        wait_for_state(daemon, "one", "up")
        daemon.wait_for("/api/v1/machines/one", lambda found: found["text"] == "from the second connection")
        assert closed.wait(MAX_WAIT_SECONDS)
        events = daemon.get("/api/v1/events?limit=50").json

    assert not [one for one in events if one["kind"] == "neighbour.silent"]


def test_reload_adds_and_removes_neighbours(tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(serving(streams(lambda: event(tick_data()), 0.3))) for name in ("one", "two")
        }
        daemon = stack.enter_context(running_daemon(tmp_path, config=neighbours({"one": urls["one"]})))
        wait_for_state(daemon, "one", "up")
        (tmp_path / "memwatchd.toml").write_text(neighbours({"two": urls["two"]}))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("neighbours.two.name: not set → ")
        daemon.wait_for(
            "/api/v1/machines", lambda found: {one["name"] for one in found if not one["is_self"]} == {"two"}
        )
        wait_for_state(daemon, "two", "up")


@pytest.mark.measure
def test_name_service_that_hangs_does_not_delay_the_end(tmp_path: Path) -> None:
    """getaddrinfo(3) of the neighbour takes a minute. systemd kills a service that takes 15 s to stop."""
    library = built_library(SOURCE.with_name("slow_names.c"))
    config = neighbours({"slow": "http://slow.example:6360"})
    with running_daemon(
        tmp_path, "--demo", "rtx4090", config=config, environ={"LD_PRELOAD": str(library)}, installed=True
    ) as daemon:
        wait_for_state(daemon, "slow", "starting")
        began = time.monotonic()

        assert daemon.terminate() == 0
        within("end beside a name service that hangs", time.monotonic() - began, 5.0, "s")
