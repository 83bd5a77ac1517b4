"""Redaction of a report: names, addresses and ids in text, and the content of a file by its kind."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memwatch.core.linux.cgroups import RUNTIME_FOLDERS
from memwatch.core.redaction import redact_text
from memwatch.reporting.recording import MIN_NAME_LENGTH, Redactor
from memwatch.reporting.report.sources import Kind

Json = Any

_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}([-_])(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
# Not the version of a kernel: 5.15.153.1-microsoft-standard-WSL2.
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d|-microsoft)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]*:[0-9A-Fa-f]*:)[0-9A-Fa-f:]{2,39}(?![\w:])")
# Ids of containers and machines, and short ids, which docker uses as host names. Figures have no letters.
_LONG_ID = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{32,128}|(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{12})(?![0-9A-Za-z])"
)
_HOME = re.compile(r"(/(?:home|Users|export/home|data/home|mnt/home|var/home)/)([^/\s:\"']+)")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
# System users of every machine. Replacing them in sentences would hide nothing.
PUBLIC_USERS = frozenset({"root", "daemon", "nobody", "bin", "sys", "memwatchd", "systemd"})
# Of ids of users that belong to people.
MIN_PERSON, FIRST_PERSON = 1000, 1001
_NOBODY = frozenset({65534, 65535, 0xFFFFFFFF})


class TextRedactor:
    """Redacts text. `counts` has the number of different values that were replaced, by kind."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor: Redactor = redactor
        redactor.keep("user", PUBLIC_USERS)
        self._numbers: dict[tuple[str, str], int] = {}
        self._names: dict[str, str] = {}
        self._people: dict[int, int] = {}
        self._folders: dict[str, str] = {}

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(self.redactor.hidden_counts)
        found.update(kind for kind, _ in self._numbers)
        if self._people:
            found["uid"] = len(self._people)
        return dict(found)

    def add_names(self, kind: str, names: Iterable[str]) -> None:
        """Replace these names (hosts, users) wherever they are a word."""
        for name in names:
            if len(name) >= MIN_NAME_LENGTH - 1 and name not in PUBLIC_USERS:
                self._names[name] = self.redactor.word(kind, name)

    def add_folder(self, folder: str, shown: str) -> None:
        """Replace a path at the beginning of others, such as that of a container's mount of the host's /proc."""
        if len(folder) > 1 and folder != shown:
            self._folders[folder] = shown

    def number(self, kind: str, value: str) -> int:
        """Return the number of a value among those of its kind, from 1."""
        known = sum(name == kind for name, _ in self._numbers)
        return self._numbers.setdefault((kind, value), known + 1)

    def uid(self, uid: int) -> int:
        """Return the number that replaces a user's or group's id. Those of the system stay."""
        if uid < MIN_PERSON or uid in _NOBODY:
            return uid
        return self._people.setdefault(uid, FIRST_PERSON + len(self._people))

    def text(self, text: str) -> str:
        """Return the text with placeholders. UUIDs and hexadecimal ids keep their format, as parsers need it."""
        for folder, shown in self._folders.items():
            text = text.replace(folder, shown)
        text = redact_text(text)
        text = _MAIL.sub(lambda found: f"mail-{self.number('mail', found[0])}", text)
        text = _HOME.sub(lambda found: found[1] + self.redactor.word("user", found[2]), text)
        text = _UUID.sub(lambda found: self.uuid(found[0], found[1]), text)
        text = _MAC.sub(lambda found: f"mac-{self.number('mac', found[0].lower())}", text)
        text = _IPV4.sub(lambda found: self._address(found[0]), text)
        text = _IPV6.sub(lambda found: self._address(found[0]), text)
        text = _LONG_ID.sub(lambda found: self.hexadecimal(found[0]), text)
        return self._without_names(text)

    def uuid(self, value: str, mark: str = "-") -> str:
        digits = f"{self.number('uuid', value.replace(mark, '-').lower()):032x}"
        return mark.join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def hexadecimal(self, value: str) -> str:
        """Return a hexadecimal number with as many digits."""
        return f"{self.number('id', value.lower()):0{len(value)}x}"

    def tree(self, value: Json) -> Json:
        """Return JSON with every string redacted, keys included."""
        if isinstance(value, dict):
            return {self.text(str(name)): self.tree(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.tree(part) for part in value]
        return self.text(value) if isinstance(value, str) else value

    def _address(self, text: str) -> str:
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if found.is_loopback or found.is_unspecified else f"ip-{self.number('ip', str(found))}"

    def _without_names(self, text: str) -> str:
        if not self._names:
            return text
        longest_first = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in longest_first)
        return re.sub(pattern, lambda found: self._names[found[0]], text)


Rule = Callable[[TextRedactor, str], str]

