"""Test that the shipped demos equal what the code generates, cover the whole story, and keep the laws of snapshots.

Each demo is read once, which takes 0.5 s, for the tests of all its seconds.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import generate_latest

from memwatch.core.events import Event
from memwatch.core.kernel_log import KernelLog
from memwatch.core.model import Absent
from memwatch.core.reading.identity import Identity
from memwatch.core.snapshot import Node, Snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import RecordingError, RecordingFile
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.neighbours.tick import MAX_BYTES, build_tick, decode_tick, encode_tick
from memwatch_monitor.processes import GrowthWatch
from memwatch_web.metrics.families import Exporter
from memwatchd.recording import demos
from memwatchd.recording.player import (
    Player,
    ReplayClock,
    build_findings,
    open_recording,
    play_through,
    read_frames,
)
from memwatchd.settings.keys import section_keys
from memwatchd.settings.schema import DEMO_BEGINS, DEMOS, Replay
from memwatchd.wiring import open_player
from scripts import demo_machines
from support import demo_host
from support.exposition import contents_and_sizes
from support.monitors import create_monitor
from support.settings_sample import settings_from

NAMES = tuple(demos.DESCRIPTIONS)
# Expected architecture of each machine, and the share that shows where its GPU's memory lies.
KINDS = {
    "dgx-spark": ("unified", "CUDA Pool ⊂ System RAM"),
    "jetson-orin": ("unified", "CUDA Pool ⊂ System RAM"),
    "strix-halo": ("unified", "GTT ⊂ System RAM"),
    "gh200": ("coherent", "NVML used ⊂ HBM"),
    "h100x8-mig": ("discrete", None),
    "rtx4090": ("discrete", None),
    "macbook": ("unified", "Metal working set ⊂ Unified memory"),
}
# Rounding of a node's part of the machine's free memory may differ by less than this.
NEAR_BYTES = 1 << 20


@cache
def frames_of(name: str) -> tuple[Snapshot, ...]:
    """Return all seconds of a demo, read once for all tests."""
    return tuple(read_frames(demos.path_of(name)))


def levels_of(frames: tuple[Snapshot, ...]) -> list[str]:
    """Return the worst level of each moment."""
    return [level.word for frame in frames if (level := frame.worst_level) is not None]


def free_of(frame: Snapshot, node: Node) -> int:
    """Return the free memory of a node; a machine without node values has all of it in one."""
    free = node.free_bytes if isinstance(node.free_bytes, int) else frame.pools[0].free_bytes
    assert isinstance(free, int)
    return free


def check_nodes(frame: Snapshot) -> None:
    """Check that free blocks are part of free memory, that this is part of the node, and that nodes add up."""
    free_in: Counter[str] = Counter()
    of_node = {pool.source: pool.id for pool in frame.pools if "node" in pool.source and pool.id != "ram"}
    for node in (node for node in frame.nodes if node.size_bytes != 0):
        free = free_of(frame, node)
        size = node.size_bytes if isinstance(node.size_bytes, int) else frame.pools[0].size_bytes
        free_in[of_node.get(f"sysfs:node{node.id}/meminfo", "ram")] += free
        assert isinstance(node.largest_free_block_bytes, int)
        assert isinstance(node.free_large_blocks_bytes, int)
        assert node.largest_free_block_bytes <= free <= size
        assert free // 2 < node.free_large_blocks_bytes <= free
        assert isinstance(node.available_bytes, Absent) or free <= node.available_bytes <= size
    for pool in frame.pools:
        assert pool.id not in free_in or free_in[pool.id] == pytest.approx(pool.free_bytes, abs=NEAR_BYTES)
    assert not frame.nodes or set(of_node.values()) | {"ram"} == set(free_in)


@pytest.mark.parametrize(
    ("replay", "skipped", "ago"),
    [
        ('demo = "dgx-spark"', DEMO_BEGINS.total_seconds(), 420.0),
        ('demo = "dgx-spark"\nat = "0s"', 0.0, 420.0),
        ('demo = "dgx-spark"\nat = "1m"', 60.0, 420.0),
        (f'file = "{demos.path_of("dgx-spark")}"', 0.0, None),
        (f'file = "{demos.path_of("dgx-spark")}"\nat = "5m"', 300.0, None),
    ],
)
def test_replay_begins_at_the_given_time(replay: str, skipped: float, ago: float | None, tmp_path: Path) -> None:
    """A demo at DEMO_BEGINS, a recording at its start. A demo has one round of history, which ends now."""
    player = open_player(settings_from(tmp_path, f"[replay]\nspeed = 0.1\n{replay}"), 2e9)

    assert player is not None
    first = player.contents.first.unix
    began = first + skipped if ago is None else 2e9 - ago
    assert player.clock.monotonic() == pytest.approx(skipped, abs=1)
    assert player.clock.wall() == pytest.approx(began, abs=1)
    pools = player.gather()[0].pools
    assert pools == build_findings(frames_of("dgx-spark")[int(skipped)]).pools


def test_replay_cannot_begin_after_the_end(tmp_path: Path) -> None:
    """The last time that can be given is that of the last snapshot."""
    last = settings_from(tmp_path, '[replay]\ndemo = "gh200"\nat = "419s"')
    after = settings_from(tmp_path, '[replay]\ndemo = "gh200"\nat = "420s"')

    assert open_player(last, 2e9) is not None
    with pytest.raises(RecordingError, match=r"^gh200 is 7 min long and cannot begin at 7m; .*from 0s to 419s"):
        open_player(after, 2e9)


@pytest.mark.parametrize("name", NAMES)
def test_demo_begins_shortly_before_memory_fills_up(name: str) -> None:
    """The model is loaded and no level is critical; within two minutes one is, with a forecast before."""
    begins = int(DEMO_BEGINS.total_seconds())
    frames = frames_of(name)
    coming = frames[begins : begins + 120]

    assert [pool.used_bytes for pool in frames[begins].pools] == [pool.used_bytes for pool in frames[120].pools]
    assert levels_of(frames[begins : begins + 1]) != ["critical"]
    assert "critical" in levels_of(coming)
    assert any(isinstance(one.seconds_to_full, float) for frame in coming for one in frame.pressure)


def test_demos_and_recordings_correspond() -> None:
    """Names, files, the setting and the stories agree."""
    folder = Path(demos.__file__).parent

    assert {path.stem for path in folder.glob("*.memwatch")} == set(NAMES) == set(DEMOS) == set(KINDS)
    assert set(get_args(section_keys(Replay)["demo"].kind)) == set(NAMES)
    assert sum(path.stat().st_size for path in folder.glob("*.memwatch")) < 790_000


@pytest.mark.parametrize("name", NAMES)
def test_demo_has_every_phase_of_its_story(name: str) -> None:
    """Calm, a model load, a page cache flood without alarm, a leak to critical, and recovery."""
    architecture, relation = KINDS[name]
    contents = open_recording(demos.path_of(name), salvage=False)
    frames = frames_of(name)
    levels = levels_of(frames)
    loaded, flooded = frames[120], frames[185]

    assert contents.count == len(frames) == demo_machines.SECONDS
    assert all(frame.simulated for frame in frames)
    assert loaded.machine.architecture == architecture
    assert relation is None or relation in [loaded.relation(share) for share in loaded.shares]
    assert levels[0] == "low"
    assert "critical" not in levels[:200]
    assert "critical" in levels[260:315]
    assert levels[-1] in ("low", "medium", "high")
    ram = (loaded.pools[0], flooded.pools[0])
    free = [pool.free_bytes for pool in ram if isinstance(pool.free_bytes, int)]
    assert free[1] < free[0]
    assert ram[1].used_bytes == ram[0].used_bytes
    assert not [one.error for one in loaded.collectors if "/tmp" in (one.error or "")]
    assert {status.state for frame in frames for status in frame.collectors} <= {"ok", "unavailable"}
    logs = [frame.kernel_log for frame in frames if isinstance(frame.kernel_log, KernelLog)]
    story = demo_machines.STORIES.get(name)
    victims = {"train.py"} if story and not story.leaks_gpu else set()
    assert {kill.name for log in logs for kill in log.kills} == victims


@pytest.mark.parametrize("name", NAMES)
def test_demo_begins_with_levels_that_fit_and_moves_at_once(name: str, tmp_path: Path) -> None:
    """After a round, as the daemon plays it: no level or forecast of the end is left, and memory fills."""
    frames = first_frames_of_next_round(name, tmp_path / "ends.memwatch")

    for frame in frames:
        for pressure in frame.pressure:
            forecasts = [reason for reason in pressure.reasons if reason.signal == "ttf"]
            assert pressure.level == pressure.base_level, (pressure.target, pressure.reasons)
            assert not forecasts or isinstance(pressure.seconds_to_full, float)
    first, later = ([pool.used_bytes for pool in frame.pools] for frame in (frames[0], frames[2]))
    assert max(abs(two - one) for one, two in zip(first, later, strict=True)) > 100 * demo_host.MIB  # type: ignore[operator]


def first_frames_of_next_round(name: str, path: Path) -> list[Snapshot]:
    """Play the last seconds of a demo, then its first ones, through the loop and the rules.

    The recording that is played has only these: a player reads all seconds that it skips.
    """
    frames = frames_of(name)
    recording = RecordingFile(path, host=frames[0].host)
    for frame in (*frames[:10], *frames[-10:]):
        recording.write(to_bytes(snapshot_json(frame)))
    recording.close()
    clock = ReplayClock(1e9, 1e-9)
    player = Player(open_recording(path, salvage=False), clock)
    monitor = create_monitor(player, clock, MonitorRules(), Identity("box", "boot", simulated=True), speed=1.0)
    player.began_again = monitor.replay_restarted
    clock.skip(player.contents.length - 5)
    played = []
    for _ in range(10):
        played.append(monitor.tick())
        clock.skip(1.0)
    assert player.rounds == 1
    return played[5:]


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_demo_are_consistent(name: str) -> None:
    """In every second, also when memory is low."""
    frames = frames_of(name)

    assert all(bool(frame.nodes) == (name != "macbook") for frame in frames)
    for frame in frames:
        check_nodes(frame)
        assert {pool.overlap for pool in frame.pools} == {False}


@pytest.mark.parametrize("name", NAMES)
def test_contents_add_up_in_every_snapshot_of_a_demo(name: str) -> None:
    """Contents of pools in /metrics, in every fiftieth second: their sum is the size of the pool."""
    for frame in frames_of(name)[::50]:
        contents, sizes = contents_and_sizes(Exporter("1").render(frame, generate_latest).decode())
        assert contents or name == "macbook"
        assert contents == {pool: sizes[pool] for pool in contents}


@pytest.mark.parametrize("name", NAMES)
def test_tick_of_a_machine_has_all_pools_and_is_not_too_large(name: str) -> None:
    """Also the busiest one of its recording, with events."""
    events = [Event(seq, 1e9, "level", "System RAM: high → critical " + "x" * 200) for seq in range(20)]
    for frame in frames_of(name):
        data = encode_tick(build_tick(frame, "run1", events))
        found = decode_tick(data)
        assert len(data) <= MAX_BYTES
        assert (found.host, len(found.pools)) == (frame.host, len(frame.pools))


@pytest.mark.parametrize("name", NAMES)
def test_leaking_process_of_a_demo_has_its_own_unit(name: str) -> None:
    """The process belongs to a login session and not to a service or a desktop."""
    frame = frames_of(name)[300]

    units = {process.name: (process.user, process.unit) for process in frame.processes}

    user, unit = units.pop("train.py")
    assert user in ("ada", "lin")
    assert unit == (None if name == "macbook" else "session-7.scope")
    assert name == "macbook" or unit not in {other for _, other in units.values()}


def test_blocks_add_up_to_the_pages() -> None:
    """Blocks of each size in proportion, and not one page more or less."""
    counts = [4, 2, 1, 0, 3]
    for pages in (0, 1, 7, 60, 61, 1000):
        blocks = demo_host.blocks_of(pages, counts)
        assert sum(count << order for order, count in enumerate(blocks)) == pages
    assert demo_host.blocks_of(60, counts) == counts
    assert demo_host.split(10, [1, 1, 1]) == [3, 3, 4]
    assert demo_host.split(10, []) == []


@pytest.mark.parametrize("name", ["rtx4090", "macbook", "dgx-spark"])
def test_shipped_demos_equal_the_generated_ones(name: str) -> None:
    """After a change of rules, `python -m scripts.demo_machines` generates them again."""
    generated = demo_machines.story_of(name)

    shipped = frames_of(name)

    for second in (0, 100, 200, 300, 315, demo_machines.SECONDS - 1):
        assert snapshot_json(shipped[second]) == snapshot_json(generated[second]), second


def test_growth_in_a_demo_counts_from_the_begin_of_its_round(tmp_path: Path) -> None:
    """In the last round the same second held the same bytes, so that growth since then is 0."""
    frames = frames_of("dgx-spark")
    recording = RecordingFile(tmp_path / "part.memwatch", host=frames[0].host)
    for frame in (*frames[200:201], *frames[290:301]):
        recording.write(to_bytes(snapshot_json(frame)))
    recording.close()
    clock = ReplayClock(2e9, 1e-9)
    player = Player(open_recording(tmp_path / "part.memwatch", salvage=False), clock)
    monitor = create_monitor(player, clock, MonitorRules(), Identity("box", "boot", simulated=True), speed=1.0)
    player.began_again = monitor.replay_restarted
    clock.skip(95.0)
    play_through(monitor, player)
    last = monitor.tick()

    tracker = monitor.features.get(GrowthWatch).tracker
    grown = {one.process.title: one.grown_bytes for one in tracker.since(tracker.boottime - 600, last.unix)}
    assert player.rounds == 1
    assert grown["train.py"] > 30 << 30


def test_frames_share_what_has_not_changed() -> None:
    """The last three minutes stay in memory, as on a real machine, whose collectors keep what they read."""
    before: Snapshot | None = None
    equal = same = 0
    for frame in frames_of("h100x8-mig"):
        if before is not None:
            pairs = list(zip(frame.processes, before.processes, strict=False))
            equal += sum(new == old for new, old in pairs)
            same += sum(new is old for new, old in pairs)
        before = frame

    assert equal == same > 3000
