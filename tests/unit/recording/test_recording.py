"""Test that a recording holds what was served, and can be replayed and redacted."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.kernel_log import DriverError, KernelLog, OomKill
from memwatch.core.leases import Lease
from memwatch.core.model import Absent, AllocatorReport, Process
from memwatch.core.reading.identity import Identity
from memwatch.core.silences import Silence
from memwatch.core.snapshot import CollectorStatus, Kernel, Machine
from memwatch.core.snapshot_json import SnapshotDecodeError, build_snapshot, snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.library.machine_record import decode_machine
from memwatch.reporting.recording import RecordingFile, Redactor
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.loop import Monitor
from memwatchd.recording.player import Player, ReplayClock, ReplaySleep, open_recording, play_through
from support.fakes import GIB
from support.monitors import create_monitor, history
from support.recordings import recorded, seconds_in, snapshot_at
from support.sample_snapshots import SAMPLES, critical_gb10


@pytest.mark.parametrize("name", SAMPLES)
def test_snapshot_survives_a_round_trip_through_json(name: str) -> None:
    """Every value, every absence with its reason, every device: what was served is what is replayed."""
    snapshot = SAMPLES[name]()

    again = snapshot_from(to_bytes(snapshot_json(snapshot)))

    assert snapshot_json(again) == snapshot_json(snapshot)
    # Owners have a separate path, and are added up from the processes where a recording has none.
    assert replace(again, monotonic=snapshot.monotonic, owners=snapshot.owners) == snapshot


@pytest.mark.parametrize(
    ("field", "value"), [("unix", 1e300), ("unix", -1.0), ("interval_seconds", 0.0), ("interval_seconds", -1.0)]
)
def test_impossible_times_are_rejected(field: str, value: float) -> None:
    """Such times cannot be shown, and without an interval a recording cannot be played."""
    line = json.dumps(snapshot_json(snapshot_at(1)) | {field: value})

    with pytest.raises(SnapshotDecodeError, match=f"{field} is"):
        snapshot_from(line.encode())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_json_of_another_shape_is_rejected(value: object) -> None:
    """Any other value in its place, or in place of one of its parts."""
    found = snapshot_json(snapshot_at(1))
    wrongs = (value, {"schema": 1, "pools": value}, {**found, "pools": [value]}, {**found, "unix": [value]})
    for wrong in wrongs:
        with pytest.raises(SnapshotDecodeError):
            snapshot_from(json.dumps(wrong).encode())


@pytest.mark.parametrize("certain", [None, 1 << 30])
def test_headroom_of_early_versions_has_today_s_names(certain: int | None) -> None:
    """There `headroom_bytes` was the larger end, and the other was `headroom_certain_bytes` or missing."""
    found = json.loads(to_bytes(snapshot_json(SAMPLES["critical_gb10"]())))
    device = found["devices"][0]
    device["headroom_bytes"] = most = device.pop("headroom_after_reclaim_bytes")
    if certain is not None:
        device["headroom_certain_bytes"] = certain

    devices = (snapshot_from(to_bytes(found)).devices[0], decode_machine(found).devices[0])

    for one in devices:
        assert one.headroom_after_reclaim_bytes == most
        assert one.headroom_bytes == (Absent.NOT_AVAILABLE if certain is None else certain)


def test_snapshots_are_played_in_order(tmp_path: Path) -> None:
    """Fifty snapshots in a file that zcat reads, and a second part after a restart of the recorder."""
    path = tmp_path / "box.memwatch"
    recorded(path, 50)
    recorded(path, 10, first=100)

    contents = open_recording(path, salvage=False)

    assert seconds_in(path) == [*range(50), *range(100, 110)]
    assert (contents.count, contents.seconds, contents.damage) == (60, 109.0, "")
    assert path.stat().st_size < 8000


def monitor_of(player: Player) -> Monitor:
    identity = Identity("spark", "boot", simulated=True)
    return create_monitor(
        player, player.clock, MonitorRules(), identity, ReplaySleep(player.clock.speed), player.clock.speed
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_redacted_snapshot_can_be_replayed(name: str) -> None:
    """Absent values keep their reasons: only names differ."""
    snapshot = SAMPLES[name]()

    again = snapshot_from(to_bytes(Redactor().redact(snapshot_json(snapshot))))

    assert again.host == "host-1"
    assert (again.pools, again.nodes, again.swap) == (snapshot.pools, snapshot.nodes, snapshot.swap)
    assert [device.uuid for device in again.devices if isinstance(device.uuid, Absent)] == [
        device.uuid for device in snapshot.devices if isinstance(device.uuid, Absent)
    ]
    assert [process.rss_bytes for process in again.processes] == [one.rss_bytes for one in snapshot.processes]


def test_player_shows_each_moment_and_repeats(tmp_path: Path) -> None:
    """Second by second through the loop and the rules; at the end it starts again, with later times."""
    path = tmp_path / "box.memwatch"
    recorded(path, 60)
    clock = ReplayClock(1e9, 1.0)
    player = Player(open_recording(path, salvage=False), clock)
    monitor = monitor_of(player)
    player.began_again = monitor.replay_restarted

    play_through(monitor, player)
    levels = [bucket.maximum for bucket in history(monitor).tiers.query("pressure.ram.level", 0.0, 60.0, 6)]
    again = monitor.tick()

    values = [value for _, value in history(monitor).tiers.since("pool.ram.used_bytes", 0.0)]
    assert values[:3] == [0.0, 1.0 * GIB, 2.0 * GIB]
    assert max(values) == 59.0 * GIB
    assert levels[0] == 0.0
    assert levels[-1] == 2.0
    assert again.simulated
    assert again.unix == pytest.approx(1e9 + 60.0, abs=1.0)
    assert again.pools[0].used_bytes == 0
    assert "recording restarted" in [event.text for event in monitor.events.since(0)]


@pytest.mark.parametrize("later", [0.0, 5e6])
def test_last_success_follows_the_played_clock(tmp_path: Path, later: float) -> None:
    """A recording keeps its times in the first round and continues them later; a demo uses the current time."""
    path = tmp_path / "box.memwatch"
    file = RecordingFile(path, host="spark")
    for second in range(4):
        statuses = (
            CollectorStatus("meminfo", "ok", 0.5, 0.1, 1e9 + second - 0.5),
            CollectorStatus("drm", "unavailable"),
        )
        file.write(to_bytes(snapshot_json(replace(snapshot_at(second), collectors=statuses))))
    file.close()
    clock = ReplayClock(1e9 + later, 1.0)
    player = Player(open_recording(path, salvage=False), clock)

    found = []
    for _ in range(8):
        found.append(player.gather()[1])
        again = player.gather()[1]
        clock.skip(1.0)

    times = [statuses[0].last_success_unix for statuses in found]
    assert times == [1e9 + later + second - 0.5 for second in range(8)]
    assert {statuses[1].last_success_unix for statuses in found} == {Absent.NOT_AVAILABLE}
    assert again is found[-1]


def test_kills_of_earlier_rounds_stay_counted(tmp_path: Path) -> None:
    """A kill of the round before is still an event: 0 kills since boot beside it would contradict it."""
    path = tmp_path / "box.memwatch"
    file = RecordingFile(path, host="box")
    for second in range(4):
        frame = replace(snapshot_at(second), kernel=Kernel(oom_kills_total=5 + (second > 1)))
        file.write(to_bytes(snapshot_json(frame)))
    file.close()
    clock = ReplayClock(1e9, 1.0)
    player = Player(open_recording(path, salvage=False), clock)

    totals = []
    for _ in range(12):
        kernel = player.gather()[0].kernel
        totals.append(kernel.oom_kills_total if kernel else None)
        clock.skip(1.0)

    assert totals == [5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 8, 8]


def test_first_round_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Events have their own times, which the log would not show. Later events are logged as usual."""
    path = tmp_path / "box.memwatch"
    recorded(path, 120)
    clock = ReplayClock(1e9, 1.0)
    player = Player(open_recording(path, salvage=False), clock)
    monitor = monitor_of(player)
    caplog.set_level(logging.DEBUG)

    play_through(monitor, player)
    at_once = [(record.levelname, record.message) for record in caplog.records]
    caplog.clear()
    monitor.reconfigure(MonitorRules())

    assert [message for level, message in at_once if level != "DEBUG"] == [
        "replayed the recording once (2 min); its events are at /api/v1/events"
    ]
    assert any(message.startswith("System RAM: ") for _, message in at_once)
    assert "level" in {event.kind for event in monitor.events.since(0)}
    assert [(record.levelname, record.message) for record in caplog.records] == [("INFO", "configuration reloaded")]