# Fields of /proc/PID/status that are figures, and those that are process or user ids.
_STATUS_FIGURES = re.compile(r"(?:Vm|Rss|Huge)\w+|State|Threads|Kthread|CoreDumping")
_STATUS_PIDS = frozenset({"Pid", "PPid", "Tgid", "NSpid", "NStgid"})
_STATUS_UIDS = frozenset({"Uid", "Gid"})
# Fields of /proc/PID/stat after the name that are process ids: parent, group, session, group in the foreground.
_STAT_PIDS = frozenset({1, 2, 3, 5})
# From the address of the code on, nothing is read: addresses, signals, exit code.
_STAT_ADDRESSES = 23
# Figures, of any driver. A program names itself in drm-client-name.
_FDINFO = re.compile(
    r"(?!drm-client-name)[a-z][a-z0-9_-]{0,63}:\s+[0-9][0-9A-Za-z:. ]{0,40}|drm-driver:\t[a-z0-9_]{1,32}"
)
_BOOT_OPTION = re.compile(
    r"(?:psi|mem|memmap|hugepages|hugepagesz|default_hugepagesz|transparent_hugepage|zswap\.\w+|cma|numa\w*|"
    r"iommu|intel_iommu|amd_iommu|swiotlb|cgroup_\w+|systemd\.unified_cgroup_hierarchy|nomodeset|quiet|ro|"
    r"(?:amdgpu|ttm|amdttm|nvidia|nouveau|i915|xe|nvgpu)\.\w+)(?:=[A-Za-z0-9_.,:+@-]{0,32})?"
)
_CONTAINER = re.compile(r"(?:^|\0)(container=[a-z][a-z0-9-]{0,31})(?=\0|$)")
_MOUNTS = frozenset({"cgroup", "cgroup2", "proc", "sysfs", "debugfs", "tracefs", "fuse.lxcfs", "devtmpfs"})
_MOUNT_OPTION = re.compile(r"(?:rw|ro|nosuid|nodev|noexec|relatime|noatime|hidepid=\w+|gid=\d+|subset=pid|mode=\d+|"
    r"nsdelegate|memory_recursiveprot|[a-z_]{1,12}|name=systemd|\w{1,12}=\d{1,12}k?)")  # fmt: skip
_DISTRIBUTION = re.compile(r"(?:ID|ID_LIKE|VERSION_ID|VERSION_CODENAME|VARIANT_ID)=\"?[A-Za-z0-9 ._-]{0,40}\"?")
KTHREADD = "kthreadd"
_SERIAL_PROPERTIES = frozenset({"unique_id", "hive_id"})
_KEPT_PARTS = re.compile(
    r"(?:system|user|machine|app|session|background|kubepods(?:-burstable|-besteffort)?|-)\.slice|init\.scope|"
    r"(?:cpu|cpuacct|cpuset|devices|freezer|blkio|pids|systemd|hugetlb|net_cls|net_prio|perf_event|rdma|misc|,)+|"
    r"(?:docker|lxc|kubepods|burstable|besteffort|slurm|system|unified|memory|\.\.|\.)|slurmstepd\.scope|"
    r"pbs\w{0,16}\.(?:service|slice)|jobid|jobs|torque|lsf|htcondor|"
    r"session-c?\d+\.scope|(?:step|task)_\d+|(?:memwatchd|docker|containerd)\.service"
)
_CONTAINER_PART = re.compile(r"((?:[a-z]+-)*)([0-9a-f]{64})(\.scope)?")
_POD_PART = re.compile(r"((?:kubepods-)?(?:burstable-|besteffort-)?pod)([0-9a-fA-F_-]{32,36})(\.slice)?")
_UID_PART = re.compile(r"(user[-@]|uid_)(\d{1,10})(\.slice|\.service)?")
_LXC_PART = re.compile(r"lxc\.(payload|monitor)\.(.+)")
# Forms of `cgroup_jobs`: what follows the number names a server or is another number.
_JOB_PART = re.compile(
    r"(?!.*\.(?:service|scope)\Z)(job_|job\.|pbs\w{0,16}-|)(\d{1,20})(\[\d{1,9}\])?(?:\..*?)?(\.slice)?"
)
_SLOT_PART = re.compile(r"condor_.*_slot(\d{1,9}(?:_\d{1,9})?)(?:@.*)?")
_UNIT_SUFFIX = re.compile(r".*(\.(?:service|scope|slice|socket|mount|swap))")


def redact_file(kind: Kind, data: bytes, names: TextRedactor) -> bytes:
    """Return the redacted content. Bytes that are not UTF-8 are escaped, except in files of figures."""
    if kind is Kind.FIGURES:
        return data
    if kind in (Kind.PRESENCE, Kind.LINK):
        return b""
    return _RULES[kind](names, data.decode("utf-8", "backslashreplace")).encode()


