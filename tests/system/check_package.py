"""Test the Debian package on a real systemd: install, serve, kill, hang, sandbox, upgrade, remove, purge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from machine import Machine

SETTINGS = "/etc/memwatchd/memwatchd.toml"
DROP_IN = "/etc/systemd/system/memwatchd.service.d"
TOKEN = "0123456789abcdef0123456789abcdef"
HOOK_SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="  # the alphabet


def main_pid(machine: Machine) -> int:
    return int(machine.property_of("MainPID"))


def wait_for_another_process(machine: Machine, before: int) -> float:
    """Return the seconds until another process answers."""
    return machine.wait_until(lambda: main_pid(machine) not in (0, before) and machine.answers(), 30)


def test_installed_package_starts_as_documented(machine: Machine) -> None:
    """apt install, systemctl start, curl: the daemon is ready, and memwatch shows this machine."""
    machine.run("cd /root && apt-get install --yes ./memwatchd.deb")
    machine.run("systemctl start memwatchd")

    assert '"ok"' in machine.run("curl --fail --silent http://localhost:6360/readyz")
    assert "System RAM" in machine.run("memwatch status")
    assert machine.property_of("UnitFileState") == "enabled"
    assert machine.property_of("Type") == "notify"
    machine.wait_until(lambda: machine.property_of("StatusText").startswith("System RAM "))


def test_modules_and_templates_are_compiled_at_installation(machine: Machine) -> None:
    """The service cannot write there, so missing files would be compiled at every start."""
    templates = "find /usr/lib/memwatchd -path '*/memwatch_web/templates/compiled/__pycache__/*' -perm -o=r"
    modules = "find /usr/lib/memwatchd -path '*/memwatch_web/pages/__pycache__/*' -perm -o=r"

    assert len(machine.run(templates).split()) >= 10
    assert len(machine.run(modules).split()) >= 10


def test_only_loopback_is_served_by_default(machine: Machine) -> None:
    """After installation the only listening socket is 127.0.0.1:6360 (0x18D8)."""
    sockets = machine.run("cat /proc/net/tcp /proc/net/tcp6").splitlines()
    listening = [line.split()[1] for line in sockets if " 0A " in line]

    assert listening == ["0100007F:18D8"]


def test_service_is_unprivileged(machine: Machine) -> None:
    """Its own user, no capabilities, no new privileges, filtered system calls, a read-only file system."""
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


def test_systemd_rates_the_exposure_as_low(machine: Machine) -> None:
    """The score of the running unit, not of the unit file."""
    (score,) = re.findall(
        r"level for memwatchd.service: ([0-9.]+)", machine.run("systemd-analyze security memwatchd")
    )

    assert float(score) <= 2.0


def test_service_runs_in_its_own_slice(machine: Machine) -> None:
    """MemoryMin= takes effect only if every parent cgroup reserves memory as well."""
    assert machine.property_of("ControlGroup") == "/memwatchd.slice/memwatchd.service"
    assert machine.property_of("MemoryMin") == str(96 << 20)
    assert machine.run("systemctl show --value --property=MemoryMin memwatchd.slice").strip() == str(128 << 20)


def test_killed_daemon_restarts_within_seconds(machine: Machine) -> None:
    """kill -9 six times in a row: no start limit stops it."""
    for _ in range(6):
        before = main_pid(machine)
        machine.run(f"kill -9 {before}")

        assert wait_for_another_process(machine, before) < 10  # RestartSec is 2 s, and this machine may be busy
    assert int(machine.property_of("NRestarts")) >= 6


@contextmanager
def drop_in(machine: Machine, text: str) -> Iterator[None]:
    """Add these lines to the unit while the block runs."""
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
    """Use this configuration while the block runs."""
    machine.run(f"cp {SETTINGS} /root/kept")
    (machine.root / SETTINGS.lstrip("/")).write_text(text)
    try:
        yield
    finally:
        machine.run(f"cp /root/kept {SETTINGS}")


def test_hung_daemon_is_killed_and_restarted(machine: Machine) -> None:
    """A stalled loop sends no watchdog notification. The timeout is shortened from 30 s to 3 s here."""
    with drop_in(machine, "[Service]\nWatchdogSec=3\n"):
        machine.wait_until(machine.answers)
        before = main_pid(machine)
        machine.run(f"kill -STOP {before}")

        wait_for_another_process(machine, before)

        assert "watchdog" in machine.run("journalctl -u memwatchd --no-pager | tail -n 100")


def test_first_configuration_that_is_bad_is_named_and_not_retried(machine: Machine) -> None:
    """Exit code 78, once; the journal names the key. A corrected configuration starts again."""
    machine.run("rm /var/lib/memwatchd/configuration.json")
    with settings(machine, "nonsense = 1\n"):
        machine.run("systemctl restart memwatchd", check=False)
        time.sleep(4)

        assert machine.property_of("ActiveState") == "failed"
        assert machine.property_of("ExecMainStatus") == "78"
        assert "nonsense is not a setting" in machine.journal()
    machine.run("systemctl restart memwatchd")
    machine.wait_until(machine.answers)


def test_restart_with_a_bad_configuration_watches_with_the_one_of_before(machine: Machine) -> None:
    with settings(machine, "nonsense = 1\n"):
        machine.run("systemctl restart memwatchd")
        machine.wait_until(machine.answers)
        machine.wait_until(lambda: "configuration not in force" in machine.property_of("StatusText"))

        assert "nonsense is not a setting" in machine.run("memwatch doctor", check=False)
        assert "memwatch_config_problems 1" in machine.run("curl --silent http://127.0.0.1:6360/metrics")
    machine.run("systemctl reload memwatchd")
    machine.wait_until(lambda: "not in force" not in machine.property_of("StatusText"))


def test_secret_that_the_service_cannot_read_switches_one_receiver_off(
    machine: Machine,
) -> None:
    """The check of root has the eyes of the service, and the daemon runs without that receiver."""
    hook = '[[alerts.webhooks]]\nname = "ops"\nurl = "http://127.0.0.1:9/"\nsecret = "file:/etc/memwatchd/hook"\n'
    machine.run(f"umask 077; echo {HOOK_SECRET} > /etc/memwatchd/hook")
    with settings(machine, hook):
        checked = machine.run("memwatchd --check-config || echo refused", check=False)
        machine.run("systemctl restart memwatchd")
        machine.wait_until(machine.answers)
        doctor = machine.run("memwatch doctor", check=False)
        machine.run("chown root:memwatchd /etc/memwatchd/hook && chmod 640 /etc/memwatchd/hook")
        machine.run("memwatchd --check-config")
        machine.run("systemctl reload memwatchd")
        machine.wait_until(lambda: "not in force" not in machine.property_of("StatusText"))
    machine.run("rm /etc/memwatchd/hook")
    machine.run("systemctl restart memwatchd")

    assert "checked as the user memwatchd of the service" in checked
    assert "Permission denied" in checked
    assert "refused" in checked
    assert 'receiver "ops" is off' in doctor


def test_credential_that_is_missing_does_not_stop_the_service(machine: Machine) -> None:
    """As the shipped drop-in loads it: systemd alone would refuse to start the unit."""
    shipped = (machine.root / "usr/share/doc/memwatchd/drop-ins/webhook-secret.conf").read_text()
    hook = '[[alerts.webhooks]]\nname = "ops"\nurl = "http://127.0.0.1:9/"\nsecret = "credential:webhook"\n'
    with settings(machine, hook), drop_in(machine, shipped):
        machine.wait_until(machine.answers)
        without = machine.run("memwatch doctor", check=False)
        machine.run(f"umask 077; echo {HOOK_SECRET} > /etc/memwatchd/webhook-secret")
        machine.run("memwatchd --check-config")
        machine.run("systemctl restart memwatchd")
        machine.wait_until(machine.answers)
        with_it = machine.run("memwatch doctor", check=False)
    machine.run("rm /etc/memwatchd/webhook-secret")

    assert 'receiver "ops" is off' in without
    assert "is off" not in with_it


def test_reload_of_bad_settings_fails_and_keeps_the_old_ones(machine: Machine) -> None:
    """systemctl reload fails, the process continues, and the journal names the reason."""
    before = main_pid(machine)
    with settings(machine, "[pressure]\nmedium_percent = 99\n"):
        ended = machine.run("systemctl reload memwatchd || echo failed", check=False)
        machine.wait_until(lambda: "reload failed, keeping the old settings: " in machine.journal())
    machine.run("systemctl reload memwatchd")

    assert "failed" in ended
    assert main_pid(machine) == before
    assert machine.answers()


def test_network_clients_need_the_token_of_the_drop_in(machine: Machine) -> None:
    """The shipped drop-in: root keeps the token, other clients get 401, and the token is in no journal."""
    machine.run(f"umask 077 && echo {TOKEN} > /etc/memwatchd/token")
    shipped = machine.root / "usr/share/doc/memwatchd/drop-ins/network.conf"
    status = "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:6360/api/v1/processes"
    with drop_in(machine, shipped.read_text()):
        machine.wait_until(machine.answers)

        assert machine.run(status) == "401"
        assert machine.run(f"{status} -H 'Authorization: Bearer {TOKEN}'") == "200"
        assert machine.run("curl --silent http://127.0.0.1:6360/healthz").startswith('{"status":"ok"')
        assert "00000000:18D8" in machine.run("cat /proc/net/tcp")
        assert TOKEN not in machine.run("journalctl --no-pager")
        assert TOKEN not in machine.run(f"tr '\\0' '\\n' < /proc/{main_pid(machine)}/environ")


def test_jetson_drop_in_shows_only_nvmaps_folder_of_debugfs(machine: Machine) -> None:
    """The shipped drop-in with a stand-in for debugfs: NvMap's table is readable, the files beside it are not."""
    shipped = machine.root / "usr/share/doc/memwatchd/drop-ins/jetson.conf"
    debugfs = "/sys/kernel/debug"
    machine.run(
        f"mount -t tmpfs -o mode=0700 tmpfs {debugfs} && mkdir -p {debugfs}/nvmap/iovmm"
        f" && echo table > {debugfs}/nvmap/iovmm/clients && echo secret > {debugfs}/other"
    )
    try:
        with drop_in(machine, shipped.read_text()):
            pid = main_pid(machine)
            inside = f"nsenter --target {pid} --mount setpriv --reuid=memwatchd --regid=memwatchd --clear-groups "

            assert machine.run(inside + f"cat {debugfs}/iovmm/clients") == "table\n"
            assert machine.run(inside + f"ls {debugfs}") == "iovmm\n"
            assert "Read-only" in machine.run(inside + f"touch {debugfs}/iovmm/x", check=False)
            assert "CapEff:\t0000000000000000" in machine.run(f"cat /proc/{pid}/status")
            assert "Permission denied" in machine.run(inside + "cat /etc/shadow", check=False)
    finally:
        machine.run(f"umount {debugfs}")


