"""Steps that make room: their order, their figures, and the processes that are never among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.engines.unload import UNLOADS
from memwatch.core.leases import Lease
from memwatch.core.model import Absent, Architecture, Device, Process, Share, ShareKind
from memwatch.core.processes.protected import is_protected
from memwatch.core.snapshot import Snapshot
from memwatch.planning.arguments import InvalidInputError
from memwatch.reporting.render.room import RoomStep, RoomTarget, find_room_for, room_json
from memwatch.reporting.render.room_candidates import NO_ASKER, Asker
from memwatch_web.api.snapshot import find_asker
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.machine_kinds import KINDS
from support.room_laws import broken_room_laws
from support.sample_parts import GIB, MEASURED, system_ram, vram
from support.sample_snapshots import (
    calm_workstation,
    container_with_limit,
    critical_gb10,
    discrete_gpu,
    hostile_names,
    hugepages_host,
    many_owners,
    mig_server,
    partition,
    stale_collector,
    unknown_figures,
)

DEMOS = ("dgx-spark", "gh200", "h100x8-mig", "jetson-orin", "macbook", "rtx4090", "strix-halo")
SAMPLES = (
    calm_workstation,
    container_with_limit,
    critical_gb10,
    discrete_gpu,
    hostile_names,
    hugepages_host,
    many_owners,
    mig_server,
    partition,
    stale_collector,
    unknown_figures,
)
TRAIN = Process(
    51210, 700.0, "train.py", 9 * GIB, 9 * GIB, "rss", user="ada", unit="session-7.scope", container=None
)
SERVER = Process(
    3921, 600.0, "VLLM::EngineCor", 5 * GIB, 45 * GIB, "rss + device",
    user="root", unit="docker-1f6bd2a9e2c7.scope", container="1f6bd2a9e2c7", device_bytes={"cuda0": 40 * GIB},
)  # fmt: skip
API = replace(SERVER, pid=3880, name="vllm", rss_bytes=GIB, footprint_bytes=GIB, device_bytes={})
VLLM = Engine(
    "vllm-8000", "vllm", "vLLM", "http://127.0.0.1:8000", 3880, (3880, 3921),
    model="Qwen/Qwen3-32B", weights_bytes=31 * GIB, requests_running=0, requests_waiting=0,
)  # fmt: skip
OLLAMA = Engine(
    "ollama-11434", "ollama", "Ollama", "http://127.0.0.1:11434", 70, (70, 71, 72), model="qwen3:8b, gemma3:4b"
)
OLLAMA_SERVER = Process(
    70, 10.0, "ollama", GIB // 8, GIB // 8, "rss", user="ollama", unit="ollama.service", container=None
)
RUNNERS = tuple(
    replace(OLLAMA_SERVER, pid=pid, rss_bytes=GIB, footprint_bytes=7 * GIB, device_bytes={"cuda0": 6 * GIB})
    for pid in (71, 72)
)
MODELS = (OLLAMA_SERVER, *RUNNERS)


def spark(*processes: Process, engines: tuple[Engine, ...] = (), **changed: Any) -> Snapshot:
    """GB10 of 120 GiB, 20 of them available and 2 free. Processes and CUDA have the rest, less 2 of the kernel."""
    base = critical_gb10()
    ram = system_ram(
        size=120 * GIB, free=2 * GIB, anonymous=28 * GIB, shared_memory=0, kernel=2 * GIB, unattributed=70 * GIB
    )
    cuda = Share("cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", 70 * GIB, "nvml", MEASURED, device="gpu0")
    gpu = replace(base.devices[0], headroom_after_reclaim_bytes=20 * GIB, headroom_bytes=2 * GIB)
    found = replace(base, pools=(ram,), shares=(cuda,), devices=(gpu,), processes=processes, engines=engines)
    return replace(found, pressure=(), **changed)


def only(need: int, snapshot: Snapshot, target: str = "", **asked: Any) -> RoomTarget:
    (found,) = find_room_for(need * GIB, snapshot, target, **asked).targets
    return found


def subjects(steps: tuple[RoomStep, ...]) -> list[str]:
    return [one.subject for one in steps]


def commands(found: RoomTarget) -> list[str | None]:
    return [one.command for one in found.steps]


def every_fifth_of_a_round(name: str) -> Iterator[Snapshot]:
    frames = list(read_frames(path_of(name)))
    return iter(frames[:: len(frames) // 5])


@pytest.mark.parametrize("name", DEMOS)
def test_demo_obeys_every_law(name: str) -> None:
    broken = [why for snapshot in every_fifth_of_a_round(name) for why in broken_room_laws(snapshot)]

    assert broken == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda one: one.__name__)
def test_sample_obeys_every_law(sample: Any) -> None:
    assert list(broken_room_laws(sample())) == []


@pytest.mark.parametrize("kind", ["no GPU", "8 GPUs"])
def test_machine_of_many_holders_obeys_every_law(kind: str) -> None:
    assert list(broken_room_laws(KINDS[kind].snapshot())) == []


def test_size_that_fits_after_reclaim_asks_for_nothing() -> None:
    found = only(20, spark(SERVER, TRAIN))

    assert (found.steps, found.enough, found.alternatives) == ((), True, ())
    assert found.text == (
        "Fits now: leaves 0 B, which is critical: less than 5% of 120.0 GiB; only 2.0 GiB is free before reclaim."
    )


def test_container_of_a_server_frees_device_and_resident_memory_once() -> None:
    """40 GiB of CUDA and the largest resident set are certain; its processes may share the rest."""
    found = only(60, spark(SERVER, API, TRAIN, engines=(VLLM,)))

    (step,) = found.steps
    assert (step.kind, step.subject, step.pids) == ("idle_engine", "vLLM Qwen3-32B", (3880, 3921))
    assert (step.freed_bytes, step.freed_most_bytes, step.available_bytes) == (45 * GIB, 46 * GIB, 65 * GIB)
    assert (step.command, step.owner) == ("docker stop 1f6bd2a9e2c7", "root, 1f6bd2a9e2c7")
    assert (step.state, step.reload_bytes) == ("no requests now", 31 * GIB)
    assert step.cost == "at its next start it loads 31.0 GiB of weights again; how fast is not known"
    assert step.hint.startswith("Or, if it was started with --enable-sleep-mode")
    assert step.hint.endswith("curl -X POST http://127.0.0.1:8000/sleep")
    assert (found.enough, found.after.spare_bytes) == (True, 5 * GIB)
    assert found.text.startswith("Then it fits: leaves 5.0 GiB")


def test_cheapest_goes_first() -> None:
    """Models that their server unloads, an idle server, one of unknown use; of the rest the least to build up."""
    unknown = replace(VLLM, id="v2", pid=5, pids=(5,), requests_running=Absent.NOT_AVAILABLE)
    busy = replace(VLLM, id="v3", pid=6, pids=(6,), requests_running=2, weights_bytes=12 * GIB)
    idle = replace(VLLM, id="v4", pid=7, pids=(7,))
    servers = [replace(TRAIN, pid=pid, rss_bytes=4 * GIB, footprint_bytes=4 * GIB) for pid in (5, 6, 7)]
    snapshot = spark(TRAIN, *servers, *MODELS, engines=(unknown, busy, idle, OLLAMA))

    found = only(20 + 12 + 4 + 4 + 9 + 3, snapshot)

    assert [one.kind for one in found.steps] == ["model", "idle_engine", "engine", "program", "busy_engine"]
    assert [one.available_bytes // GIB for one in found.steps] == [32, 36, 40, 49, 53]
    assert found.enough is True


def test_step_that_others_make_needless_is_left_out() -> None:
    """The idle server alone would not be enough, and without it the program is."""
    small = replace(VLLM, pid=5, pids=(5,))
    idle = replace(TRAIN, pid=5, rss_bytes=3 * GIB, footprint_bytes=3 * GIB)

    assert subjects(only(28, spark(TRAIN, idle, engines=(small,))).steps) == ["train.py"]
    assert subjects(only(30, spark(TRAIN, idle, engines=(small,))).steps) == ["vLLM Qwen3-32B", "train.py"]


def test_others_that_alone_would_do_are_named() -> None:
    found = only(28, spark(TRAIN, SERVER))

    assert subjects(found.steps) == ["train.py"]
    assert [(one.subject, one.available_bytes) for one in found.alternatives] == [("VLLM::EngineCor", 65 * GIB)]


def test_models_of_ollama_go_and_their_server_stays() -> None:
    """The two runners end, and `ollama.service` is no step for what they held."""
    found = only(32, spark(*MODELS, engines=(OLLAMA,)))
    rest = only(40, spark(*MODELS, engines=(OLLAMA,)))

    (step,) = found.steps
    assert (step.kind, step.command) == ("model", "ollama stop qwen3:8b && ollama stop gemma3:4b")
    assert (step.pids, step.freed_bytes, step.freed_most_bytes) == ((71, 72), 12 * GIB, 14 * GIB)
    assert (step.state, step.hint) == ("its use is not reported", "")
    assert step.cost == "its server stays and loads its weights again; how fast is not known"
    assert rest.steps == found.steps
    assert rest.text == (
        "Not enough: with all of these gone 32.0 GiB are available of 40.0 GiB, 8.0 GiB are missing."
    )


@pytest.mark.parametrize(
    ("engine", "home", "command"),
    [
        ({"url": "http://127.0.0.1:9000"}, {}, "OLLAMA_HOST=127.0.0.1:9000 ollama stop 'a b'"),
        ({"url": Absent.NOT_AVAILABLE}, {}, "ollama stop 'a b'"),
        ({}, {"unit": "docker-77aa.scope", "container": "77aa"}, "docker exec 77aa ollama stop 'a b'"),
        ({"model": Absent.NOT_AVAILABLE}, {}, "systemctl stop ollama.service"),
        ({"model": "a, b and 3 more"}, {}, "systemctl stop ollama.service"),
        ({"kind": "lm-studio", "url": "http://127.0.0.1:1234"}, {}, "lms unload 'a b'"),
        ({"kind": "tgi"}, {}, "systemctl stop ollama.service"),
        ({"sleeping": True}, {}, "systemctl stop ollama.service"),
    ],
)
def test_command_of_a_server_follows_its_kind_and_home(
    engine: dict[str, Any], home: dict[str, Any], command: str
) -> None:
    one = replace(OLLAMA, **{"model": "a b", **engine})
    found = only(30, spark(*(replace(process, **home) for process in MODELS), engines=(one,)))

    assert commands(found) == [command]


def test_servers_of_llama_swap_name_its_way() -> None:
    unit = replace(TRAIN, name="llama-server", unit="llama-swap.service")
    server = replace(VLLM, kind="llama.cpp", title="llama.cpp", pid=51210, pids=(51210,))
    process = replace(unit, device_bytes={"cuda0": 8 * GIB})
    (step,) = only(25, spark(process, engines=(server,))).steps

    assert step.command == "systemctl stop llama-swap.service"
    assert step.hint == "Or, with the address of llama-swap, which started it: curl http://HOST:PORT/unload"


def test_servers_of_one_unit_are_one_step() -> None:
    first, second = (
        replace(TRAIN, pid=pid, unit="models.service", rss_bytes=6 * GIB, device_bytes={"cuda0": GIB})
        for pid in (5, 6)
    )
    engines = tuple(replace(VLLM, id=f"v{pid}", model=f"m{pid}", pid=pid, pids=(pid,)) for pid in (5, 6))
    (step,) = only(25, spark(first, second, engines=engines)).steps

    assert (step.subject, step.command) == ("vLLM m5, vLLM m6", "systemctl stop models.service")
    assert (step.pids, step.freed_bytes, step.reload_bytes) == ((5, 6), 8 * GIB, 62 * GIB)


def test_all_processes_of_a_server_outside_a_service_are_ended() -> None:
    server, api = (replace(one, unit="session-7.scope", container=None) for one in (SERVER, API))

    assert commands(only(60, spark(server, api, engines=(VLLM,)))) == ["kill 3921 3880"]


def test_mapped_weights_are_page_cache_and_free_nothing_for_certain() -> None:
    """They are available already. Its memory on the GPU comes back."""
    llama = replace(VLLM, kind="llama.cpp", title="llama.cpp", pid=3921, pids=(3921,))
    (step,) = only(50, spark(SERVER, engines=(llama,))).steps

    assert (step.freed_bytes, step.freed_most_bytes) == (40 * GIB, 45 * GIB)


def test_unknown_size_is_named_and_never_counted() -> None:
    hidden = replace(TRAIN, rss_bytes=Absent.NOT_PERMITTED, footprint_bytes=Absent.NOT_PERMITTED)
    partly = replace(SERVER, rss_bytes=Absent.NOT_PERMITTED)
    found = only(100, spark(hidden, partly))

    assert [(one.subject, one.freed_bytes) for one in found.steps] == [("VLLM::EngineCor", 40 * GIB)]
    assert found.steps[0].freed_most_bytes is Absent.NOT_PERMITTED
    assert found.unknown == ("train.py (51210): not permitted",)
    assert found.enough is False


NEVER = (
    replace(TRAIN, pid=1, name="python3"),
    replace(TRAIN, name="sshd"),
    replace(TRAIN, name="sshd-session"),
    replace(TRAIN, name="systemd", unit="init.scope in user/1000"),
    replace(TRAIN, name="systemd-journal", unit="systemd-journald.service"),
    replace(TRAIN, name="gnome-shell", unit="org.gnome.Shell@wayland.service in user/1000"),
    replace(TRAIN, name="helper", unit="user@1000.service"),
    replace(TRAIN, name="dockerd", unit="docker.service"),
    replace(TRAIN, name="containerd-shim-runc-v2"[:15]),
    replace(TRAIN, name="slurmstepd"),
    replace(TRAIN, name="memwatchd", unit="memwatchd.service"),
    replace(TRAIN, name="memwatch-guardi", unit="memwatchd-guardian.service"),
    replace(TRAIN, name="python3", unit="gdm3.service"),
    replace(TRAIN, name=Absent.NOT_PERMITTED),
    replace(TRAIN, visible=False),
)


@pytest.mark.parametrize("process", NEVER, ids=lambda one: f"{one.pid} {one.title}")
def test_protected_process_never_goes(process: Process) -> None:
    found = only(90, spark(process, SERVER))

    assert is_protected(process)
    assert subjects(found.steps) == ["VLLM::EngineCor"]


def test_container_with_a_protected_process_never_goes() -> None:
    watcher = replace(API, name="memwatchd")

    assert only(60, spark(SERVER, watcher)).steps == ()


@pytest.mark.parametrize(
    ("asker", "gone"),
    [
        (NO_ASKER, ["VLLM::EngineCor", "train.py", "notebook"]),
        (Asker(frozenset({51210})), ["VLLM::EngineCor", "notebook"]),
        (Asker(frozenset({9}), "jupyter.service", None), ["VLLM::EngineCor", "train.py"]),
        (Asker(frozenset({9}), "docker-1f6bd2a9e2c7.scope", "1f6bd2a9e2c7"), ["train.py", "notebook"]),
        (Asker(frozenset({9}), "session-7.scope", None), ["VLLM::EngineCor", "train.py", "notebook"]),
        (
            Asker(frozenset({9}), Absent.NOT_PERMITTED, Absent.NOT_PERMITTED),
            ["VLLM::EngineCor", "train.py", "notebook"],
        ),
    ],
)
def test_asker_and_its_service_and_container_never_go(asker: Asker, gone: list[str]) -> None:
    """Another process of its session may be ended alone."""
    notebook = replace(TRAIN, pid=8, name="notebook", unit="jupyter.service")
    found = only(110, spark(SERVER, TRAIN, notebook), asker=asker)

    assert sorted(subjects(found.steps)) == sorted(gone)


class Search:
    """The processes that a snapshot does not list: one shell in a container."""

    def by_pid(self, pid: int) -> Process | None:
        return replace(API, pid=9, name="bash") if pid == 9 else None


def test_caller_of_the_api_is_found_among_listed_and_unlisted_processes() -> None:
    snapshot = spark(TRAIN, unlisted=Search())

    assert find_asker(None, snapshot) == NO_ASKER
    assert find_asker(51210, snapshot) == Asker(frozenset({51210}), "session-7.scope", None)
    assert find_asker(9, snapshot) == Asker(frozenset({9}), "docker-1f6bd2a9e2c7.scope", "1f6bd2a9e2c7")
    assert find_asker(8, snapshot) == Asker(frozenset({8}))


def test_small_holder_is_no_step() -> None:
    assert only(21, spark(replace(TRAIN, rss_bytes=60 << 20, footprint_bytes=60 << 20))).steps == ()


def test_no_more_comes_back_than_holders_can_have() -> None:
    """Resident sets overlap: 28 and 70 GiB are used by processes and CUDA, and 2 by the kernel."""
    crowd = [replace(TRAIN, pid=100 + n, rss_bytes=40 * GIB, footprint_bytes=40 * GIB) for n in range(5)]
    found = only(119, spark(*crowd))

    assert found.after.headroom_after_reclaim_bytes == 118 * GIB
    assert found.enough is False


def two_instances() -> Snapshot:
    """A GPU of 80 GiB with two MIG instances of 40 GiB, of which 35 and 30 are used."""
    base = discrete_gpu()
    card = vram("gpu0", "VRAM", size=80 * GIB, used=66 * GIB, reserved=GIB)
    shares = tuple(
        Share(f"gpu0.mig{n}", ShareKind.MIG_INSTANCE, f"GPU 0 · MIG {n}", "gpu0", used * GIB, "nvml", MEASURED,
              limit_bytes=40 * GIB, device="gpu0")
        for n, used in ((1, 35), (2, 30))
    )  # fmt: skip
    device = Device(
        "gpu0", "NVIDIA", "NVIDIA H100", Architecture.DISCRETE, allocates_from=("gpu0.mig1", "gpu0.mig2"),
        headroom_bytes=10 * GIB, headroom_after_reclaim_bytes=10 * GIB,
    )  # fmt: skip
    holders = tuple(
        replace(
            TRAIN,
            pid=10 + n,
            name=f"rank{n}",
            footprint_bytes=held * GIB,
            device_bytes={f"gpu0.mig{n}": held * GIB},
        )
        for n, held in ((1, 35), (2, 30))
    )
    return replace(
        base, pools=(base.pools[0], card), shares=shares, devices=(device,), processes=holders, pressure=()
    )


@pytest.mark.parametrize(
    ("target", "gone"),
    [("gpu0.mig1", ["rank1"]), ("gpu0.mig2", ["rank2"]), ("gpu0", ["rank2"])],
)
def test_instance_of_mig_is_a_target_and_its_holders_go(target: str, gone: list[str]) -> None:
    """On the whole GPU a program gets one instance: the emptier one is enough."""
    found = only(39, two_instances(), target)

    assert (subjects(found.steps), found.fit.device) == (gone, target)
    assert found.after.headroom_after_reclaim_bytes == 40 * GIB


def test_each_gpu_has_its_own_answer() -> None:
    """The card with room is used. On the full one, its holder would go, by its memory there alone."""
    found = find_room_for(15 * GIB, discrete_gpu())
    full, free, cpu = found.targets

    assert (found.best, free.steps) == ("gpu1", ())
    assert [one.freed_bytes for one in full.steps] == [20_401_094_656]
    assert [one.fit.device for one in found.targets] == ["gpu0", "gpu1", "cpu"]
    assert cpu.fit.name == "System RAM"


def test_more_than_the_total_has_no_steps() -> None:
    found = only(121, spark(SERVER, TRAIN))

    assert (found.steps, found.enough) == ((), False)
    assert found.text == "Short by 1.0 GiB: its total is 120.0 GiB."


def test_unknown_headroom_is_neither_a_yes_nor_a_no() -> None:
    lost = replace(spark().devices[0], headroom_after_reclaim_bytes=Absent.STALE, headroom_bytes=Absent.STALE)
    found = find_room_for(30 * GIB, spark(SERVER, devices=(lost,)))

    assert (found.best, found.is_unknown) == (None, True)
    assert (found.targets[0].enough, found.targets[0].steps) == (Absent.STALE, ())
    assert found.targets[0].text == "Its headroom is not known (stale)."


def test_smaller_limit_elsewhere_makes_nothing_certain() -> None:
    """The headroom is less than its chains leave: a limit that is not theirs bounds it."""
    bound = replace(spark().devices[0], headroom_after_reclaim_bytes=10 * GIB)

    assert only(30, spark(SERVER, devices=(bound,))).steps == ()


def test_leases_of_others_count_as_used_and_the_own_one_does_not() -> None:
    lease = Lease("a1", "train.py", "gpu0", 9, 15 * GIB, {"ram": 15 * GIB}, 0.0, 9e9)
    snapshot = spark(SERVER, leases=(lease,))
    others, own = only(10, snapshot), only(10, snapshot, own_lease="a1")

    assert (others.fit.leased_bytes, others.steps[0].available_bytes) == (15 * GIB, 50 * GIB)
    assert (own.fit.leased_bytes, own.steps) == (0, ())


def test_huge_pages_come_back_to_themselves_only() -> None:
    """GPU memory in them is not available to others for certain. The resident set of its holder is."""
    snapshot = spark(SERVER)
    aside = replace(snapshot.pools[0], set_aside_bytes=50 * GIB, set_aside_free_bytes=0)
    found = only(24, replace(snapshot, pools=(aside,)), "cpu")

    assert [one.freed_bytes for one in found.steps] == [5 * GIB]


@pytest.mark.parametrize("target", ["gpu9", "cuda0", "gpu0 ", "ram0"])
def test_unknown_target_is_refused_with_those_that_there_are(target: str) -> None:
    with pytest.raises(InvalidInputError, match=r"which this machine does not have; use one of gpu0, ram, cpu$"):
        find_room_for(GIB, spark(), target)


def test_pool_is_a_target_as_its_device_is() -> None:
    snapshot = discrete_gpu()

    assert only(20, snapshot, "gpu0.vram") == only(20, snapshot, "gpu0")
    assert only(20, snapshot, "ram") == only(20, snapshot, "cpu")


def test_absent_figures_have_their_reason_in_json() -> None:
    hidden = replace(TRAIN, rss_bytes=GIB, device_bytes={"cuda0": Absent.STALE}, start_time=Absent.NOT_AVAILABLE)
    (step,) = room_json(find_room_for(21 * GIB, spark(hidden)))["targets"][0]["steps"]

    assert step["absent"] == {
        "freed_most_bytes": "stale",
        "reload_bytes": "not_supported",
        "run_seconds": "not_available",
    }
    assert step["cost"] == "it has run for an unknown time, and loses work that is not saved"


def test_ways_that_end_a_runner_need_nothing_and_the_others_name_a_condition() -> None:
    assert all(one.ends_runner != bool(one.needs) for one in UNLOADS.values())