def test_played_clock_runs_at_its_speed() -> None:
    """It runs faster than real time, and can be moved forward."""
    clock = ReplayClock(1e9, 1000.0)

    before = clock.monotonic()
    clock.skip(3600.0)

    assert clock.monotonic() - before >= 3600.0
    assert clock.wall() - clock.boottime() == pytest.approx(1e9, abs=10.0)


def test_redacted_recording_has_no_names() -> None:
    """Hosts, users, programs, units, containers and ids are replaced, each by the same word everywhere."""
    secret = Process(
        4242, 1.0, "projekt-falke", 5, 5, "rss", user="ada", unit="falke.service", container="1f6bd2a9e2c7"
    )
    named = replace(
        snapshot_at(1),
        host="falcon-7.example.com",
        machine=Machine("NVIDIA DGX Spark", explanation="projekt-falke on falcon-7.example.com holds it"),
        processes=(secret, replace(secret, pid=7)),
        claims=(AllocatorReport(4242, "falke-cache", "cuda:0", 1, 2),),
        kernel_log=KernelLog(
            (OomKill(1, 4242, "projekt-falke", 5, "cgroup", "/falke.slice"),),
            (DriverError("NVRM", "0000:01:00", "xid_79", 1, 1e9, "Xid 79, pid=4242, name=falke-gone"),),
        ),
    )
    redactor = Redactor()

    first = redactor.redact(snapshot_json(named))
    second = redactor.redact(snapshot_json(replace(named, seq=2)))

    text = json.dumps(first)
    for word in ("falke", "falcon", "ada", "1f6bd2a9e2c7", "4242"):
        assert word not in text
    assert first["machine"]["name"] == "NVIDIA DGX Spark"
    assert first["machine"]["explanation"] == "process-1 on host-1 holds it"
    assert [process["pid"] for process in first["processes"]] == [1, 2]
    assert (first["claims"][0]["pid"], first["claims"][0]["name"]) == (1, "allocator-1")
    assert first["processes"] == second["processes"]
    assert first["kernel_log"]["kills"][0]["name"] == "process-1"
    assert first["pools"] == snapshot_json(named)["pools"]
    assert snapshot_from(to_bytes(first)).processes[0].user == "user-1"


