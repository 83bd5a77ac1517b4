"""Names of containers: from Docker or Podman, and from Kubernetes."""

from __future__ import annotations

import http
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from memwatch.core.collectors.base import BaseCollector, Collector, Host
from memwatch.core.doc import Doc
from memwatch.core.findings import Findings
from memwatch.core.http import MAX_HEADER_BYTES, DeadlineSocket, connect_unix, request
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.options import Accepts, Converter, SwitchableOptions, parse_socket
from memwatch.core.printable import printable

TIMEOUT_SECONDS = 5.0
# One container takes about 1 KiB in the list.
MAX_ANSWER_BYTES = 8 << 20
MAX_NAME_CHARACTERS = 128
_ID = re.compile(r"[0-9a-f]{64}")


def parse_containers(data: bytes) -> Mapping[str, str]:
    """Parse names by the first 12 characters of the id. Docker puts a slash before a name."""
    try:
        listed = json.loads(data)
        return {
            one["Id"][:12]: printable(one["Names"][0].removeprefix("/")[:MAX_NAME_CHARACTERS])
            for one in listed
            if _ID.fullmatch(one["Id"]) and one.get("Names")
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ParseError(f"containers/json: {data[:80]!r} is not a list of containers") from None


class Options(SwitchableOptions, frozen=True, kw_only=True):
    socket: Annotated[
        str | None,
        Converter(parse_socket),
        Accepts("unix:/PATH", '"unix:/run/docker.sock"'),
        Doc(
            "Socket of Docker or Podman (unix:/run/podman/podman.sock) to read container names from. Access to "
            "that socket is equivalent to root, so set it only for a daemon that runs as root anyway."
        ),
    ] = None


class RuntimeCollector(BaseCollector):
    """Names of containers from Docker or Podman, if a socket is configured."""

    name = "containers"
    period_seconds: float = 30.0
    may_block = True
    options: type[Options] = Options

    def __init__(self, path: str | None) -> None:
        """`path`: as configured, `unix:/PATH`."""
        if path is None:
            raise SourceUnavailable(
                "no container runtime socket is configured: set collectors.containers.socket for container names"
            )
        self._path = path.removeprefix("unix:")
        # Docker's, beside its socket as /run/docker.pid. systemd holds the socket of a Docker that was stopped, and
        # starts it again for the next request.
        self._pid_file = Path(self._path).with_suffix(".pid")
        self._has_run = False

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.options_for(Options).socket)

    def collect(self) -> Findings:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        from http.client import HTTPException  # 20 modules, for machines with Docker

        try:
            runs = self._pid_file.exists()
            if self._has_run and not runs:
                raise ParseError(f"{self._path}: Docker was stopped, and a request could start it again")
            self._has_run = runs
            with connect_unix(self._path, deadline) as connected:
                limited = DeadlineSocket(connected, deadline, MAX_ANSWER_BYTES + MAX_HEADER_BYTES)
                response = request(limited, "GET", "/containers/json", {})
                if response.status != http.HTTPStatus.OK:
                    raise ParseError(f"{self._path}: status {response.status} instead of a list of containers")
                data = response.read(MAX_ANSWER_BYTES + 1)
        except HTTPException as error:
            raise ParseError(f"{self._path}: {type(error).__name__} instead of an HTTP response") from None
        except OSError as error:
            raise ParseError(f"{self._path}: {error.strerror or 'timed out'}") from None
        if len(data) > MAX_ANSWER_BYTES:
            raise ParseError(f"{self._path}: a list of more than {MAX_ANSWER_BYTES} bytes")
        return Findings(container_names=parse_containers(data))


FOLDER = "var/log/containers"
# A node has at most some hundreds of containers; ended ones keep their link until their log is removed.
MAX_LINKS = 10_000
# PODNAME_NAMESPACE_CONTAINER-ID.log; names of Kubernetes have no underscore (kubelet, kuberuntime/legacy.go).
_LINK = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{64})\.log")
# /var/log/pods/NAMESPACE_PODNAME_UID/CONTAINER/0.log; the uid of a static pod has no dashes.
_TARGET = re.compile(r"/[^_/]+_[^_/]+_([0-9a-f-]{32,36})/")


class LinkedContainer(NamedTuple):
    """One container: the first 12 characters of its id, its name, and the name and uid of its pod."""

    id: str
    name: str
    pod_uid: str
    pod_name: str


def parse_link(name: str, target: str) -> LinkedContainer | None:
    """Parse a link in /var/log/containers. Return None for another file."""
    found, pod = _LINK.fullmatch(name), _TARGET.search(target)
    if found is None or pod is None:
        return None
    pod_name = printable(f"{found[2]}/{found[1]}")
    return LinkedContainer(found[4][:12], printable(f"{pod_name}/{found[3]}"), pod[1], pod_name)


class KubernetesCollector(BaseCollector):
    """Names of Kubernetes pods and containers, from the links to their logs that the kubelet keeps."""

    name = "kubernetes"
    period_seconds: float = 10.0
    may_block = True

    def __init__(self, roots: Roots) -> None:
        self._folder = roots.rootfs / FOLDER
        self._known: Mapping[str, LinkedContainer | None] = {}
        self._list()

    def collect(self) -> Findings:
        listed = self._list()
        names = listed[:MAX_LINKS]
        self._known = {name: self._known[name] if name in self._known else self._read(name) for name in names}
        found = [one for one in self._known.values() if one is not None]
        return Findings(
            container_names={one.id: one.name for one in found},
            pod_names={one.pod_uid: one.pod_name for one in found},
            left_out={"container_logs": len(listed) - len(names)},
        )

    def _list(self) -> list[str]:
        try:
            return sorted(os.listdir(self._folder))
        except OSError as error:
            raise SourceUnavailable(f"{self._folder}: {error.strerror}") from None

    def _read(self, name: str) -> LinkedContainer | None:
        try:
            return parse_link(name, os.readlink(self._folder / name))
        except OSError:  # removed meanwhile, or not a link
            return None