def redact_path(path: str, names: TextRedactor) -> str:
    """Return a path below proc, sys or root with the names of cgroups and the ids of processes replaced."""
    parts = path.split("/")
    if parts[0] == "proc" and parts[1].isdecimal():
        parts[1] = str(names.redactor.pid(int(parts[1])))
    elif path.startswith("sys/fs/cgroup/"):
        parts[3:-1] = [cgroup_part(names, part) for part in parts[3:-1]]
    elif path.startswith("sys/class/kfd/kfd/proc/"):
        parts[5] = str(names.redactor.pid(int(parts[5])))
    return "/".join(parts)


def cgroup_part(names: TextRedactor, part: str) -> str:
    """Redact one name of a cgroup path, in the format that tells the kind of its owner."""
    if not part or _KEPT_PARTS.fullmatch(part):
        return part
    if found := _CONTAINER_PART.fullmatch(part):
        return f"{found[1]}{names.hexadecimal(found[2])}{found[3] or ''}"
    if found := _POD_PART.fullmatch(part):
        mark = "_" if "_" in found[2] else "-" if "-" in found[2] else ""
        pod = names.uuid(found[2], mark) if mark else names.hexadecimal(found[2])
        return f"{found[1]}{pod}{found[3] or ''}"
    if found := _UID_PART.fullmatch(part):
        return f"{found[1]}{names.uid(int(found[2]))}{found[3] or ''}"
    if found := _LXC_PART.fullmatch(part):
        return f"lxc.{found[1]}.{names.redactor.word('container', found[2])}"
    if found := _JOB_PART.fullmatch(part):
        return f"{found[1]}{names.number('job', found[2])}{found[3] or ''}{found[4] or ''}"
    if found := _SLOT_PART.fullmatch(part):
        return f"condor_execute_slot{names.number('slot', found[1])}"
    if found := _UNIT_SUFFIX.fullmatch(part):
        return names.redactor.word("unit", part) + found[1]
    return names.redactor.word("cgroup", part)


def cgroup_path(names: TextRedactor, path: str) -> str:
    return "/".join(cgroup_part(names, part) for part in path.split("/"))


def _lines(text: str, change: Callable[[str], str | None]) -> str:
    """Change each line, or leave it out if there is None."""
    found = [change(line) for line in text.splitlines()]
    return "".join(f"{line}\n" for line in found if line is not None)


def _kept(pattern: re.Pattern[str]) -> Rule:
    """Return a rule that keeps the lines that match as a whole."""
    return lambda _names, text: _lines(text, lambda line: line if pattern.fullmatch(line) else None)


def _host(names: TextRedactor, text: str) -> str:
    return names.redactor.word("host", text.strip()) + "\n"


def _boot(names: TextRedactor, text: str) -> str:
    return names.uuid(text.strip()) + "\n"


def _serial(names: TextRedactor, text: str) -> str:
    return names.hexadecimal(text.strip()) + "\n"


def _boot_options(_names: TextRedactor, text: str) -> str:
    return " ".join(word for word in text.split() if _BOOT_OPTION.fullmatch(word)) + "\n"


def _cpu_times(_names: TextRedactor, text: str) -> str:
    return _lines(text, lambda line: line if line.startswith(("cpu ", "btime ")) else None)


def _environment(_names: TextRedactor, text: str) -> str:
    return "".join(f"{word}\0" for word in _CONTAINER.findall(text))


def _cgroup(names: TextRedactor, text: str) -> str:
    def change(line: str) -> str | None:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        return f"{number}:{controllers}:{cgroup_path(names, path)}" if path else None

    return _lines(text, change)


def _mounts(names: TextRedactor, text: str) -> str:
    """Keep mounts of the kernel's own file systems, without the sources of others; and the type of the root."""

    def change(line: str) -> str | None:
        left, _, right = (part.split(" ") for part in line.partition(" - "))
        if len(left) < 6 or len(right) < 3:
            return None
        kind, point = right[0], left[4]
        if kind not in _MOUNTS and point != "/":
            return None
        root = cgroup_path(names, left[3]) if kind.startswith("cgroup") else "/"
        root = left[3] if kind == "fuse.lxcfs" and left[3].startswith("/proc/") else root
        options = [_mount_options(left[5]), "-", kind, _mount_source(kind, right[1]), _mount_options(right[2])]
        return " ".join([*left[:3], root, _mount_point(names, point), *options])

    return _lines(text, change)


def _mount_point(names: TextRedactor, point: str) -> str:
    """Redact the folder of a mount. The usual ones are kept, and a cgroup's own folders below them."""
    if point.startswith("/sys/fs/cgroup/"):
        return "/sys/fs/cgroup/" + cgroup_path(names, point.removeprefix("/sys/fs/cgroup/"))
    return (
        point if point == "/" or point.startswith(("/proc", "/sys", "/dev")) else names.redactor.word("path", point)
    )