def test_remote_address_without_a_login_is_served_to_this_machine_only(machine: Machine) -> None:
    """With an address for other machines and no login, none of them has access, and the journal gives the fix."""
    with drop_in(machine, "[Service]\nEnvironment=MEMWATCHD_LISTEN=0.0.0.0:6360\n"):
        machine.wait_until(machine.answers)
        sockets = machine.run("cat /proc/net/tcp /proc/net/tcp6").splitlines()
        assert [line.split()[1] for line in sockets if " 0A " in line] == ["0100007F:18D8"]
        assert "could read all data without a login" in machine.journal()


def test_stop_with_an_open_stream_is_quick_and_clean(machine: Machine) -> None:
    """SIGTERM ends the daemon within five seconds with code 0."""
    machine.run("curl --silent http://localhost:6360/api/v1/stream >/dev/null 2>&1 & sleep 1")
    begin = time.monotonic()
    machine.run("systemctl stop memwatchd")

    assert time.monotonic() - begin < 6
    assert machine.property_of("Result") == "success"
    assert machine.property_of("ExecMainStatus") == "0"
    machine.run("systemctl start memwatchd")


def test_upgrade_keeps_settings_and_state_and_restarts(machine: Machine) -> None:
    """The same package with a higher version: an edited configuration stays, and the daemon is a new process."""
    machine.run("echo '# mine' >> /etc/memwatchd/memwatchd.toml && touch /var/lib/memwatchd/kept")
    machine.run("cd /root && dpkg-deb -R memwatchd.deb new && sed -i 's/^Version: .*/&+1/' new/DEBIAN/control")
    machine.run("cd /root && dpkg-deb -b -Znone new new.deb >/dev/null")
    before = main_pid(machine)

    machine.run("cd /root && apt-get install --yes ./new.deb </dev/null")

    wait_for_another_process(machine, before)
    assert "# mine" in machine.run("cat /etc/memwatchd/memwatchd.toml")
    machine.run("test -e /var/lib/memwatchd/kept")
    assert machine.run("dpkg-query -W -f '${Version}' memwatchd").endswith("+1")


