"""Names of Kubernetes pods and containers, from the links to their logs that the kubelet keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.printable import printable

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


class Collector(BaseCollector):
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

    def close(self) -> None:
        """Do nothing: no file is open."""

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
