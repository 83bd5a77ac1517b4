"""Temperature, power, clocks and throttling of a GPU: API, metrics, page, and the record of an unclean end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from simulators.nvml_machine import Simulator
from simulators.nvml_parts import XID
from simulators.nvml_state import Event, Sensors
from simulators.sample_nvml import RTX_4090
from support.api_schema import check_answer
from support.daemon_process import running_daemon
from support.html_reader import Reader
from support.mutable_machine import MutableMachine
from support.waiting import MAX_WAIT_SECONDS

HOT = Sensors(91, 449_600, 1410, 10501, throttle=0x4 | 0x8 | 0x40, busy=100, memory_busy=38)
MACHINE = RTX_4090.with_gpu(0, sensors=HOT)


def test_sensors_are_in_api_metrics_and_page(tmp_path: Path) -> None:
    simulator = Simulator.of(tmp_path, MACHINE)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        answer, metrics = daemon.get("/api/v1/devices"), daemon.get("/metrics").text
        page = Reader(daemon.get("/devices").body).text

    (device,) = answer.json
    check_answer(answer.body, "Device[]")
    assert (device["temperature_celsius"], device["power_watts"]) == (91, 449.6)
    assert device["clock_hertz"] == {"sm": 1_410_000_000, "memory": 10_501_000_000}
    assert device["throttled"] == ["power_cap", "hw_thermal"]
    assert (device["busy_ratio"], device["memory_busy_ratio"]) == (1.0, 0.38)
    for sample in (
        'device_temperature_celsius{device="gpu0"} 91.0',
        'device_power_watts{device="gpu0"} 449.6',
        'device_clock_hertz{clock="sm",device="gpu0"} 1.41e+09',
        'device_throttled{device="gpu0",reason="hw_thermal"} 1.0',
        'device_busy_ratio{device="gpu0"} 1.0',
        'device_memory_busy_ratio{device="gpu0"} 0.38',
    ):
        assert f"\nmemwatch_{sample}\n" in metrics
    assert "Temperature 91 °C Power 450 W SM clock 1,410 MHz Memory clock 10,501 MHz" in page
    assert "Throttled power cap, temperature (hardware)" in page


def test_sensors_before_an_unclean_end_are_kept(tmp_path: Path) -> None:
    """With the XID in words: owners found the cause of a freeze only here."""
    machine = MutableMachine.of("rtx-4090", tmp_path / "machine")
    machine.use(0.97)
    simulator = Simulator.of(tmp_path, MACHINE)
    arguments = [*machine.arguments, "--state-dir", str(tmp_path / "state")]
    with running_daemon(tmp_path, *arguments, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        simulator.wait_for_call("nvmlEventSetWait_v2")
        simulator.show(MACHINE.with_event(Event(0, XID, 79)))
        daemon.wait_for("/api/v1/events", lambda events: any("XID 79" in event["text"] for event in events))
        events = [event["text"] for event in daemon.get("/api/v1/events").json]
        seen = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/snapshot", lambda found: found["seq"] > seen)
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.process.wait(MAX_WAIT_SECONDS)
    with running_daemon(tmp_path, *arguments, environ=simulator.environ) as daemon:
        answer, page = daemon.get("/api/v1/last-words"), Reader(daemon.get("/last-words").body).text

    check_answer(answer.body, "LastWords")
    (device,) = answer.json["last"]["devices"]
    assert "the driver of gpu0 reported XID 79: GPU has fallen off the bus" in events
    assert (device["temperature_celsius"], device["throttled"]) == (91, ["power_cap", "hw_thermal"])
    assert device["errors"] == {"xid_79": 1}
    assert "91 °C 450 W power cap, temperature (hardware) XID 79: GPU has fallen off the bus" in page


def test_throttling_of_an_intel_card_is_in_api_metrics_and_page(tmp_path: Path) -> None:
    """By the driver's own names; the files lie beside those of the card."""
    machine = MutableMachine.of("arc-a770", tmp_path / "machine")
    (hwmon,) = (tmp_path / "machine/sys/devices/pci0000:00/0000:00:03.1").glob("*/*/*/hwmon")
    unit = hwmon.parent / "tile0/gt0/freq0/throttle"
    unit.mkdir(parents=True)
    for name, text in (("status", "1"), ("reason_pl1", "1"), ("reason_thermal", "1"), ("reason_ratl", "0")):
        (unit / name).write_text(f"{text}\n")
    with running_daemon(tmp_path, *machine.arguments) as daemon:
        daemon.wait_until_ok("hwmon")
        (device,) = daemon.wait_for("/api/v1/devices", lambda found: found and found[0]["throttled"])
        metrics = daemon.get("/metrics").text
        page = Reader(daemon.get("/devices").body).text

    assert device["throttled"] == ["pl1", "thermal"]
    assert 'memwatch_device_throttled{device="gpu0",reason="pl1"} 1.0' in metrics
    assert "Throttled power limit (PL1), temperature" in page