def test_manual_pages_and_completions_are_installed(machine: Machine) -> None:
    """In the folders of man and the shells; the completion for bash lists the options."""
    for page in ("man8/memwatchd.8", "man1/memwatch.1", "man5/memwatchd.toml.5"):
        machine.run(f"test -s /usr/share/man/{page}.gz")
    completion = "COMP_WORDS='memwatchd --in' COMP_CWORD=1 _MEMWATCHD_COMPLETE=bash_complete memwatchd"

    assert "plain,--insecure" in machine.run(completion)


@pytest.mark.parametrize("what", ["remove", "purge"])
def test_remove_keeps_settings_and_state_and_purge_deletes_them(machine: Machine, what: str) -> None:
    """After remove the daemon is stopped; after purge none of its files is left."""
    if what == "purge":
        machine.run("cp -a /root/new /opt/memwatchd")
    machine.run(f"apt-get {what} --yes memwatchd")

    assert not machine.answers()
    kept = machine.run("ls -d /etc/memwatchd /var/lib/memwatchd 2>/dev/null || true").split()
    assert kept == ([] if what == "purge" else ["/etc/memwatchd", "/var/lib/memwatchd"])
    found = machine.run("find /usr /lib /var/lib/systemd -path '*memwatchd*'").split()
    assert what != "purge" or found == []


def test_program_below_opt_becomes_a_service(machine: Machine) -> None:
    """By the lines of the page, with the folder of the package in place of that of a virtual environment."""
    program = "/opt/memwatchd/usr/bin/memwatchd"
    machine.run("ln -sf /usr/bin/python3 /opt/memwatchd/usr/lib/memwatchd/bin/python3")  # a relative link there
    machine.run(f"sed -i '1s,.*,#!/opt/memwatchd/usr/lib/memwatchd/bin/python3 -I,' {program}")
    page = Path(__file__).parents[2] / "docs/start/install.md"
    (lines,) = re.findall(r"^cd (/opt/.+?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    unit = lines.partition("\n")[2].replace("sudo ", "").replace("/opt/memwatchd/bin/memwatchd", program)
    machine.run(f"set -e\ncd /opt/memwatchd/usr/share/memwatchd/systemd\n{unit}")
    machine.wait_until(machine.answers)

    assert json.loads(machine.run("curl -s http://localhost:6360/healthz"))["status"] == "ok"
    machine.run("systemctl disable --now memwatchd && rm /etc/systemd/system/memwatchd.s*")
    assert not machine.answers()
