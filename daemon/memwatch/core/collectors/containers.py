"""Names of containers from Docker or Podman, if a socket is configured."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.findings import Findings
from memwatch.core.http import MAX_HEADER_BYTES, DeadlineSocket, connect_unix, request
from memwatch.core.linux.files import ParseError, SourceUnavailable
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


class Collector(BaseCollector):
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
        except http.client.HTTPException as error:
            raise ParseError(f"{self._path}: {type(error).__name__} instead of an HTTP response") from None
        except OSError as error:
            raise ParseError(f"{self._path}: {error.strerror or 'timed out'}") from None
        if len(data) > MAX_ANSWER_BYTES:
            raise ParseError(f"{self._path}: a list of more than {MAX_ANSWER_BYTES} bytes")
        return Findings(container_names=parse_containers(data))

    def close(self) -> None:
        pass
