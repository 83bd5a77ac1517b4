"""Break the configuration of the installed service in every way of the table, in turn: it watches, and says why.

Each way: a reload fails with the sentence, a restart runs, no one else has access, and a mended file clears all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from machine import Machine
from support.broken_configurations import BREAKAGES, Breakage, good

FOLDER = Path("/etc/memwatchd")
SOCKET = "/run/memwatchd/memwatchd.sock"
ANYWHERE, HERE = "00000000:18D8", "0100007F:18D8"
NOT_IN_FORCE = "configuration not in force"
LISTEN = ('"127.0.0.1:0"', f'"0.0.0.0:6360", "unix:{SOCKET}"')
DROP_IN = Path("/etc/systemd/system/memwatchd.service.d/test.conf")
# Prints what an operator can see once the Status line has $1, or has not with "!".
LOOK = f"""
for _ in $(seq 200); do
    status=$(systemctl show --value -p StatusText memwatchd)
    case "$1$status" in "!"*"{NOT_IN_FORCE}"* | "!") ;; "!"* | *"{NOT_IN_FORCE}"*) break ;; esac
    sleep 0.1
done
systemctl show --value -p ActiveState memwatchd
echo "$status"
curl -s -o /dev/null -w '%{{http_code}}\\n' http://127.0.0.1:6360/api/v1/processes
stat -c '%a %U %G' {SOCKET}
echo $(awk '$4 == "0A" {{ print $2 }}' /proc/net/tcp /proc/net/tcp6)
curl -s --unix-socket {SOCKET} http://localhost/metrics \\
    | awk '$1 == "memwatch_config_problems" {{ found = $2 }} END {{ print found }}'
