"""Comparison of the incidents that memwatchd reported in the virtual machine with the truth. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = dict[str, Any]
# The clock of an emulated processor on a busy host is late more often than that of a real one.
MAX_LAG_SECONDS = 3.0


def pid_of(one: Record | None) -> int | None:
    return None if one is None else one["pid"]


def find(content: Record, killer: str) -> Record | None:
    """Return the incident with this killer."""
    return next((one for one in content["incidents"] if one["killer"] and one["killer"]["kind"] == killer), None)


def is_victim(one: Record, truth: Record) -> bool:
    """Return True for the process, or for its unit if the line names no process."""
    victim, unit = one["victim"], truth["unit"]
    return victim["pid"] == truth["pid"] or unit in (victim["unit"], victim["who"])


def judge_kill(content: Record, killer: str, evidence: str, needs_cause: bool = True) -> Iterator[str]:
    """Yield what is wrong about a kill whose victim is the cause. A wrong cause is never right."""
    truth, one = content["truth"], find(content, killer)
    if one is None:
        yield f"no incident with the killer {killer}"
        return
    if not is_victim(one, truth):
        yield f"the victim is {one['victim']}, not {truth}"
    if pid_of(one["cause"]) != truth["pid"] and (needs_cause or one["cause"] is not None):
        yield f"the cause is {one['cause']}, not {truth}"
    if not any(evidence in line for line in one["evidence"]):
        yield f"no evidence with {evidence!r}"


def judge_exhaustion(content: Record) -> Iterator[str]:
    """Yield what is wrong about the kills of the kernel while the daemon's file system was frozen."""
    truth, one = content["truth"], find(content, "kernel_oom")
    if one is None:
        yield "no incident with the killer kernel_oom"
        return
    victims = {victim["pid"]: victim["is_cause"] for victim in one["victims"]}
    if pid_of(one["victim"]) != truth["bystander"] or victims.get(truth["bystander"]) is not False:
        yield f"the first victim is {one['victim']}, not the bystander {truth['bystander']}"
    if pid_of(one["cause"]) != truth["pid"]:
        yield f"the cause is {one['cause']}, not {truth['pid']}"
    if victims.get(truth["pid"]) is not True:
        yield f"the victims are {victims}, without the cause {truth['pid']}"
    if not all(truth["answers"]):
        yield f"while the file system was frozen, the snapshot was old: {truth['answers']}"
    if truth["lag"] > MAX_LAG_SECONDS or truth["restarts"]:
        yield f"a tick was {truth['lag']:.1f} s late, and memwatchd was restarted {truth['restarts']} times"


def judge_cut(content: Record, before: Record, killer: str, cause: int | None) -> Iterator[str]:
    """Yield what is wrong after a power cut. `before`: what the machine sent last, with its incidents."""
    lost = set(before["kept"]) - {one["id"] for one in content["incidents"]}
    if lost or not before["kept"]:
        yield f"incidents are lost: {sorted(lost) or 'all'}"
    one = max(content["incidents"], key=lambda found: float(found["began_unix"]), default=None)
    if one is None or one["kind"] != "unclean_end":
        yield f"the newest incident is {one}, no unclean end"
        return
    if one["killer"]["kind"] != killer:
        yield f"the killer is {one['killer']}, not {killer}"
    if pid_of(one["cause"]) != cause:
        yield f"the cause is {one['cause']}, not {cause}"


CHECKS: Mapping[str, Callable[[Mapping[str, Record]], Iterator[str]]] = {
    "memory_max": lambda found: judge_kill(found["memory_max"], "cgroup_oom", "limited.service"),
    "earlyoom": lambda found: judge_kill(found["earlyoom"], "earlyoom", "log of earlyoom: "),
    "kill_9": lambda found: judge_kill(found["kill_9"], "unknown", "status=9/KILL"),
    "nohang": lambda found: judge_kill(found["nohang"], "nohang", "log of nohang: "),
    "oomd_pressure": lambda found: judge_kill(
        found["oomd_pressure"], "systemd_oomd", "log of systemd-oomd: ", needs_cause=False
    ),
    "oomd_swap": lambda found: judge_kill(found["oomd_swap"], "systemd_oomd", "log of systemd-oomd: "),
    "global_oom": lambda found: judge_exhaustion(found["global_oom"]),
    "power": lambda found: judge_cut(found["power"], found["cut_0"], "power", None),
    "freeze": lambda found: judge_cut(found["freeze"], found["cut_1"], "unknown", found["cut_1"]["pid"]),
}


def judge(found: Mapping[str, Record]) -> dict[str, list[str]]:
    """Return what is wrong, by check; an empty list if nothing is."""
    return {name: list(_judge(name, found)) for name in CHECKS}


def _judge(name: str, found: Mapping[str, Record]) -> Iterator[str]:
    if name not in found:
        yield "the machine sent nothing"
    elif "failed" in found[name]:
        yield str(found[name]["failed"])
    else:
        try:
            yield from CHECKS[name](found)
        except KeyError as error:
            yield f"the machine did not send {error}"