def test_redaction_hides_the_names_of_pods_and_containers() -> None:
    pod = Process(7, 1.0, "vllm", 5, 5, "rss", container="1f6bd2a9e2c7", pod="0b1f6e1a-falke")
    names = {"container_names": {"1f6bd2a9e2c7": "falke-web"}, "pod_names": {"0b1f6e1a-falke": "team/falke-0"}}
    found = snapshot_json(replace(snapshot_at(1), processes=(pod,), **names))

    redacted = Redactor().redact(found)["processes"][0]

    assert found["processes"][0]["pod_name"] == "team/falke-0"
    assert (redacted["pod"], redacted["pod_name"], redacted["container_name"]) == (
        "pod-1",
        "pod-name-1",
        "container-name-1",
    )


def test_redaction_hides_the_pids_in_notes() -> None:
    """Process ids have placeholders, in sentences as well."""
    text = str(Redactor().redact(snapshot_json(SAMPLES["left_behind"]())))

    for word in ("41877", "3880", "3921", "EngineCor", "session-7", "1f6bd2a9e2c7"):
        assert word not in text
    assert "kill 1" in text


def test_leases_are_replayed_without_names() -> None:
    """A recording keeps what was leased; the name is the program's, and `made_by` a user's."""
    one = Lease("lease_1", "secret.py", "ram", 4242, 9, {"ram": 4}, 0.0, 60.0, "alice (uid 1000)")
    found = snapshot_json(replace(SAMPLES["critical_gb10"](), leases=(one,)))
    again = snapshot_from(to_bytes(Redactor().redact(found))).leases[0]

    assert snapshot_from(to_bytes(found)).leases == (one,)
    assert (again.held, again.bytes, again.target) == ({"ram": 4}, 9, "ram")
    assert not {"secret.py", 4242, "alice (uid 1000)"} & {again.name, again.pid, again.made_by}


def test_snapshot_with_a_silence_can_be_decoded() -> None:
    """JSON has its end by the wall clock only, and decoding changes nothing of what was sent."""
    silence = Silence("sil_1", until_unix=1060.0, created_unix=1000.0, until_boottime=60.0, target="ram")
    sent = json.loads(to_bytes(snapshot_json(replace(critical_gb10(), silences=(silence,)))))
    before = copy.deepcopy(sent)

    assert build_snapshot(sent).silences == (replace(silence, until_boottime=0.0),)
    assert sent == before
