"""Kills are of one owner and have one killer: units, jobs and containers of one name or number are told apart."""

from __future__ import annotations

import pytest

from memwatch.core.linux.cgroups import parse_owners
from memwatch.reporting.incidents.cause import owner_key
from memwatch.reporting.incidents.killer import Death, choose_killer, is_member, is_same, owner_in
from memwatch.reporting.incidents.readings import Holding
from memwatch.reporting.incidents.records import Killer, KillerKind, Suspect, Victim

ID = "3fa9c1d07be24586" * 4


def holding(cgroup: str) -> Holding:
    found = parse_owners({"": cgroup})
    return Holding("x", found.unit, found.container, 1, None, found.pod, job=found.job)


PODS = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
POD, OTHER_POD = (f"{PODS}{first}b0f2a1c_7c1d_4b7e_9a55_0123456789ab.slice" for first in "46")
GUEST = "/lxc/101/ns/system.slice/ollama.service"


@pytest.mark.parametrize(
    ("place", "members", "others"),
    [
        ("/lxc/101", (GUEST, "/lxc/101/ns/init.scope"), ("/lxc/102/ns/init.scope", f"/docker/101{ID[3:]}")),
        (GUEST, (f"{GUEST}/sub",), ("/system.slice/ollama.service", "/lxc/101/ns/system.slice/b.service")),
        ("/system.slice/ollama.service", ("/system.slice/ollama.service",), (GUEST,)),
        ("ollama.service", ("/system.slice/ollama.service",), (GUEST,)),
        (f"/system.slice/docker-{ID}.scope", (f"/system.slice/docker-{ID}.scope/init",), ("/lxc/3fa9c1d07be/ns",)),
        (ID, (f"/system.slice/docker-{ID}.scope",), (GUEST,)),
        (POD, (f"{POD}/cri-containerd-{ID}.scope",), (OTHER_POD, f"{OTHER_POD}/cri-containerd-{ID}.scope", GUEST)),
        (
            "/system.slice/slurmstepd.scope/job_81/step_0",
            ("/system.slice/slurmstepd.scope/job_81/step_0/user/task_0",),
            ("/system.slice/slurmstepd.scope/job_82/step_0/user/task_0",),
        ),
    ],
)
def test_members_of_a_killed_cgroup(place: str, members: tuple[str, ...], others: tuple[str, ...]) -> None:
    assert [is_member(holding(one), place) for one in (*members, *others)] == [True] * len(members) + [False] * len(
        others
    )


def test_owner_in_a_cgroup_path_is_that_of_its_processes() -> None:
    assert owner_in(GUEST) == ("ollama.service in lxc/101", "101")
    assert owner_in(f"docker-{ID}.scope") == (f"docker-{ID}.scope", ID[:12])


def test_programs_of_one_guest_have_different_keys() -> None:
    """A guest runs many services; its sessions and its manager are no program."""
    keys = [
        owner_key(one.unit, one.container) for one in map(holding, (GUEST, "/lxc/101/ns/system.slice/b.service"))
    ]
    session = holding("/lxc/101/ns/user.slice/user-0.slice/session-3.scope")

    assert keys == ["ollama.service in lxc/101", "b.service in lxc/101"]
    assert owner_key(session.unit, session.container) == "101"


def death(unix: float, kind: KillerKind) -> Death:
    return Death(Victim("x", None, None, None, None, unix, kind), Killer(kind, ""))


@pytest.mark.parametrize(
    ("deaths", "chosen"),
    [
        ([], None),
        ([death(2.0, "unknown"), death(1.0, "unknown")], 1.0),
        ([death(1.0, "unknown"), death(2.0, "kernel_oom")], 2.0),
        ([death(3.0, "earlyoom"), death(1.0, "unknown"), death(2.0, "kernel_oom")], 2.0),
    ],
    ids=["no kill", "unknown killers", "one known killer", "first known killer"],
)
def test_first_known_killer_is_the_killer(deaths: list[Death], chosen: float | None) -> None:
    found = choose_killer(deaths)

    assert (None if found is None else found.victim.unix) == chosen


@pytest.mark.parametrize(
    ("victim", "cause", "same"),
    [
        ((7, "job.service"), (7, "job.service"), True),
        # Another process of the unit that grew was killed.
        ((7, "job.service"), (8, "job.service"), False),
        ((7, "job.service"), (None, "job.service"), True),
        ((7, "job.service"), (None, "x.service"), False),
        ((7, None), (None, "x.service"), False),
        ((None, "job.service"), (8, "job.service"), True),
        ((None, None), (8, "job.service"), None),
    ],
)
def test_victim_is_the_cause_by_its_number_or_its_owner(
    victim: tuple[int | None, str | None], cause: tuple[int | None, str], same: bool | None
) -> None:
    killed = Victim("a", *victim, None, 1, 0.0, "kernel_oom")

    assert is_same(killed, Suspect("b", *cause, None, 1, 0.0, 1)) is same
