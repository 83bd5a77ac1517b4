"""The Debian package on a real systemd: installed, asked, killed, hung, locked in, upgraded, removed, purged."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from machine import Machine

SETTINGS = "/etc/memwatchd/memwatchd.toml"
DROP_IN = "/etc/systemd/system/memwatchd.service.d"
TOKEN = "0123456789abcdef0123456789abcdef"


def main_pid(machine: Machine) -> int:
    return int(machine.property_of("MainPID"))


def replaced(machine: Machine, before: int) -> float:
    """Seconds until another process answers."""
    return machine.wait_until(lambda: main_pid(machine) not in (0, before) and machine.answers(), 30)


def test_installing_starts_it_as_the_readme_says(machine: Machine) -> None:
    """apt install, systemctl start, curl: it is ready, and memwatch shows this machine."""
    machine.run("cd /root && apt-get install --yes ./memwatchd.deb")
    machine.run("systemctl start memwatchd")

    assert '"ok"' in machine.run("curl --fail --silent http://localhost:6360/readyz")
    assert "System RAM" in machine.run("memwatch status")
    assert machine.property_of("UnitFileState") == "enabled"
    assert machine.property_of("Type") == "notify"
    machine.wait_until(lambda: machine.property_of("StatusText").startswith("System RAM "))


def test_modules_and_templates_are_compiled_where_the_service_may_read_them(machine: Machine) -> None:
    """It may not write there: what were missing would be compiled at every start."""
    kept = "find /usr/lib/memwatchd -path '*/memwatch_web/templates/__pycache__/*' -perm -o=r"
    modules = "find /usr/lib/memwatchd -path '*/memwatch_web/__pycache__/*' -perm -o=r"

    assert len(machine.run(kept).split()) >= 10
    assert len(machine.run(modules).split()) >= 10


def test_only_this_machine_is_answered(machine: Machine) -> None:
    """After installation nothing listens but 127.0.0.1:6360 (0x18D8)."""
    sockets = machine.run("cat /proc/net/tcp /proc/net/tcp6").splitlines()
    listening = [line.split()[1] for line in sockets if " 0A " in line]

    assert listening == ["0100007F:18D8"]


def test_it_has_no_rights(machine: Machine) -> None:
    """A user of its own, no capability, no way to new ones, calls filtered, a file system that is read-only."""
    pid = main_pid(machine)
    status = dict(
        line.split(":\t", 1) for line in machine.run(f"cat /proc/{pid}/status").splitlines() if ":\t" in line
    )

    assert set(status["Uid"].split()) == {machine.run("id -u memwatchd").strip()}
    assert {status[key] for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    inside = f"nsenter --target {pid} --mount -- "
    for place in ("/etc/memwatchd/x", "/usr/x", "/var/x", "/sys/fs/cgroup/x"):
        assert "Read-only" in machine.run(inside + f"touch {place}", check=False), place
    machine.run(inside + "touch /var/lib/memwatchd/x && rm /var/lib/memwatchd/x")
    assert machine.run(inside + "ls /root /home", check=False).count("memwatchd.deb") == 0


def test_systemd_counts_little_exposure(machine: Machine) -> None:
    """As it runs, not only as it is written."""
    (score,) = re.findall(
        r"level for memwatchd.service: ([0-9.]+)", machine.run("systemd-analyze security memwatchd")
    )

    assert float(score) <= 2.0


def test_it_lives_in_its_own_slice(machine: Machine) -> None:
    """MemoryMin= means something only where every group above reserves, too."""
    assert machine.property_of("ControlGroup") == "/memwatchd.slice/memwatchd.service"
    assert machine.property_of("MemoryMin") == str(96 << 20)
    assert machine.run("systemctl show --value --property=MemoryMin memwatchd.slice").strip() == str(128 << 20)


def test_a_killed_daemon_is_back_in_five_seconds(machine: Machine) -> None:
    """kill -9, six times in a row: no limit on starts ends it."""
    for _ in range(6):
        before = main_pid(machine)
        machine.run(f"kill -9 {before}")

        assert replaced(machine, before) < 10  # RestartSec is 2 s, and this machine may be busy
    assert int(machine.property_of("NRestarts")) >= 6


@contextmanager
def dropped_in(machine: Machine, text: str) -> Iterator[None]:
    """With these lines added to the unit."""
    machine.run(f"mkdir -p {DROP_IN}")
    (machine.root / DROP_IN.lstrip("/") / "test.conf").write_text(text)
    machine.run("systemctl daemon-reload; systemctl restart memwatchd", check=False)
    try:
        yield
    finally:
        machine.run(
            f"rm {DROP_IN}/test.conf; rmdir {DROP_IN}; systemctl daemon-reload; systemctl restart memwatchd"
        )
        machine.wait_until(machine.answers)


@contextmanager
def settings(machine: Machine, text: str) -> Iterator[None]:
    """With this configuration."""
    machine.run(f"cp {SETTINGS} /root/kept")
    (machine.root / SETTINGS.lstrip("/")).write_text(text)
    try:
        yield
    finally:
        machine.run(f"cp /root/kept {SETTINGS}")


def test_a_hung_daemon_is_killed_and_started_again(machine: Machine) -> None:
    """A loop that does not tick feeds no watchdog. The patience is shortened here from 30 s to 3 s."""
    with dropped_in(machine, "[Service]\nWatchdogSec=3\n"):
        machine.wait_until(machine.answers)
        before = main_pid(machine)
        machine.run(f"kill -STOP {before}")

        replaced(machine, before)

        assert "watchdog" in machine.run("journalctl -u memwatchd --no-pager | tail -n 100")


def test_a_bad_configuration_is_named_and_not_tried_for_ever(machine: Machine) -> None:
    """Exit code 78, once; the journal says which key. A good one starts again."""
    with settings(machine, "nonsense = 1\n"):
        machine.run("systemctl restart memwatchd", check=False)
        time.sleep(4)

        assert machine.property_of("ActiveState") == "failed"
        assert machine.property_of("ExecMainStatus") == "78"
        assert "nonsense is not a setting" in machine.journal()
    machine.run("systemctl restart memwatchd")
    machine.wait_until(machine.answers)


def test_a_reload_keeps_what_runs_where_the_new_settings_are_bad(machine: Machine) -> None:
    """systemctl reload is SIGHUP; the process stays, and the journal says why the old settings do."""
    before = main_pid(machine)
    with settings(machine, "[pressure]\nmedium_percent = 99\n"):
        machine.run("systemctl reload memwatchd")
        machine.wait_until(lambda: "the old settings stay" in machine.journal())

    assert main_pid(machine) == before
    assert machine.answers()


def test_the_network_is_answered_with_a_token_that_systemd_hands_in(machine: Machine) -> None:
    """The drop-in as it ships: root keeps the token, strangers get 401, and the token is in no journal."""
    machine.run(f"umask 077 && echo {TOKEN} > /etc/memwatchd/token")
    shipped = machine.root / "usr/share/doc/memwatchd/drop-ins/network.conf"
    status = "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:6360/api/v1/processes"
    with dropped_in(machine, shipped.read_text()):
        machine.wait_until(machine.answers)

        assert machine.run(status) == "401"
        assert machine.run(f"{status} -H 'Authorization: Bearer {TOKEN}'") == "200"
        assert machine.run("curl --silent http://127.0.0.1:6360/healthz").startswith('{"status":"ok"')
        assert "00000000:18D8" in machine.run("cat /proc/net/tcp")
        assert TOKEN not in machine.run("journalctl --no-pager")
        assert TOKEN not in machine.run(f"tr '\\0' '\\n' < /proc/{main_pid(machine)}/environ")


def test_without_a_login_the_network_is_not_answered(machine: Machine) -> None:
    """An address for others and no login: it refuses to start, and says what would do."""
    with dropped_in(machine, "[Service]\nEnvironment=MEMWATCHD_LISTEN=0.0.0.0:6360\n"):
        assert machine.property_of("ExecMainStatus") == "78"
        assert "could read all figures" in machine.journal()


def test_stopping_is_quick_and_clean(machine: Machine) -> None:
    """With a stream open: SIGTERM, out within five seconds, code 0."""
    machine.run("curl --silent http://localhost:6360/api/v1/stream >/dev/null 2>&1 & sleep 1")
    begin = time.monotonic()
    machine.run("systemctl stop memwatchd")

    assert time.monotonic() - begin < 6
    assert machine.property_of("Result") == "success"
    assert machine.property_of("ExecMainStatus") == "0"
    machine.run("systemctl start memwatchd")


def test_an_upgrade_keeps_settings_and_state_and_runs_the_new_program(machine: Machine) -> None:
    """The same package with a higher version: a changed configuration stays, the daemon is another process."""
    machine.run("echo '# mine' >> /etc/memwatchd/memwatchd.toml && touch /var/lib/memwatchd/kept")
    machine.run("cd /root && dpkg-deb -R memwatchd.deb new && sed -i 's/^Version: .*/&+1/' new/DEBIAN/control")
    machine.run("cd /root && dpkg-deb -b -Znone new new.deb >/dev/null")
    before = main_pid(machine)

    machine.run("cd /root && apt-get install --yes ./new.deb </dev/null")

    replaced(machine, before)
    assert "# mine" in machine.run("cat /etc/memwatchd/memwatchd.toml")
    machine.run("test -e /var/lib/memwatchd/kept")
    assert machine.run("dpkg-query -W -f '${Version}' memwatchd").endswith("+1")


def test_manual_and_completions_are_there(machine: Machine) -> None:
    """Where man and the shells look; the completion of bash knows the options."""
    for page in ("man8/memwatchd.8", "man1/memwatch.1", "man5/memwatchd.toml.5"):
        machine.run(f"test -s /usr/share/man/{page}.gz")
    asked = "COMP_WORDS='memwatchd --in' COMP_CWORD=1 _MEMWATCHD_COMPLETE=bash_complete memwatchd"

    assert "plain,--insecure" in machine.run(asked)


@pytest.mark.parametrize("what", ["remove", "purge"])
def test_removing_leaves_settings_and_state_and_purging_nothing(machine: Machine, what: str) -> None:
    """Removed, it neither runs nor starts; purged, no file of it is left."""
    if what == "purge":
        machine.run("cp -a /root/new /opt/memwatchd")
    machine.run(f"apt-get {what} --yes memwatchd")

    assert not machine.answers()
    kept = machine.run("ls -d /etc/memwatchd /var/lib/memwatchd 2>/dev/null || true").split()
    assert kept == ([] if what == "purge" else ["/etc/memwatchd", "/var/lib/memwatchd"])
    found = machine.run("find /usr /lib /var/lib/systemd -path '*memwatchd*'").split()
    assert what != "purge" or found == []


def test_a_program_below_opt_makes_itself_a_service(machine: Machine) -> None:
    """install-service, twice (the second time there is nothing to do), and --uninstall."""
    program = "/opt/memwatchd/usr/bin/memwatchd"
    machine.run(f"sed -i '1s,.*,#!/opt/memwatchd/usr/lib/memwatchd/bin/python3 -I,' {program}")
    machine.run(f"{program} install-service")
    machine.wait_until(machine.answers)

    assert machine.run(f"{program} install-service") == "nothing to do\n"
    assert json.loads(machine.run("curl -s http://localhost:6360/healthz"))["status"] == "ok"
    machine.run(f"{program} install-service --uninstall")
    assert not machine.answers()
    assert machine.run("systemctl list-unit-files 'memwatchd*' --no-legend", check=False).strip() == ""
