"""Checks of the settings with the rights of the service: root reads what the user of the unit cannot.

The unit names its user and its credentials; `systemctl cat` prints it. Without systemd it is the account
memwatchd, which the package creates. Files elsewhere than the service's are checked with the rights of the caller.
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from memwatch.core.runtime.programs import find_program
from memwatch.core.runtime.regular_file import read_regular
from memwatchd.settings.credentials import CREDENTIALS
from memwatchd.settings.load import DEFAULT_FILE

UNIT, ACCOUNT = "memwatchd.service", "memwatchd"
KEYS = ("User", "LoadCredential", "LoadCredentialEncrypted", "ImportCredential")
SYSTEMCTL_SECONDS = DECRYPT_SECONDS = 10.0
# Where ImportCredential= looks, and the others for a name without a folder (systemd.exec(5)). Encrypted ones are in
# folders of the same names with ".encrypted".
STORES = ("/etc/credstore", "/run/credstore", "/usr/local/lib/credstore", "/usr/lib/credstore")
MAX_CREDENTIAL_BYTES = 1 << 20


class Credential(Struct, frozen=True):
    """The file of a credential."""

    path: Path
    is_encrypted: bool = False

    def read(self, name: str) -> bytes:
        """Return the credential, decrypted. Raises OSError or SubprocessError."""
        if not self.is_encrypted:
            return read_regular(self.path, MAX_CREDENTIAL_BYTES)
        program = find_program("systemd-creds").path
        if program is None:
            raise FileNotFoundError("systemd-creds")
        command = [program, "decrypt", f"--name={name}", str(self.path), "-"]
        return subprocess.run(command, capture_output=True, timeout=DECRYPT_SECONDS, check=True).stdout  # noqa: S603


class Service(Struct, frozen=True):
    """The account of the service, and its credentials by name."""

    account: pwd.struct_passwd
    credentials: Mapping[str, Credential] = {}


def is_of_service(file: str | None) -> bool:
    """Return True for a configuration file of the service. A draft elsewhere is for its owner's eyes."""
    return file is None or DEFAULT_FILE.parent in Path(file).resolve().parents


def find_service(ask: Callable[[], str]) -> Service | None:
    """Return the service whose rights the check needs: none unless root asks, or if it runs as root."""
    if os.geteuid() != 0 or CREDENTIALS in os.environ:
        return None
    unit = parse_unit(ask())
    name = next(reversed(unit["User"]), "root") if unit else ACCOUNT
    try:
        account = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        return None
    return None if account.pw_uid == 0 else Service(account, dict(list_credentials(unit)) if unit else {})


def ask_systemctl() -> str:
    """Return the unit with its drop-ins, "" without systemd or without the unit."""
    program = find_program("systemctl").path
    if program is None:
        return ""
    try:
        shown = subprocess.run(  # noqa: S603
            [program, "cat", UNIT], capture_output=True, timeout=SYSTEMCTL_SECONDS, check=True
        )
        return shown.stdout.decode()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""


def parse_unit(text: str) -> dict[str, list[str]]:
    """Return the values of `KEYS`, {} without a unit. An empty one drops those before it (systemd.syntax(7))."""
    found: dict[str, list[str]] = {key: [] for key in KEYS} if text else {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() in found:
            found[key.strip()] = [*found[key.strip()], value.strip()] if value.strip() else []
    return found


def list_credentials(unit: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, Credential]]:
    """Yield name and file of each credential of the unit."""
    for pattern in unit["ImportCredential"]:
        for store in reversed(STORES):
            for folder, is_encrypted in ((f"{store}.encrypted", True), (store, False)):
                with suppress(OSError):
                    names = fnmatch.filter(os.listdir(folder), pattern)
                    yield from ((name, Credential(Path(folder, name), is_encrypted)) for name in names)
    for key, suffix in (("LoadCredentialEncrypted", ".encrypted"), ("LoadCredential", "")):
        for one in unit[key]:
            name, _, path = one.partition(":")
            found = [f"{store}{suffix}/{path or name}" for store in STORES]
            file = path if path.startswith("/") else next(filter(os.path.exists, found), found[0])
            yield name, Credential(Path(file), bool(suffix))


def run_as_service(work: Callable[[], int]) -> int:
    """Return the exit code of `work`, which runs as the user of the service if root asks."""
    service = find_service(ask_systemctl)
    if service is None:
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix="memwatchd-check-") as folder:
        child = os.fork()
        if child == 0:
            os._exit(work_as(service, Path(folder), work))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def work_as(service: Service, folder: Path, work: Callable[[], int]) -> int:
    """Change to the user of the service, with its credentials, and work."""
    account = service.account
    try:
        if service.credentials:
            copy_credentials(service.credentials, folder, account.pw_uid)
            os.environ[CREDENTIALS] = str(folder)
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    except OSError as error:
        print(f"memwatchd: cannot check as the user {account.pw_name}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"memwatchd: checked as the user {account.pw_name} of the service", file=sys.stderr)
    code = work()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def copy_credentials(credentials: Mapping[str, Credential], folder: Path, uid: int) -> None:
    """Copy the credentials that can be read, as the service manager does: for the user of the service only.

    The folder is that user's when all files are in it: before, no other program can put a link there.
    """
    for name, credential in credentials.items():
        with suppress(OSError, subprocess.SubprocessError):
            data = credential.read(name)
            descriptor = os.open(folder / os.path.basename(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
            with open(descriptor, "wb") as copy:
                copy.write(data)
                os.fchown(descriptor, uid, -1)
    os.chown(folder, uid, -1)
