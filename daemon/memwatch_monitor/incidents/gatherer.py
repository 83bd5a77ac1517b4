"""The state machine of incidents: it takes what is new at each tick and returns the incidents that changed.

It does no I/O. A quiet tick adds a frame to a ring and compares the levels.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.budget import KINDS, ROOT, UNKNOWN, Account, Budget, Held, Rank, next_to_go
from memwatch.core.events import Event
from memwatch.core.kernel_log import ProcessEnd, ServiceKill, shorten_cgroup
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.cgroup_kills import CgroupKill
from memwatch.core.linux.cgroups import parse_owners
from memwatch.core.model import OWN_CGROUP, RAM, Absent, Device, Process
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import duration
from memwatch.reporting.incidents import killer
from memwatch.reporting.incidents.killer import Death
from memwatch.reporting.incidents.readings import (
    Frame,
    Holding,
    build_frame,
    find_places,
    read_device_memory,
    read_holders,
)
from memwatch.reporting.incidents.records import Incident, Suspect
from memwatch_monitor.incidents.assemble import build_incident
from memwatch_monitor.incidents.open_incident import SAME_END_SECONDS, OpenIncident, is_same_end
from memwatch_monitor.incidents.triggers import (
    Observation,
    Trigger,
    describe_quiet_kill,
    find_gap,
    find_lost_devices,
    find_place,
    find_program_errors,
    find_ram,
    is_routine,
    is_short,
    was_memory_short,
)

# The frames of the last two minutes: all of the last half minute, before that one a second.

# Half a minute at ten ticks a second, and two minutes at one.
MAX_FINE, MAX_COARSE = 300, 130
STEP_SECONDS = 0.95


class FrameRing:
    """Ring of frames. A frame shares its parts with the snapshot: both rings together take some 0.3 MB."""

    def __init__(self) -> None:
        self._fine: deque[Frame] = deque(maxlen=MAX_FINE)
        self._coarse: deque[Frame] = deque(maxlen=MAX_COARSE)

    def add(self, frame: Frame) -> None:
        self._fine.append(frame)
        if not self._coarse or frame.boottime - self._coarse[-1].boottime >= STEP_SECONDS:
            self._coarse.append(frame)

    @property
    def newest(self) -> Frame | None:
        return self._fine[-1] if self._fine else None

    def frames(self) -> list[Frame]:
        """Return all frames, oldest first."""
        first = self._fine[0].boottime if self._fine else 0.0
        return [*(one for one in self._coarse if one.boottime < first), *self._fine]

    def clear(self) -> None:
        self._fine.clear()
        self._coarse.clear()


# An incident is over after this time without a trigger, and at the latest after half an hour.
QUIET_SECONDS, MAX_SECONDS = 60.0, 1800.0
# The record of one that lasts is at most this old, so that its page has the figures of now.
MAX_REWRITE_SECONDS = 40.0
# The log of a kill comes up to some seconds after the end of the process.
GRACE_SECONDS = 4.0
# An end takes up to this long from the first page given back until the process is listed no more.
TEARDOWN_SECONDS = 5.0
# A process that held less and ended by an unexplained SIGKILL is no incident and no event.
MIN_KILLED_BYTES = 256 << 20
# Cgroups at their limits that are not named: old kernels log none, and of one second sixteen are kept.
OTHER_CGROUPS = "cgroups"
MAX_EVENTS, MAX_ROUTINE = 100, 50
# Incidents of one unit are one if it begins again within this time: the kubelet restarts a pod after up to 5 min.
REPEAT_SECONDS, MAX_REPEATING = 3600.0, 200
# Kills that no incident follows are reported together, by the slice or the owner of their cgroups.
FURTHER_SECONDS, MAX_FURTHER = 60.0, 1000
# Account of the limits of a device, which are no pools.
LIMITS = Account("limits on GPU memory", Rank.SYSTEM)
OTHERS = Account(OTHER_CGROUPS, Rank.SYSTEM)
AccountOf = Callable[[str, "str | None"], Account]


class Pending(Struct, frozen=True):
    """A death without a killer, that waits for the line that names one."""

    boottime: float
    death: Death
    holding: Holding | None = None


class LastWords:
    """Ends of processes, oldest first: those without a killer, and those that a line explains.

    An account has a share of both: one that kills many of its processes hides the end of no other's.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._number = 0
        self._waiting: dict[int, Pending] = {}
        self._explained: dict[int, Pending] = {}

    def wait(self, one: Pending, account: Account) -> None:
        self._add(self._waiting, one, account)

    def explain(self, boottime: float, death: Death, account: Account) -> None:
        self._add(self._explained, Pending(boottime, death), account)

    def waiting(self) -> list[Pending]:
        return list(self._waiting.values())

    def take_waiting(self, until: float) -> list[Pending]:
        """Remove and return those that wait since then or longer."""
        return self._take(self._waiting, until) if self._waiting else []

    def explained(self, since: float) -> list[Death]:
        """Return the deaths that were explained since that time, and forget those before."""
        self._take(self._explained, since)
        return [one.death for one in self._explained.values()]

    def clear(self) -> None:
        self._waiting.clear()
        self._explained.clear()
        self._budget.clear()

    def _add(self, kept: dict[int, Pending], one: Pending, account: Account) -> None:
        self._number += 1
        verdict = self._budget.admit(self._number, account, one.death.victim.known_bytes)
        if isinstance(verdict.gone, int):
            self._waiting.pop(verdict.gone, None)
            self._explained.pop(verdict.gone, None)
        if verdict.is_admitted:
            kept[self._number] = one

    def _take(self, kept: dict[int, Pending], until: float) -> list[Pending]:
        numbers = [number for number, one in kept.items() if one.boottime <= until]
        for number in numbers:
            self._budget.release(number)
        return [kept.pop(number) for number in numbers]