test "$1" || memwatch doctor
"""


class Seen(Struct, frozen=True):
    """State of the service as an operator sees it. `code`: of a request without a login.

    `socket`: mode and owner of its file. `doctor`: if something is wrong.
    """

    active: str
    status: str
    code: str
    socket: str
    listening: str
    problems: int
    doctor: str


class Service(Struct, frozen=True):
    """The service with a good configuration, which a test may break."""

    machine: Machine
    before: Seen

    def write(self, text: str, mode: int = 0o644) -> None:
        """Write the configuration, "" for none."""
        file = inside(self.machine, FOLDER / "memwatchd.toml")
        file.unlink(missing_ok=True)
        if text:
            file.write_text(adapt(self.machine, text), errors="surrogateescape")
            file.chmod(mode)

    def mend(self) -> None:
        restore(self.machine)

    def run(self, action: str) -> str:
        """Return the output of systemctl, and why it failed."""
        return self.machine.run(f"systemctl {action} memwatchd || echo failed", check=False)


def inside(machine: Machine, path: Path) -> Path:
    return machine.root / path.relative_to("/")


def adapt(machine: Machine, text: str) -> str:
    """Return a text of the table with the paths and the addresses of the service."""
    return text.replace(str(machine.root), "").replace(*LISTEN)


def look(machine: Machine, is_good: bool = False) -> Seen:
    """Return what an operator sees once the Status line is that of a good or of a broken configuration."""
    shown = machine.run(f"set -- '{'!' if is_good else ''}'\n{LOOK}", check=False)
    active, status, code, socket, listening, problems, doctor = shown.split("\n", 6)
    return Seen(active, status, code, socket, listening, int(float(problems or -1)), doctor)


def restore(machine: Machine) -> None:
    """Write the good configuration and its files, which the group of the service may read."""
    folder, group = inside(machine, FOLDER), int(machine.run("id -g memwatchd"))
    for name in ("token", "secret"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        path.touch()
        os.chown(path, 0, group)
        path.chmod(0o640)
    text = good(folder)
    (folder / "memwatchd.toml").write_text(adapt(machine, text))
    (folder / "memwatchd.toml").chmod(0o644)


@pytest.fixture(scope="module")
def started(installed: Machine) -> Iterator[Service]:
    shipped = inside(installed, FOLDER / "memwatchd.toml").read_bytes()
    restore(installed)
    installed.run("systemctl restart memwatchd")
    yield Service(installed, look(installed, is_good=True))
    inside(installed, FOLDER / "memwatchd.toml").write_bytes(shipped)
    installed.run(f"rm -rf {FOLDER}/token {FOLDER}/secret; systemctl restart memwatchd")
    installed.wait_until(installed.answers)


@pytest.fixture
def service(started: Service) -> Iterator[Service]:
    """Give each test the good configuration in force."""
    yield started
    started.mend()
    inside(started.machine, DROP_IN).unlink(missing_ok=True)
    if NOT_IN_FORCE in started.machine.property_of("StatusText"):
        started.machine.run("systemctl daemon-reload; systemctl restart memwatchd")
        look(started.machine, is_good=True)


def assert_watched(service: Service, seen: Seen, says: str, is_closed: bool = False) -> None:
    """The service runs, each place says that something is wrong, and no one else has access."""
    assert seen.active == "active"
    assert NOT_IN_FORCE in seen.status
    assert says in seen.doctor
    assert seen.problems >= 1
    assert seen.code == service.before.code == "401"
    assert seen.socket == service.before.socket
    assert seen.listening == (HERE if is_closed else ANYWHERE)


def test_good_configuration_is_in_force(started: Service) -> None:
    seen = started.before

    assert (seen.active, seen.problems, seen.listening) == ("active", 0, ANYWHERE)
    assert seen.socket == "660 memwatchd memwatchd"


@pytest.mark.parametrize("broken", BREAKAGES, ids=lambda one: one.name)
def test_service_watches_and_says_what_is_not_in_force(service: Service, broken: Breakage) -> None:
    machine = service.machine
    service.write(broken.apply(inside(machine, FOLDER)), broken.mode)
    if broken.environ:
        lines = "".join(f"Environment={name}={value}\n" for name, value in broken.environ.items())
        use_drop_in(machine, f"[Service]\n{lines}")
    elif not broken.is_of_start:
        assert "failed" in service.run("reload")
        assert_watched(service, look(machine), "a reload was refused: ")

    assert service.run("restart") == ""
    assert_watched(service, look(machine), broken.says, broken.closes_access)

    service.mend()
    if not broken.environ:
        assert service.run("reload") == ""
        seen = look(machine, is_good=not broken.lasts)
        assert (seen.problems > 0) == broken.lasts


def use_drop_in(machine: Machine, text: str) -> None:
    """Add these lines to the unit. The fixture `service` removes them."""
    inside(machine, DROP_IN).parent.mkdir(parents=True, exist_ok=True)
    inside(machine, DROP_IN).write_text(text)
    machine.run("systemctl daemon-reload")


def test_full_disk_of_the_state_folder(service: Service) -> None:
    """A changed configuration is in force, but cannot be kept for the next start: that is said until it is."""
    machine, folder = service.machine, "/var/lib/memwatchd"
    machine.run(f"mount -t tmpfs -o size=64k,mode=700,uid=$(id -u memwatchd) tmpfs {folder}")
    try:
        machine.run(f"head -c 1M /dev/zero > {folder}/filler || true")
        assert service.run("restart") == ""
        assert_watched(service, look(machine), "cannot be kept for a start with a refused one: No space left")
        machine.run(f"rm {folder}/filler")
        assert service.run("reload") == ""
        assert look(machine, is_good=True).problems == 0
    finally:
        machine.run(f"umount -l {folder}")
    machine.run("systemctl restart memwatchd")


def test_state_folder_of_another_user_is_mended_by_systemd(service: Service) -> None:
    service.machine.run("chown -R root:root /var/lib/memwatchd && chmod 755 /var/lib/memwatchd")

    assert service.run("restart") == ""
    seen = look(service.machine, is_good=True)
    assert (seen.active, seen.problems) == ("active", 0)
    assert service.machine.run("stat -c '%a %U' /var/lib/memwatchd") == "700 memwatchd\n"


def test_file_in_place_of_the_state_folder_is_retried_until_it_is_mended(service: Service) -> None:
    """No setting of memwatchd can help: systemd does not start a unit without its StateDirectory=."""
    machine = service.machine
    machine.run("mv /var/lib/memwatchd /root/state && touch /var/lib/memwatchd")
    try:
        machine.run("systemctl restart memwatchd", check=False)
        assert machine.property_of("ExecMainStatus") == "238"
        assert "STATE_DIRECTORY" in machine.run("systemctl status memwatchd", check=False)
    finally:
        machine.run("rm /var/lib/memwatchd && mv /root/state /var/lib/memwatchd")
    machine.wait_until(machine.answers)  # without a command


CREDENTIAL = "SetCredential=webhook:missing\n"
ENCRYPTED = f"[Service]\nLoadCredentialEncrypted=webhook:{FOLDER}/webhook.cred\n{CREDENTIAL}"


def test_encrypted_secret_is_used_and_checked(service: Service) -> None:
    """As the page has it. Without the file, its receiver is off."""
    machine = service.machine
    secret, configuration = (inside(machine, FOLDER / name) for name in ("secret", "memwatchd.toml"))
    machine.run(f"systemd-creds encrypt --with-key=host --name=webhook {FOLDER}/secret {FOLDER}/webhook.cred")
    secret.unlink()
    service.write(configuration.read_text().replace(f"file:{FOLDER}/secret", "credential:webhook"))
    use_drop_in(machine, ENCRYPTED)
    try:
        assert service.run("restart") == ""
        assert look(machine, is_good=True).problems == 0
        assert "checked as the user memwatchd" in machine.run("memwatchd --check-config")
    finally:
        machine.run(f"rm {FOLDER}/webhook.cred")
    assert service.run("restart") == ""
    assert_watched(service, look(machine), 'receiver "ops" is off')
    assert "refused" in machine.run("memwatchd --check-config || echo refused", check=False)


def test_encrypted_secret_of_another_machine_stops_the_service_until_it_is_removed(service: Service) -> None:
    """systemd refuses the start before memwatchd: the page says so, and what to do."""
    machine = service.machine
    machine.run(f"head -c 300 /dev/urandom | base64 > {FOLDER}/webhook.cred")
    use_drop_in(machine, ENCRYPTED)
    try:
        machine.run("systemctl restart memwatchd", check=False)
        assert machine.property_of("ExecMainStatus") == "243"
    finally:
        machine.run(f"rm {FOLDER}/webhook.cred")
    machine.wait_until(machine.answers)  # without a command