def _mount_source(kind: str, source: str) -> str:
    # The layers of a container's root tell the runtime; their names are ids.
    return source if kind in _MOUNTS and re.fullmatch(r"[a-z0-9.-]{1,16}", source) else "none"


def _mount_options(text: str) -> str:
    """Keep known options. Of the layers of an overlay only the runtime's folder stays."""
    kept = [word for word in text.split(",") if _MOUNT_OPTION.fullmatch(word)]
    runtime = next((one for one in RUNTIME_FOLDERS if one in text), None)
    return ",".join([*kept, *([f"upperdir=/var/lib{runtime}layer-1"] if runtime else [])]) or "rw"


def _stat(names: TextRedactor, text: str) -> str:
    pid, _, rest = text.partition(" (")
    name, _, tail = rest.rpartition(") ")
    fields = tail.split()
    if not pid.isdecimal() or not fields:
        return ""
    number = names.redactor.pid(int(pid))
    fields[_STAT_ADDRESSES:] = ["0"] * len(fields[_STAT_ADDRESSES:])
    for at in _STAT_PIDS:
        if at < len(fields) and fields[at].isdecimal() and int(fields[at]) > 0:
            fields[at] = str(names.redactor.pid(int(fields[at])))
    return f"{number} ({_process(names, name)}) {' '.join(fields)}\n"


def _process(names: TextRedactor, name: str) -> str:
    # Its name tells that the processes of the whole machine are visible.
    return name if name == KTHREADD else names.redactor.word("process", name)


def _status(names: TextRedactor, text: str) -> str:
    def change(line: str) -> str | None:
        key, _, value = line.partition(":\t")
        if key == "Name":
            return f"Name:\t{_process(names, value)}"
        if key in _STATUS_PIDS:
            return f"{key}:\t" + "\t".join(_numbers(value, names.redactor.pid))
        if key in _STATUS_UIDS:
            return f"{key}:\t" + "\t".join(_numbers(value, names.uid))
        return line if _STATUS_FIGURES.fullmatch(key) else None

    return _lines(text, change)


def _numbers(value: str, change: Callable[[int], int]) -> list[str]:
    """Change all numbers but 0, which is the parent of the first process, or root."""
    return [str(change(int(word)) if int(word) else 0) for word in value.split() if word.isdecimal()]


def _node_properties(names: TextRedactor, text: str) -> str:
    def change(line: str) -> str:
        name, _, value = line.partition(" ")
        is_serial = name in _SERIAL_PROPERTIES and value.strip() not in ("", "0")
        return f"{name} {names.number('id', value.strip())}" if is_serial else line

    return _lines(text, change)


def _nvmap_clients(names: TextRedactor, text: str) -> str:
    """Keep header, total and rows. A row is split from the right, as names may contain blanks."""
    sizes = max(1, len(text.partition("\n")[0].split()) - 3)

    def change(line: str) -> str | None:
        if line.startswith(("CLIENT ", "total ")):
            return line
        words = line.rsplit(None, sizes + 1)
        if len(words) < sizes + 2 or not words[1].isdecimal():
            return None
        client, *name = words[0].split(None, 1)
        kept = client if client in ("user", "kernel") else "client"
        pid = names.redactor.pid(int(words[1]))
        return f"{kept:<20} {_process(names, ' '.join(name) or client):>20} {pid:>8} {' '.join(words[2:]):>12}"

    return _lines(text, change)


def _pci_ids(_names: TextRedactor, text: str) -> str:
    """Keep the lines of the vendors of GPUs: the whole list has 1.3 MB."""
    found, is_kept = [], False
    for line in text.splitlines():
        if line[:1] not in ("\t", "#", ""):
            is_kept = line.startswith(("10de ", "1002 ", "8086 "))
        if is_kept and not line.startswith(("\t\t", "#")) and line:
            found.append(line)
    return "\n".join(found) + "\n"


_RULES: Mapping[Kind, Rule] = {
    Kind.TEXT: TextRedactor.text,
    Kind.HOST: _host,
    Kind.BOOT: _boot,
    Kind.SERIAL: _serial,
    Kind.BOOT_OPTIONS: _boot_options,
    Kind.CPU_TIMES: _cpu_times,
    Kind.MOUNTS: _mounts,
    Kind.CGROUP: _cgroup,
    Kind.ENVIRONMENT: _environment,
    Kind.STAT: _stat,
    Kind.STATUS: _status,
    Kind.FDINFO: _kept(_FDINFO),
    Kind.NODE_PROPERTIES: _node_properties,
    Kind.NVMAP_CLIENTS: _nvmap_clients,
    Kind.DISTRIBUTION: _kept(_DISTRIBUTION),
    Kind.PCI_IDS: _pci_ids,
}
