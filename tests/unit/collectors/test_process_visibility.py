"""Mount options of /proc that hide processes of other users."""

from __future__ import annotations

import pytest

from memwatch.core.linux.process_owners import HidePid, find_hidepid


def line(options: str, point: str = "/proc", kind: str = "proc") -> bytes:
    return f"22 1 0:21 / {point} rw,relatime shared:5 - {kind} proc {options}\n".encode()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("rw", None),
        ("rw,hidepid=0", None),
        ("rw,hidepid=off", None),
        ("rw,gid=27,hidepid=2", HidePid("invisible", 27)),
        ("rw,gid=27,hidepid=invisible", HidePid("invisible", 27)),
        ("rw,hidepid=1", HidePid("noaccess")),
        ("rw,hidepid=noaccess", HidePid("noaccess")),
        ("rw,hidepid=ptraceable,subset=pid", HidePid("ptraceable")),
        ("rw,hidepid=4", HidePid("ptraceable")),
        ("rw,hidepid=newer", HidePid("newer")),
        ("rw,nothidepid=2", None),
    ],
)
def test_option_is_read_in_both_forms(options: str, found: HidePid | None) -> None:
    """Names since Linux 5.8, numbers before."""
    assert find_hidepid(line(options), "/proc") == found


def test_mount_of_the_given_procfs_counts() -> None:
    """In a container the host's /proc is at another path; only its option matters."""
    both = line("rw,hidepid=2") + line("rw", "/host/proc")

    assert find_hidepid(both, "/host/proc") is None
    assert find_hidepid(line("rw") + line("rw,hidepid=2", "/host/proc"), "/host/proc") == HidePid("invisible")


def test_last_mount_at_a_path_counts() -> None:
    """systemd's ProtectProc= mounts over /proc."""
    assert find_hidepid(line("rw") + line("rw,hidepid=invisible"), "/proc") == HidePid("invisible")
    assert find_hidepid(line("rw,hidepid=invisible") + line("rw"), "/proc") is None


def test_other_file_systems_are_ignored() -> None:
    assert find_hidepid(line("rw,hidepid=2", kind="tmpfs"), "/proc") is None
    assert find_hidepid(b"garbage\n", "/proc") is None


def test_sentence_has_cause_and_remedy() -> None:
    """The group sees all processes, except with ptraceable."""
    grouped, ptraceable = HidePid("invisible", 27).note, HidePid("ptraceable", 27).note

    assert "Processes of other users are hidden" in grouped
    assert "/proc is mounted with hidepid=invisible" in grouped
    assert "SupplementaryGroups=27" in grouped
    assert "CAP_SYS_PTRACE" in grouped
    assert "SupplementaryGroups" not in ptraceable
    assert "SupplementaryGroups" not in HidePid("invisible").note
    assert "CAP_SYS_PTRACE" in ptraceable
