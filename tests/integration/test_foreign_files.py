"""A file that a process may not read gives the answer of no file: by collector, for root and for the service."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from memwatch.core.collectors import COLLECTORS
from memwatch.core.collectors.base import BaseCollector, Host, ScanOptions
from memwatch.core.collectors.engines import Collector as EngineCollector
from memwatch.core.engines.records import ModelQuery, ModelSizes
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.model import Bytes
from memwatch.planning.served import ServedModels, read_model, size_served
from memwatch.reporting.recording import Redactor
from memwatch.reporting.report.contents import EvidenceReader
from memwatch.reporting.report.redaction import TextRedactor
from support import engine_texts
from support.engine_host import EngineHost
from support.engine_servers import engine_site
from support.forked import call_in_child
from support.machine_folders import plain
from support.mutable_machine import MutableMachine
from support.other_user import CAN_SWITCH, become_other
from support.trap import KINDS, NAMED, PID, SERVER, TRAP, add_trap, fill_trap

MACHINES = ("strix-halo", "jetson-agx-orin-jp6", "container-v2", "three-makers-dmem", "gb10", "hybrid-v1v2")
# They ask the drivers of the machine that runs the tests.
OF_THIS_MACHINE = ("nvml", "amdsmi")
Answers = dict[str, str]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that other users may enter: pytest's are those of one user."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def answers(roots: Roots) -> Answers:
    """Return what each collector and the report say of a machine."""
    options = (ScanOptions(command_lines=True),)
    host = Host(roots, options, "linux", 4096, size_model=ServedModels().size)
    kinds = [one.load() for one in COLLECTORS if one.supports("linux") and one.name not in OF_THIS_MACHINE]
    found = {kind.name: answer(kind, host) for kind in kinds}
    evidence = EvidenceReader(roots, TextRedactor(Redactor((), {PID: 7}, 1001))).read([PID])
    return found | {"report": repr(evidence)}


def answer(kind: type[BaseCollector], host: Host) -> str:
    try:
        collector = kind.create(host)
    except SourceUnavailable as error:
        return f"unavailable: {error}"
    try:
        return json.dumps([plain(collector.collect()) for _ in range(2)], default=str)
    except (SourceUnavailable, ParseError, OSError) as error:
        return f"error: {error}"
    finally:
        collector.close()


class Careless(BaseCollector):
    """A collector as it must not be."""

    name = "careless"

    def collect(self) -> Findings:
        program = self._roots.rootfs / os.readlink(self._roots.procfs / str(PID) / "exe").lstrip("/")
        return Findings(container_names={"named": program.read_text()}) if program.is_file() else Findings()


def as_root_and_service(read: Callable[[], Answers]) -> Iterator[Answers]:
    """Yield the answers of the daemon as root, and as the service: neither root nor the user of the process."""
    yield read()
    if CAN_SWITCH:
        yield call_in_child(read, become_other)


@pytest.mark.parametrize("name", MACHINES)
def test_foreign_file_gives_the_answer_of_no_file(folder: Path, name: str) -> None:
    machine = MutableMachine.of(name, folder / "machine").folder
    trap = add_trap(machine)
    roots = Roots(machine / "proc", machine / "sys", machine / "root")
    expected = list(as_root_and_service(partial(answers, roots)))
    assert "processes" in expected[0]
    for kind in KINDS:
        fill_trap(trap, kind)
        assert list(as_root_and_service(partial(answers, roots))) == expected, kind
        shutil.rmtree(trap)


def test_collector_that_opens_what_a_process_names_is_found(folder: Path) -> None:
    """The law is broken by a collector that reads one of the named files."""
    trap = add_trap(folder / "machine")
    host = Host(Roots(folder / "machine/proc", folder / "machine/sys", folder / "machine/root"))
    missing = answer(Careless, host)
    fill_trap(trap, "secret")
    assert answer(Careless, host) != missing


@pytest.mark.parametrize("kind", KINDS)
def test_model_of_an_asked_server_gives_the_answer_of_no_model(folder: Path, kind: str) -> None:
    """The server answers, so that its model is looked for."""
    host = EngineHost(folder / "machine")
    trap = host.root / TRAP.lstrip("/")
    host.add(500, ("vllm", "serve", NAMED), uid=SERVER)
    with engine_site(engine_texts.vllm(root=NAMED)) as site:
        host.listen(500, site.port, uid=SERVER)
        missing = [asked(host, read) for read in (read_by_daemon, read_as_service)]
        fill_trap(trap, kind)
        assert [asked(host, read) for read in (read_by_daemon, read_as_service)] == missing
        assert "4321" not in repr(missing)


def asked(host: EngineHost, read: Callable[[ModelQuery], ModelSizes]) -> tuple[Bytes, tuple[str, ...]]:
    with closing(EngineCollector(host.roots, True, (), read, host.net)) as collector:
        (engine,) = collector.collect().engines
    assert engine.model
    return engine.weights_bytes, engine.notes


def read_by_daemon(query: ModelQuery) -> ModelSizes:
    """Read with a child, and nothing that is known from an earlier call."""
    return ServedModels().size(query)


def read_as_service(query: ModelQuery) -> ModelSizes:
    read = partial(read_model, query)
    return size_served(call_in_child(read, become_other) if CAN_SWITCH else read(), query.cache)
