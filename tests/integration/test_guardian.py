"""Test the guardian as a process, on real victims and a /proc whose memory the test sets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.helper.process import python_child
from memwatchd.guardian.acting import (
    NO_OWN_CGROUP,
    Means,
    Victim,
    VictimGoneError,
    act,
    read_group,
    reclaim,
)
from memwatchd.guardian.journal import NAME, Journal, Record, read_journal
from memwatchd.guardian.records import GroupMemory, Match, Step
from memwatchd.guardian.requests import ask_engine
from support.guardian_machine import BEFORE, IGNORES_SIGTERM, QUICK, ROOMY, SHORT, GuardianMachine, guardian_machine
from support.guardian_states import GIB, candidate
from support.http_site import http, site
from support.waiting import MAX_WAIT_SECONDS, wait_until

# Requests while memory is short come four times a second: evidence is confirmed within three of them.
DECIDED = 8


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardianMachine]:
    with guardian_machine(tmp_path) as machine:
        yield machine


def test_victim_that_ends_on_sigterm_is_not_killed(box: GuardianMachine) -> None:
    victim = box.start_victim()
    box.free_on_end(victim)
    box.start_and_fall()

    record = box.wait_for_record()

    assert victim.wait(MAX_WAIT_SECONDS) == -signal.SIGTERM
    assert record.victim is not None
    assert (record.decision, record.dry_run, record.victim.pid) == ("act", False, victim.pid)
    assert [step.step for step in record.steps] == ["reclaim", "sigterm"]
    assert record.steps[-1].result == "sent; it ended"
    assert (record.available_before_bytes, record.available_after_bytes) == (SHORT, ROOMY)
    assert record.helped is True


def test_victim_that_ignores_sigterm_is_killed(box: GuardianMachine) -> None:
    victim = box.start_victim(IGNORES_SIGTERM)
    box.free_on_end(victim)
    box.start_and_fall()

    record = box.wait_for_record()

    assert victim.wait(MAX_WAIT_SECONDS) == -signal.SIGKILL
    assert [step.step for step in record.steps] == ["reclaim", "sigterm", "sigkill"]
    assert record.steps[0].result == "not taken: no swap is free, and file cache counts as available already"
    assert record.steps[0].seconds == 0.0
    assert record.steps[1].result == "sent"
    assert record.steps[2].result.startswith("sent; ")


def test_dry_run_ends_nothing_and_records_a_shortage_once(box: GuardianMachine) -> None:
    victim = box.start_victim()
    box.start_and_fall(replace(box.config, dry_run=True))

    record = box.wait_for_record()
    box.wait_for_requests(DECIDED)

    assert victim.poll() is None
    assert len(box.records()) == 1
    assert record.dry_run
    assert record.steps[0].result == "not taken: no swap is free, and file cache counts as available already"
    assert {step.result for step in record.steps[1:]} == {"would be taken"}
    assert [step.step for step in record.steps] == ["reclaim", "sigterm", "sigkill"]
    assert "dry run: ram is critical: 128.0 MiB of 64.0 GiB are available" in box.log()


def test_nothing_is_done_while_memory_is_not_critical(box: GuardianMachine) -> None:
    victim = box.start_victim()
    box.start()
    box.set_available(4 * GIB)
    box.wait_for_requests(3)

    assert victim.poll() is None
    assert box.records() == []


def test_everything_in_never_ends_nothing_and_says_so(box: GuardianMachine) -> None:
    victim = box.start_victim()
    box.start_and_fall(replace(box.config, limits=replace(QUICK, never=(Match("command", "*"),))))

    record = box.wait_for_record()
    box.wait_for_requests(DECIDED)

    assert victim.poll() is None
    assert (record.decision, record.victim) == ("nothing", None)
    assert "no process may end that would free enough" in record.reason
    assert record.refused[0].why == "never has command:*"
    assert len(box.records()) == 1


def test_victim_that_would_not_free_enough_is_left_alone(box: GuardianMachine) -> None:
    box.footprint = 2 * GIB + GIB // 2
    victim = box.start_victim()
    box.start_and_fall()

    assert "no process may end that would free enough" in box.wait_for_record().reason
    assert victim.poll() is None


def test_old_device_bytes_end_nothing(box: GuardianMachine) -> None:
    box.device_age = 6.0
    victim = box.start_victim()
    box.start()
    box.set_available(SHORT)

    assert "more than 5 s are too old to decide on" in box.wait_for_record().reason
    assert victim.poll() is None


def test_without_a_daemon_nothing_ends(box: GuardianMachine) -> None:
    victim = box.start_victim()
    box.leave()
    box.start()
    box.set_available(SHORT)

    assert "no process is known that could end" in box.wait_for_record().reason
    assert victim.poll() is None
    assert f"the daemon at {box.config.daemon} gives no figures: connection refused" in box.log()


def test_daemon_that_was_killed_leaves_figures_for_five_seconds(box: GuardianMachine) -> None:
    """Its last figures of devices were 4.5 s old: they are too old before the shortage is confirmed."""
    box.device_age = 4.5
    victim = box.start_victim()
    box.start()
    box.set_available(4 * GIB)
    box.wait_for_requests(1)
    box.leave()
    wait_until(lambda: "connection refused" in box.log(), describe=box.log)
    box.set_available(SHORT)

    assert "more than 5 s are too old to decide on" in box.wait_for_record().reason
    assert victim.poll() is None


def test_daemon_that_hangs_ends_nothing(box: GuardianMachine) -> None:
    box.answers = "hang"
    victim = box.start_victim()
    box.start()
    box.set_available(SHORT)

    assert "no process is known that could end" in box.wait_for_record().reason
    box.wait_for_requests(2)
    assert victim.poll() is None
    assert "gives no figures: no complete answer in time" in box.log()


def test_daemon_that_is_late_is_reported_and_its_age_counts(box: GuardianMachine) -> None:
    box.answers, box.device_age = "late", 3.0
    victim = box.start_victim()
    box.start()
    box.set_available(SHORT)

    assert "the device memory of victim" in box.wait_for_record().reason
    assert victim.poll() is None
    assert "the daemon is late" in box.log()


def test_guardian_that_was_stopped_does_not_act_on_what_it_saw_before(box: GuardianMachine) -> None:
    """It is stopped while it waits for the figures of a shortage that is over when it goes on."""
    victim = box.start_victim()
    box.set_available(BEFORE)
    guardian = box.start()
    stopped: list[float] = []

    def stop() -> None:
        if not stopped:
            os.kill(guardian.pid, signal.SIGSTOP)
            stopped.append(time.monotonic())

    box.wait_for_requests(2)
    box.before_answer = stop
    box.set_available(SHORT)
    wait_until(lambda: stopped)
    time.sleep(10.0)
    box.set_available(4 * GIB)
    os.kill(guardian.pid, signal.SIGCONT)
    box.wait_for_requests(3)

    assert victim.poll() is None
    assert box.records() == []


def test_steps_of_a_decision_that_is_ten_seconds_old_are_not_taken(box: GuardianMachine) -> None:
    started = box.start_victim()
    victim = Victim(box.proc, started.pid, start_ticks(box, started.pid))
    steps = (Step("sigterm", 0.1), Step("sigkill", 0.1))

    results = act(victim, candidate(started.pid), steps, Means(), lambda: (SHORT, False), time.monotonic() - 10.0)
    victim.close()

    assert [step.result for step in results] == ["not taken: the decision is 10.0 s old"]
    assert started.poll() is None


def test_step_that_helped_is_the_last(box: GuardianMachine) -> None:
    started = box.start_victim()
    victim = Victim(box.proc, started.pid, start_ticks(box, started.pid))
    steps = (Step("hook", 5.0), Step("sigterm", 0.1), Step("sigkill", 0.1))
    flag = box.state / "freed"
    means = Means(hook=(sys.executable, "-c", f"open({str(flag)!r}, 'w')"))

    results = act(victim, candidate(started.pid), steps, means, lambda: (ROOMY, flag.exists()), time.monotonic())
    victim.close()

    assert [(step.step, step.result) for step in results] == [("hook", "it ended with 0")]
    assert started.poll() is None


def test_hook_that_hangs_is_killed_with_what_it_started_and_the_next_step_follows(box: GuardianMachine) -> None:
    started = box.start_victim()
    victim = Victim(box.proc, started.pid, start_ticks(box, started.pid))
    pids = box.state / "pids"
    hook = ("/bin/sh", "-c", f"sleep 600 & echo $$ $! > {pids}; wait")

    steps = (Step("hook", 1.0), Step("sigkill", 10.0))
    results = act(victim, candidate(started.pid), steps, Means(hook=hook), lambda: (SHORT, False), time.monotonic())
    victim.close()

    assert results[0].result == "it did not end within 1.0 s and was killed"
    assert results[1].step == "sigkill"
    assert started.wait(MAX_WAIT_SECONDS) == -signal.SIGKILL
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_hook_is_run_without_a_shell_and_gets_the_victim_in_its_environment(box: GuardianMachine) -> None:
    victim = box.start_victim()
    box.free_on_end(victim)
    found = box.state / "found"
    script = f"import os; open({str(found)!r}, 'w').write(os.environ['MEMWATCH_PID'] + os.environ['MEMWATCH_UNIT'])"
    limits = replace(QUICK, has_hook=True, hook_seconds=20.0, sigterm_seconds=10.0)
    box.start_and_fall(replace(box.config, hook=(sys.executable, "-c", script, "$(false)"), limits=limits))
    wait_until(lambda: found.exists() and found.read_text())
    box.set_available(ROOMY)

    record = box.wait_for_record()

    assert found.read_text() == f"{victim.pid}serve.service"
    assert [step.step for step in record.steps] == ["hook"]
    assert record.helped is True
    assert victim.poll() is None


def test_number_that_belongs_to_another_process_is_not_hit(box: GuardianMachine) -> None:
    """The chosen process ended, and its number was used again: the new one started at another time."""
    other = box.start_victim()
    ticks = start_ticks(box, other.pid)

    with pytest.raises(VictimGoneError, match="its number belongs to another process"):
        Victim(box.proc, other.pid, ticks - 1)

    assert other.poll() is None


def test_descriptor_of_an_ended_victim_hits_nothing(box: GuardianMachine) -> None:
    started = box.start_victim()
    victim = Victim(box.proc, started.pid, start_ticks(box, started.pid))
    started.kill()
    started.wait()

    assert victim.send(signal.SIGTERM) == "it had ended"
    with pytest.raises(VictimGoneError, match="it has ended"):
        Victim(box.proc, started.pid, 1)
    victim.close()


def start_ticks(box: GuardianMachine, pid: int) -> int:
    return int((box.proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[19])


def rss_after_action(folder: Path) -> int:
    """Return the resident memory in bytes of a guardian that has killed a process and reported it."""
    with guardian_machine(folder) as box:
        box.free_on_end(box.start_victim(IGNORES_SIGTERM))
        guardian = box.start_and_fall()
        record = box.wait_for_record()
        assert record.steps[-1].step == "sigkill"
        wait_until(lambda: box.reports)
        status = Path(f"/proc/{guardian.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS:"))


def test_guardian_takes_less_than_20_mib(tmp_path: Path) -> None:
    """While it acts, with modules that an earlier one has compiled, as an installed guardian has them."""
    _, rss = rss_after_action(tmp_path / "compiles"), rss_after_action(tmp_path / "measured")

    assert rss <= 20 << 20


def test_status_has_the_mode_and_the_last_reading(box: GuardianMachine) -> None:
    guardian = box.start()
    status = box.status()

    assert (status.pid, status.dry_run) == (guardian.pid, False)
    assert status.available_bytes == ROOMY
    assert status.decision == "ram is OK: 20.0 GiB are available"


def test_guardian_ends_on_sigterm(box: GuardianMachine) -> None:
    guardian = box.start()
    guardian.terminate()

    assert guardian.wait(MAX_WAIT_SECONDS) == 0


def test_guardian_does_not_start_without_its_folder(box: GuardianMachine) -> None:
    from memwatchd.guardian.records import send

    fd = send(replace(box.config, state_dir=str(box.state / "missing")))
    command = [*python_child("memwatchd.guardian.loop"), str(fd)]
    done = subprocess.run(command, pass_fds=(fd,), capture_output=True, text=True, check=False)
    os.close(fd)

    assert done.returncode == 1
    assert f"the guardian cannot start: {box.state}/missing/{NAME}: no such file or directory" in done.stderr


class LateVictim(Victim):
    """A process that has not ended yet when it is asked at once."""

    def has_ended(self, seconds: float) -> bool:
        return seconds > 0 and super().has_ended(MAX_WAIT_SECONDS)


def test_victim_whose_memory_is_back_before_its_end_is_recorded_as_ended(box: GuardianMachine) -> None:
    started = box.start_victim()
    victim = LateVictim(box.proc, started.pid, start_ticks(box, started.pid))

    (result,) = act(
        victim,
        candidate(started.pid),
        (Step("sigterm", 5.0), Step("sigkill", 5.0)),
        Means(),
        lambda: (ROOMY, True),
        time.monotonic(),
    )
    victim.close()

    assert (result.step, result.result) == ("sigterm", "sent; it ended")
    assert started.wait(MAX_WAIT_SECONDS) == -signal.SIGTERM


class QuickVictim(Victim):
    """Ends before the kernel is asked for its memory."""

    def release(self) -> str:
        assert self.has_ended(MAX_WAIT_SECONDS)
        return super().release()


def test_end_of_a_victim_that_is_gone_at_once_is_recorded_once(box: GuardianMachine) -> None:
    started = box.start_victim()
    victim = QuickVictim(box.proc, started.pid, start_ticks(box, started.pid))

    steps = (Step("sigkill", 5.0),)
    (result,) = act(victim, candidate(started.pid), steps, Means(), lambda: (ROOMY, True), time.monotonic())
    victim.close()

    assert result.result == "sent; it ended"
    assert started.wait(MAX_WAIT_SECONDS) == -signal.SIGKILL


def test_reclaim_is_asked_of_the_own_cgroup_only(tmp_path: Path) -> None:
    unit = tmp_path / "system.slice/serve.service"
    unit.mkdir(parents=True)
    (unit / "memory.reclaim").touch()
    (tmp_path / "system.slice/memory.reclaim").touch()
    one = candidate(10, GIB, cgroup="/system.slice/serve.service")
    step = Step("reclaim", 5.0, 3 * GIB)

    assert reclaim(tmp_path, one, step) == "done"
    assert (unit / "memory.reclaim").read_text() == str(3 * GIB)
    for cgroup in ("/system.slice", "/", "/system.slice/../..", "/system.slice/serve.service/.."):
        assert reclaim(tmp_path, replace(one, cgroup=cgroup), step) == NO_OWN_CGROUP
        assert read_group(tmp_path, replace(one, cgroup=cgroup)) == NO_OWN_CGROUP
    assert (tmp_path / "system.slice/memory.reclaim").read_text() == ""
    gone = replace(one, cgroup="/system.slice/gone.service")
    assert reclaim(tmp_path, gone, step) == "not done: no such file or directory"


def test_memory_of_a_cgroup_is_what_can_move_to_swap_and_its_file_cache(tmp_path: Path) -> None:
    one = candidate(10, GIB, cgroup="/system.slice/serve.service")
    unit = tmp_path / "system.slice/serve.service"
    unit.mkdir(parents=True)
    assert read_group(tmp_path, one) == "the memory of its cgroup is not readable"

    (unit / "memory.stat").write_text(
        "anon 900\ninactive_anon 600\nactive_anon 400\ninactive_file 30\nactive_file 20\nslab_reclaimable 7\n"
    )
    assert read_group(tmp_path, one) == GroupMemory(57, 1000)

    (unit / "memory.swap.max").write_text("max\n")
    assert read_group(tmp_path, one) == GroupMemory(57, 1000)
    (unit / "memory.swap.max").write_text("500\n")
    (unit / "memory.swap.current").write_text("300\n")
    assert read_group(tmp_path, one) == GroupMemory(57, 200)
    (unit / "memory.swap.current").write_text("x\n")
    assert read_group(tmp_path, one) == "the swap of its cgroup is not readable"


@pytest.mark.parametrize(
    ("kind", "method", "path", "body"),
    [
        ("ollama", "POST", "/api/generate", {"model": "llama3", "keep_alive": 0}),
        ("vllm", "POST", "/sleep?level=2", None),
        ("sglang", "POST", "/release_memory_occupation", {}),
    ],
)
def test_model_server_is_asked_by_its_documented_request(
    kind: str, method: str, path: str, body: dict[str, object] | None
) -> None:
    requests = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return http(b"{}")

    with site(answer) as port:
        engine = Engine(f"{kind}-1", kind, kind, f"http://127.0.0.1:{port}", model="llama3")

        assert ask_engine(engine, 10.0) == f"{method} {path}: it answered 200"

    head, _, sent = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}".encode())
    assert (json.loads(sent) if sent else None) == body


def test_each_model_of_a_server_is_unloaded_by_its_own_request() -> None:
    """Names of several models come as one text. Where not all are named, nothing is asked."""
    requests = []

    def answer(request: bytes) -> bytes:
        requests.append(json.loads(request.partition(b"\r\n\r\n")[2])["model"])
        return http(b"{}")

    with site(answer) as port:
        engine = Engine("ollama-1", "ollama", "Ollama", f"http://127.0.0.1:{port}", model="qwen3:8b, llama3")

        assert ask_engine(engine, 10.0) == "; ".join(["POST /api/generate: it answered 200"] * 2)
        assert (
            ask_engine(replace(engine, model="a, b and 3 more"), 10.0) == "Ollama has no request that frees memory"
        )
    assert requests == ["qwen3:8b", "llama3"]


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "http://example.com:8000", "https://127.0.0.1:8000"])
def test_model_server_elsewhere_is_not_asked(url: str) -> None:
    assert ask_engine(Engine("vllm-1", "vllm", "vLLM", url), 1.0) == f"not sent: {url} is not a loopback address"


def test_journal_of_a_killed_guardian_has_whole_records(tmp_path: Path) -> None:
    record = Record(1.0, "nothing", "because", True, 1, 1)
    journal = Journal(tmp_path)
    journal.append(record)
    journal.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"unix":2.0,"decis')
    journal = Journal(tmp_path)
    journal.append(replace(record, unix=3.0))
    journal.close()

    assert [one.unix for one in read_journal(tmp_path)] == [1.0, 3.0]


def test_journal_has_a_limit(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=2000)
    for number in range(100):
        journal.append(Record(float(number), "nothing", "because", True, 1, 1))
    journal.close()

    kept = [one.unix for one in read_journal(tmp_path)]
    assert kept == [float(number) for number in range(100 - len(kept), 100)]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4000
    assert len(list(tmp_path.iterdir())) == 2