class FurtherKills:
    """Kills that no incident follows: counted by place, and reported once they are over or a minute old."""

    def __init__(self) -> None:
        self._deaths: deque[tuple[float, str, Death]] = deque(maxlen=MAX_FURTHER)
        self._counts: Counter[str] = Counter()
        self._since = 0.0

    def add(self, boottime: float, place: str, death: Death) -> bool:
        """Count a kill. Return False for another line about a known one."""
        if any(
            boottime - at <= SAME_END_SECONDS and where == place and is_same_end(known, death)
            for at, where, known in self._deaths
        ):
            return False
        self._since = self._since if self._counts else boottime
        self._deaths.append((boottime, place, death))
        self._counts[place] += death.count
        return True

    def take(self, boottime: float) -> list[str]:
        """Return sentences about the kills of the last minute, once a minute."""
        if not self._counts or boottime - self._since < FURTHER_SECONDS:
            return []
        counts, self._counts = self._counts, Counter()
        return [f"{count} further kill{'s' if count > 1 else ''} in {place}" for place, count in counts.items()]


class Repeat(NamedTuple):
    """An incident of a unit that is over. `times`: how often it happened since `first_began`."""

    id: str
    first_began: float
    times: int
    ended: float
    account: Account


class Gatherer:
    """Gatherer of incidents. `long` returns the growth in System RAM over the last hour. Call from one thread.

    `budget`: the incidents that are followed, of which each account has a share. `account_of` a cgroup
    and the user of its largest process.
    """

    def __init__(
        self,
        long: Callable[[Observation], Sequence[Suspect]] = lambda _: (),
        budget: Budget | None = None,
        account_of: AccountOf | None = None,
        last_words: Budget | None = None,
    ) -> None:
        self.open: dict[str, OpenIncident] = {}
        self.budget: Budget = budget if budget is not None else Budget(KINDS["incidents"])
        self._account_of = account_of or Accounts(Path("/")).of_cgroup
        self._further = FurtherKills()
        self._repeats: dict[str, Repeat] = {}
        self._long = long
        self._ring = FrameRing()
        self._monotonic = 0.0
        self._devices: tuple[Device, ...] = ()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._routine: deque[Event] = deque(maxlen=MAX_ROUTINE)
        self._last_words = LastWords(last_words if last_words is not None else Budget(KINDS["last_words"]))
        self._told: set[str] = set()
        self._own_killed_at: float = float("-inf")
        self._quiet_kills: list[str] = []
        self._ids: deque[str] = deque(maxlen=20)

    def add(self, seen: Observation) -> list[Incident]:
        """Add a tick. Return the incidents that began, changed or ended: `ended` is set for the last."""
        before, frame = self._ring.newest, build_frame(seen.boottime, seen.snapshot)
        self._ring.add(frame)
        for event in seen.events:
            (self._routine if is_routine(event) else self._events).append(event)
        triggers = [*self._triggers(before, frame, seen), *self._expired(seen)]
        self._quiet_kills += self._further.take(seen.boottime)
        self._monotonic, self._devices = seen.snapshot.monotonic, seen.snapshot.devices
        if not triggers and not self.open:
            return []
        for one in self.open.values():
            one.add_frame(frame)
            one.add_events(seen.events)
        changed = [key for trigger in triggers if (key := self._take(trigger, seen)) is not None]
        return self._build(changed, seen)

    def take_quiet_kills(self) -> list[str]:
        """Return sentences about the kills since the last call that are no incident."""
        taken, self._quiet_kills = self._quiet_kills, []
        return taken

    def close_all(self, seen: Observation | None, reason: str) -> list[Incident]:
        """End all incidents. `reason`: the beginning of a sentence, such as "memwatchd was stopped"."""
        ended = []
        for one in self.open.values():
            now = one.frames[-1].boottime if one.frames else one.boottime
            calm = now - one.bad_at
            when = f"{duration(calm)} after the incident was over" if calm > 0 else "before the incident was over"
            one.notes.append(f"{reason} {when}")
            if seen is not None:
                self._add_long(one, seen)
            ended.append(build_incident(one, now))
        self.open.clear()
        self.budget.clear()
        self._last_words.clear()
        return ended

    def _triggers(self, before: Frame | None, frame: Frame, seen: Observation) -> Iterator[Trigger]:
        snapshot = seen.snapshot
        for one in snapshot.pressure:
            if is_short(one):
                yield Trigger("critical", one.target)
            elif self._told:
                self._told.discard(one.target)
        if snapshot.devices is not self._devices and self._devices:
            yield from find_lost_devices(self._devices, snapshot)
        gap = find_gap(before, self._monotonic, seen)
        if gap:
            yield Trigger("wedge", find_ram(snapshot), gap_seconds=gap)
        if seen.group_kills:
            self._own_killed_at = seen.boottime
        for end in seen.ends:  # before the kills in cgroups, which name no victim
            self._note_end(end, seen)
        if seen.kills.named or seen.kills.of_cgroups or seen.kills.unnamed:
            yield from self._kernel_kills(seen)
        for kill in seen.service_kills:
            yield from self._service_kill(kill, seen)
        for event, text, pid in find_program_errors(seen.events) if seen.events else ():
            place = find_place(pid, frame) or find_ram(snapshot)
            death = killer.from_program(pid, text, event.unix, self._find(pid, place))
            yield Trigger("program", place, death)

    def _kernel_kills(self, seen: Observation) -> Iterator[Trigger]:
        snapshot, limits = seen.snapshot, _own_limits(seen)
        for kill in seen.kills.named:
            if kill.scope == "unknown" and not seen.kills.ram_was_short:
                continue  # an event
            is_own = bool(limits) and kill in seen.kills.named_of_own
            death = killer.from_kernel(kill, snapshot.unix, self._find(kill.pid), limits[0] if is_own else None)
            death = killer.with_device_memory(death, self._find_device_memory(kill.pid))
            if is_own:
                yield Trigger("kill", OWN_CGROUP, death)
            else:
                target = find_ram(snapshot) if kill.scope != "cgroup" else kill.cgroup or OTHER_CGROUPS
                yield Trigger("kill", target, death, cgroup=kill.cgroup)
        for group in seen.kills.of_cgroups:
            yield from self._group_kill(group, seen)
        if not seen.kills.unnamed:
            return
        is_own = seen.boottime - self._own_killed_at <= GRACE_SECONDS
        count = killer.from_count(seen.kills.unnamed, snapshot.unix, is_own)
        if seen.kills.unnamed_of_machine or is_own:
            target = OWN_CGROUP if is_own and not seen.kills.unnamed_of_machine else find_ram(snapshot)
            yield Trigger("kill", target, count)
        else:  # an event; so is the line of a service manager about it
            self._last_words.explain(seen.boottime, count, OTHERS)

    def _group_kill(self, kill: CgroupKill, seen: Observation) -> Iterator[Trigger]:
        """Yield the kills at the limit of a cgroup. Processes in it that just ended by SIGKILL are the victims."""
        is_own = kill.is_own and bool(_own_limits(seen))
        target, cgroup = (OWN_CGROUP, "") if is_own else (kill.cgroup or OTHER_CGROUPS, kill.cgroup)
        ended = [
            one.death
            for one in self._last_words.waiting()
            if one.holding and killer.is_member(one.holding, kill.cgroup)
        ]
        known = [death.victim for death in ended if death.source == "end"][: kill.count]
        for victim in known:
            yield Trigger("kill", target, killer.from_cgroup(kill, seen.snapshot.unix, victim), cgroup=cgroup)
        if len(known) < kill.count:
            rest = replace(kill, count=kill.count - len(known))
            yield Trigger("kill", target, killer.from_cgroup(rest, seen.snapshot.unix), cgroup=cgroup)

    def _service_kill(self, kill: ServiceKill, seen: Observation) -> Iterator[Trigger]:
        holding = self._find(kill.pid) if kill.pid is not None else self._find_member(kill.place)
        death = killer.with_device_memory(killer.from_service(kill, holding), self._find_device_memory(kill.pid))
        if kill.source == "runtime" and not self._was_short(seen.boottime):
            self._note_quiet_kill(death, False, seen)
            return
        if kill.source in ("oom_report", "unit_end"):
            self._last_words.wait(Pending(seen.boottime, death, holding), self._account_of_end(death, holding))
            return
        cgroup = kill.place if kill.source == "runtime_oom" else ""
        yield Trigger("kill", cgroup or find_ram(seen.snapshot), death, cgroup=cgroup)

    def _note_end(self, end: ProcessEnd, seen: Observation) -> None:
        """Note the end of a watched process. One by SIGKILL waits for the line that explains it."""
        holding = self._find(end.pid)
        if holding is None:
            return
        for one in self.open.values():
            one.add_end(end, holding)
        if end.was_killed:
            death = killer.with_device_memory(killer.from_end(end, holding), self._find_device_memory(end.pid))
            self._last_words.wait(Pending(seen.boottime, death, holding), self._account_of_end(death, holding))

    def _expired(self, seen: Observation) -> Iterator[Trigger]:
        """Yield the deaths that no line has explained in time."""
        for one in self._last_words.take_waiting(seen.boottime - GRACE_SECONDS):
            explained = self._last_words.explained(one.boottime - 2 * QUIET_SECONDS)
            if any(self._covers(death, one) for death in explained):
                continue
            was_short, held = self._was_short(one.boottime), one.death.victim.held_bytes or 0
            if one.death.source == "oom_report" or (was_short and held >= MIN_KILLED_BYTES):
                yield Trigger("kill", find_ram(seen.snapshot), one.death)
            else:
                self._note_quiet_kill(one.death, was_short, seen)

    def _was_short(self, boottime: float) -> bool:
        return was_memory_short(self._ring.frames(), boottime - QUIET_SECONDS)

    def _note_quiet_kill(self, death: Death, was_short: bool, seen: Observation) -> None:
        """Note a kill that memory does not explain: an operator or a program ended a process that is not small."""
        victim, on_gpus = death.victim, sum(death.victim.device_bytes.values())
        if victim.held_bytes is not None and victim.held_bytes + on_gpus < MIN_KILLED_BYTES:
            return
        self._last_words.explain(seen.boottime, death, self._account_of_end(death))
        self._quiet_kills.append(describe_quiet_kill(death, was_short, seen.snapshot))

    def _covers(self, death: Death, one: Pending) -> bool:
        pid = one.death.victim.pid
        if pid is not None:
            return killer.explains(death, pid, one.holding)
        unit = one.death.place
        if one.death.source == "oom_report" and death.source in ("kernel", "count", "runtime_oom"):
            return death.victim.unit in (None, unit)
        return unit in (death.victim.unit, death.victim.who) or killer.owner_in(death.place)[0] == unit

    def _take(self, trigger: Trigger, seen: Observation) -> str | None:
        """Add a trigger to its incident, or begin one. Return the key of the incident if it changed."""
        key = f"cgroup {trigger.cgroup}" if trigger.cgroup else trigger.target
        one = self.open.get(key) or self._find_unexplained(trigger)
        is_new = one is None
        if one is None:
            if trigger.kind == "critical" and trigger.target in self._told:
                return None
            one = self._begin(key, trigger, seen)
            if one is None:
                return None
        one.note(trigger.kind, seen.boottime, seen.snapshot.unix)
        if trigger.detail and trigger.detail not in one.detail:
            one.detail = f"{one.detail}; {trigger.detail}" if one.detail else trigger.detail
        one.add_gap(trigger.gap_seconds)
        if trigger.death is not None:
            is_new |= one.add_death(seen.boottime, trigger.death)
            self.budget.resize(key, one.killed_bytes)
            if trigger.death.killer.kind != "unknown":
                self._last_words.explain(seen.boottime, trigger.death, self._find_account(trigger, seen.snapshot))
        return key if is_new or trigger.detail or trigger.gap_seconds else None

    def _find_unexplained(self, trigger: Trigger) -> OpenIncident | None:
        """Return the incident with a kill of which only the number is known, and that this line explains."""
        death = trigger.death
        if death is None or not trigger.cgroup:
            return None
        for one in self.open.values():
            if any(known.source == "count" and is_same_end(known, death) for _, known in one.deaths):
                one.cgroup = trigger.cgroup
                return one
        return None

    def _begin(self, key: str, trigger: Trigger, seen: Observation) -> OpenIncident | None:
        snapshot = seen.snapshot
        is_cgroup = bool(trigger.cgroup) or trigger.target == OTHER_CGROUPS
        if not self._take_place(key, trigger, seen):
            return None
        earlier = self._find_repeat(trigger, seen.boottime)
        size = next((pool.size_bytes for pool in snapshot.pools if pool.id == trigger.target), None)
        if size is None:
            limits = [share.limit_bytes for share in snapshot.shares if share.id == trigger.target]
            limits.append((trigger.death and trigger.death.limit_bytes) or 0)
            size = next((limit for limit in limits if not isinstance(limit, Absent)), 0)
        label = shorten_cgroup(trigger.target) if is_cgroup else trigger.target
        one = OpenIncident(
            id=earlier.id if earlier else self._new_id(snapshot.unix),
            times=earlier.times + 1 if earlier else 1,
            first_began=earlier.first_began if earlier else snapshot.unix,
            kind=trigger.kind,
            target=trigger.target,
            label=snapshot.labels.get(trigger.target, label),
            size_bytes=size,
            began=snapshot.unix,
            boottime=seen.boottime,
            bad_at=seen.boottime,
            bad_unix=snapshot.unix,
            boot_id=snapshot.boot_id,
            labels=snapshot.labels,
            cgroup=trigger.cgroup,
            place=find_ram(snapshot) if is_cgroup else trigger.target,
            written_at=seen.boottime,
            frames=self._ring.frames(),
            events=sorted((*self._events, *self._routine), key=lambda event: event.seq),
            notes=list(describe_blind_spots(snapshot)),
        )
        self.open[key] = one
        return one

    def _take_place(self, key: str, trigger: Trigger, seen: Observation) -> bool:
        """Return True if the budget has a place for an incident. A smaller one may end for it."""
        account, death = self._find_account(trigger, seen.snapshot), trigger.death
        size = death.killed_bytes if death else 0
        if not self.budget.admits(account, size):
            place = place_of(trigger.cgroup, account)
            if death is None or self._further.add(seen.boottime, place, death):
                # A level that lasts asks at each tick: the budget counts a known key once.
                self.budget.refuse(key if death is None else (key, seen.boottime), account)
            return False
        gone = self.budget.admit(key, account, size).gone
        if isinstance(gone, str) and gone in self.open:
            self.open[gone].is_displaced = True
            self.open[gone].notes.append("a larger incident, or one of another account, took its place")
        return True

    def _find_account(self, trigger: Trigger, snapshot: Snapshot) -> Account:
        """Return who causes an incident: any user can in a cgroup, what concerns a pool is the machine's."""
        if trigger.cgroup:
            member = self._find_member(trigger.cgroup)
            return self._account_of(trigger.cgroup, member.user if member else None)
        if trigger.target == OTHER_CGROUPS:
            return OTHERS
        is_limit = any(share.id == trigger.target for share in snapshot.shares) and trigger.target != OWN_CGROUP
        return LIMITS if is_limit else ROOT

    def _account_of_end(self, death: Death, holding: Holding | None = None) -> Account:
        """Return the account of a process that ended: of its user, else of its unit."""
        found = holding or self._find(death.victim.pid)
        if found is not None and found.user is not None:
            return self._account_of("", found.user)
        unit = death.victim.unit or death.place
        is_service = unit.endswith(".service") and not unit.startswith("user@")
        return Account(unit, Rank.SYSTEM) if is_service else UNKNOWN

    def _find_repeat(self, trigger: Trigger, boottime: float) -> Repeat | None:
        """Return the last incident of the same pod or cgroup, if it has ended within the last hour."""
        found = self._repeats.get(repeat_key(trigger.cgroup)) if trigger.cgroup else None
        return found if found and boottime - found.ended <= REPEAT_SECONDS else None

    def _note_end_of(self, one: OpenIncident, boottime: float) -> None:
        """Keep what an incident about the same pod or cgroup goes on from."""
        if one.cgroup:
            key = repeat_key(one.cgroup)
            self._repeats.pop(key, None)
            self._repeats[key] = Repeat(
                one.id, one.first_began, one.times, boottime, self._account_of(one.cgroup, None)
            )
            if len(self._repeats) > MAX_REPEATING:
                held = {key: Held(one.account) for key, one in self._repeats.items()}
                del self._repeats[next_to_go(held)]

    def _build(self, changed: Sequence[str | None], seen: Observation) -> list[Incident]:
        built = []
        for key, one in list(self.open.items()):
            is_over = self._is_over(key, one, seen)
            if is_over:
                del self.open[key]
                self.budget.release(key)
                self._note_end_of(one, seen.boottime)
            is_due = seen.boottime - one.written_at >= one.rewrite_seconds
            was_quiet, one.is_quiet = one.is_quiet, seen.boottime - one.bad_at >= GRACE_SECONDS
            if is_over or key in changed or is_due or one.is_quiet != was_quiet:
                one.written_at = seen.boottime
                if is_due:
                    one.rewrite_seconds = min(2 * one.rewrite_seconds, MAX_REWRITE_SECONDS)
                self._add_long(one, seen)
                quiet_until = one.bad_unix + QUIET_SECONDS if one.is_quiet else None
                ended = seen.boottime if is_over else None
                built.append(build_incident(one, ended, self._returns(seen), quiet_until))
        return built

    def _add_long(self, one: OpenIncident, seen: Observation) -> None:
        if one.target == find_ram(seen.snapshot):
            one.add_long(seen.boottime, self._long(seen))

    def _is_over(self, key: str, one: OpenIncident, seen: Observation) -> bool:
        if one.is_displaced:
            return True
        if seen.boottime - one.boottime >= MAX_SECONDS:
            if any(is_short(verdict) and verdict.target == key for verdict in seen.snapshot.pressure):
                self._told.add(key)
                one.notes.append("the level was still critical when this record was closed")
            return True
        return seen.boottime - one.bad_at >= QUIET_SECONDS

    def _returns(self, seen: Observation) -> list[str]:
        return [one.text for one in seen.snapshot.not_returned]

    def _new_id(self, unix: float) -> str:
        base = datetime.fromtimestamp(unix, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        number, chosen = 1, base
        while chosen in self._ids:
            number += 1
            chosen = f"{base}-{number}"
        self._ids.append(chosen)
        return chosen

    def _find(self, pid: int | None, target: str = RAM) -> Holding | None:
        """Return the process with this PID as it was before its end, with its memory of the target."""
        if pid is None:
            return None
        return self._find_before_end(lambda process: process.pid == pid, lambda _: True, target)

    def _find_device_memory(self, pid: int | None) -> dict[str, int]:
        """Return the memory of GPUs that a process held shortly before its end."""
        found: dict[str, int] = {}
        newest, seen = -1.0, set[int]()
        for frame in reversed(self._ring.frames()) if pid is not None else ():
            if newest >= 0 and newest - frame.boottime > TEARDOWN_SECONDS:
                break
            if id(frame.processes) in seen:
                continue
            seen.add(id(frame.processes))
            for process in frame.processes:
                if process.pid == pid:
                    newest = max(newest, frame.boottime)
                    for pool, held in read_device_memory(process, frame).items():
                        found[pool] = max(held, found.get(pool, 0))
        return found

    def _find_member(self, place: str) -> Holding | None:
        """Return the largest process of a cgroup, unit, pod or container, as it was before its end."""
        return self._find_before_end(lambda _: True, lambda one: killer.is_member(one, place), RAM)

    def _find_before_end(
        self, is_wanted: Callable[[Process], bool], belongs: Callable[[Holding], bool], target: str
    ) -> Holding | None:
        """Return the largest of these in the newest lists with one: a process that ends gives back its memory."""
        largest, newest, seen = None, 0.0, set[int]()
        for frame in reversed(self._ring.frames()):
            if largest is not None and newest - frame.boottime > TEARDOWN_SECONDS:
                break
            if id(frame.processes) in seen:
                continue
            seen.add(id(frame.processes))
            wanted = [process for process in frame.processes if is_wanted(process)]
            holders = read_holders(wanted, find_places(frame, target)).values() if wanted else ()
            for one in filter(belongs, holders):
                newest = newest or frame.boottime
                largest = one if largest is None or one.size > largest.size else largest
        return largest


def place_of(cgroup: str, account: Account) -> str:
    """Return the slice of a user, such as user-1001.slice, or the owner of another cgroup."""
    parts = cgroup.split("/")
    return parts[2] if parts[:2] == ["", "user.slice"] and len(parts) > 2 else account.name


def repeat_key(cgroup: str) -> str:
    """Return the pod of a cgroup, whose containers have a new one after each start, or its path."""
    return parse_owners({"": cgroup}).printable().pod or cgroup


def _own_limits(seen: Observation) -> list[int]:
    """Return the limit of the own cgroup, if it has one."""
    limits = [share.limit_bytes for share in seen.snapshot.shares if share.id == OWN_CGROUP]
    return [one for one in limits if isinstance(one, int)]


def describe_blind_spots(snapshot: Snapshot) -> Iterator[str]:
    """Yield the sources that are not read: what they would show is missing."""
    for status in snapshot.collectors:
        if status.name in ("kmsg", "processes", "journal") and status.state in (
            "unavailable",
            "failing",
            "stalled",
        ):
            yield f"collector {status.name} is {status.state}: {status.error}"
