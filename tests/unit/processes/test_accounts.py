"""Accounts of user ids and of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.budget import ROOT, UNKNOWN, Account, Rank
from memwatch.core.linux.accounts import MAX_OWNERS, Accounts

ANA, BEN = Account("uid 1000"), Account("uid 1001")
UNKNOWN_PODS = Account("pods of unknown users")
POD_FOLDER = (
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f2a9f0e_1c2d_4a5b_8c7d_112233445566.slice"
)
CONTAINER = "a" * 64


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    (tmp_path / "etc").mkdir()
    users = (
        "root:x:0:0::/:/bin/sh\nana:x:1000:1000::/:/bin/sh\nben:x:1001:1001::/:/bin/sh\ndockremap:x:999:999::/:/\n"
    )
    (tmp_path / "etc/passwd").write_text(users)
    ranges = "ana:100000:65536\nben:165536:65536\nroot:1000000:1000000000\ndockremap:300000:65536\n"
    (tmp_path / "etc/subuid").write_text(ranges + "containers:2147483647:2147483648\n")
    return Accounts(tmp_path)


@pytest.mark.parametrize(
    ("uid", "account"),
    [
        (None, UNKNOWN),
        (0, ROOT),
        (101, Account("uid 101", Rank.SYSTEM)),
        (1000, ANA),
        (61_184, Account("uid 61184", Rank.SYSTEM)),  # DynamicUser=
        (65_534, Account("uid 65534")),
        (99_999, Account("uid 99999")),
        (100_000, ANA),
        (165_535, ANA),
        (165_536, BEN),
        (231_072, Account("uid 231072")),
        (300_005, Account("containers with uid 300000 and above")),  # Docker with userns-remap
        (524_288 + 70_000, Account("containers with uid 589824 and above")),  # systemd-nspawn -U
        (1_000_000, Account("containers with uid 1000000 and above")),  # LXD: root has the range
        (1_065_535, Account("containers with uid 1000000 and above")),
        (1_065_536, Account("containers with uid 1065536 and above")),
        (3_000_000_000, Account("containers with uid 2999975936 and above")),  # userns=auto of Podman
    ],
)
def test_subordinate_ids_belong_to_their_account(accounts: Accounts, uid: int | None, account: Account) -> None:
    assert tuple(accounts.of_now(uid)) == tuple(account)


def test_user_of_a_domain_who_is_logged_in_is_an_account(tmp_path: Path, accounts: Accounts) -> None:
    """SSSD gives ids from 200,000 to 2,000,200,000."""
    (tmp_path / "run/user/2000100007").mkdir(parents=True)
    accounts.refresh()

    assert tuple(accounts.of(2_000_100_007)) == ("uid 2000100007", Rank.USER)
    assert accounts.of(2_000_100_008) == Account("containers with uid 2000093184 and above")


def test_accounts_without_files_are_users(tmp_path: Path) -> None:
    assert Accounts(tmp_path).of_now(100_000) == Account("uid 100000")


def test_changed_file_is_read_again(tmp_path: Path, accounts: Accounts) -> None:
    accounts.refresh()
    (tmp_path / "etc/subuid").write_text("1001:100000:65536\n")
    assert accounts.of_now(100_000) == BEN


@pytest.mark.parametrize(
    ("path", "account"),
    [
        ("/user.slice/user-1001.slice/session-3.scope", BEN),
        ("/user.slice/user-1001.slice/user@1001.service/app.slice/user-0.slice", BEN),
        ("/slurm/uid_1000/job_7", ANA),
        ("/system.slice/mysql.service", Account("mysql.service", Rank.SYSTEM)),
        ("/system.slice/mysql.service/user.slice/user-1001.slice", Account("mysql.service", Rank.SYSTEM)),
        (f"{POD_FOLDER}/cri-containerd-{CONTAINER}.scope", UNKNOWN_PODS),
        (f"{POD_FOLDER}/cri-containerd-{CONTAINER}.scope/docker-{'b' * 64}.scope", UNKNOWN_PODS),
        (
            f"/system.slice/docker-{CONTAINER}.scope/docker-{'b' * 64}.scope",
            Account("containers of unknown users"),
        ),
        ("/", Account("this container", Rank.SYSTEM)),
    ],
)
def test_cgroup_belongs_to_the_outermost_owner(accounts: Accounts, path: str, account: Account) -> None:
    assert tuple(accounts.of_cgroup(path)) == tuple(account)


SLURM = "/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"


@pytest.mark.parametrize(
    ("path", "user", "account"),
    [
        (SLURM.format(7), "ana", ANA),
        (SLURM.format(7), "100005", ANA),  # a container of the job, with subordinate ids
        (SLURM.format(7), "root", Account("jobs of root")),  # slurmstepd, or a job of root: no place of root
        (f"/system.slice/docker-{CONTAINER}.scope", "root", Account("containers of root")),
        (f"/system.slice/docker-{CONTAINER}.scope", "ana", Account("containers of uid 1000")),
        (f"/system.slice/docker-{CONTAINER}.scope", "101", Account("containers of uid 101")),
        (f"/system.slice/docker-{CONTAINER}.scope", "1000005", Account("containers with uid 1000000 and above")),
        (f"{POD_FOLDER}/cri-containerd-{CONTAINER}.scope", "root", Account("pods of root")),
        ("", "ana", ANA),
        ("", "100005", ANA),
    ],
)
def test_job_or_container_is_of_the_account_of_its_user(
    accounts: Accounts, path: str, user: str, account: Account
) -> None:
    assert tuple(accounts.of_cgroup(path, user)) == tuple(account)
    if path:
        assert tuple(accounts.of_cgroup(path)) == tuple(account)  # its processes may be gone


def test_hundred_jobs_of_a_user_are_one_account(accounts: Accounts) -> None:
    jobs = {accounts.of_cgroup(SLURM.format(number), "ana") for number in range(100)}
    unknown = {accounts.of_cgroup(SLURM.format(number)) for number in range(200, 300)}
    assert (jobs, unknown) == ({ANA}, {Account("jobs of unknown users")})


def test_jobs_that_are_remembered_are_bounded(accounts: Accounts) -> None:
    for number in range(MAX_OWNERS + 10):
        accounts.of_cgroup(SLURM.format(number), "ana")
    assert accounts.of_cgroup(SLURM.format(0)) == Account("jobs of unknown users")
    assert accounts.of_cgroup(SLURM.format(MAX_OWNERS + 9)) == ANA
