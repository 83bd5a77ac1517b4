"""Model servers on this machine: found by their processes, asked over loopback. And those that are configured."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.budget import Account, Budget, Rank
from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.engines.command import Command, options_of
from memwatch.core.engines.records import KEY, Address, Engine, ModelQuery, ModelSizes, ServedBy
from memwatch.core.findings import Findings
from memwatch.core.http import Resolve
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.engine_processes import EngineProcesses, EngineSlots, ServerProcess, find_listeners
from memwatch.core.linux.files import Roots, SourceUnavailable, kept_folder
from memwatch.core.linux.key_owner import KeyOwner, KeyUse, KnownOwners
from memwatch.core.linux.listeners import ListenerTables
from memwatch.core.linux.process_files import Passwd
from memwatch.core.linux.tcp_peer import NET
from memwatch.core.model import Absent
from memwatch.core.options import SwitchableOptions

if TYPE_CHECKING:  # the first server loads the modules of all kinds
    from memwatch.core.engines.server import EngineServer, SizeModel

log: logging.Logger = logging.getLogger(__name__)

# Between two rounds; the longer one while there is no server to ask.
PERIOD_SECONDS, NO_SERVER_SECONDS = 5.0, 10.0
# Sizes that are read later than this after the share of the servers are shown in the next round.
READ_SECONDS = 0.5
# A server opens its socket some minutes after its start, when its model is loaded.
SEARCH_TURNS = 3
# A file of options that could not be read is tried again once a minute.
OPTIONS_TURNS = 12
# The kernel refuses an environment for as long as a process has its user: that is asked for again once an hour.
VARIABLES_TURNS = 720
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
NO_SOCKET = "It does not listen on a TCP port yet."
SERVER_OFF = "Its server is off: it listens for its own programs only."
ELSEWHERE = "It listens in the network of a container. Name its address under [[engines]] to ask it."
PORT_UNKNOWN = "Its command line names no port for HTTP. Name its address under [[engines]] to ask it."
UNCOUNTED = "The memory of {count} more of its processes is not counted."
NOT_LOOPBACK = "It listens on {host} only, and memwatchd asks on loopback. Name its address under [[engines]]."
# Account of the servers of [[engines]].
CONFIGURED = Account("[[engines]]", Rank.SYSTEM)


class EngineAddress(Struct, frozen=True):
    """A configured engine."""

    kind: str
    name: str
    address: Address


class EngineAddresses(Struct, frozen=True):
    """All configured engines, as one of the options of `Host`."""

    listed: tuple[EngineAddress, ...] = ()


class Options(SwitchableOptions, frozen=True, kw_only=True):
    discover: Annotated[
        bool,
        Doc(
            "Ask the model servers of this machine (vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI, TensorRT-LLM, "
            "OpenVINO) for their memory and load, every 5 s. They are found by their processes, and asked with GET "
            "on loopback only. With false, only the servers under [[engines]] are asked."
        ),
    ] = True


class Found(Struct):
    """A server that was found: how it is asked, or why it is not."""

    server: EngineServer | None
    note: str
    turn: int


class Asked(Struct):
    """A server in this round. `blank`: its record without figures."""

    blank: Engine
    server: EngineServer | None
    command: Command = Command()
    inner: Command = Command()


class Collector(BaseCollector):
    name = "engines"
    may_block = True
    options: type[Options] = Options
    about = "Model servers, and the memory that their weights and their KV cache take."

    def __init__(
        self,
        roots: Roots,
        discover: bool = True,
        configured: Sequence[EngineAddress] = (),
        size_model: Callable[[ModelQuery], ModelSizes] | None = None,
        net: Path = NET,
        monotonic: Callable[[], float] = time.monotonic,
        resolve: Resolve = socket.getaddrinfo,
        key_owners: KnownOwners | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`net`: the network namespace of this process, which is the only one that can be asked."""
        if not discover and not configured:
            raise SourceUnavailable("discovery is off, and no server is configured under [[engines]]")
        self.period_seconds: float = PERIOD_SECONDS
        self._roots = roots
        self._net = net
        self._reader = ModelReader(size_model) if size_model else None
        self._monotonic, self._resolve = monotonic, resolve
        self._passwd = Passwd(roots.rootfs / "etc/passwd")
        known = key_owners or KnownOwners()
        self._owners = {
            one.address.url: KeyOwner(
                KeyUse(f"Engine {one.name}", one.address.url, KEY, "[[engines]]"),
                one.address.user,
                self._passwd,
                known,
            )
            for one in configured
            if one.address.token
        }
        self._configured = [(one, self._server(one.kind, one.address)) for one in configured]
        self._found: dict[tuple[int, int], Found] = {}
        self._options: dict[ModelQuery, tuple[str, ...]] = {}
        self._options_turn: dict[ModelQuery, int] = {}
        self._kinds: list[str] = []
        self._slots = EngineSlots(roots.procfs, budget)
        self._tables = ListenerTables()
        self._turn = 0
        self._folder = -1
        if discover:
            self._folder = kept_folder(roots.procfs)
            self._processes = EngineProcesses(self._folder, Accounts(roots.rootfs), budget)

    @classmethod
    def create(cls, host: Host) -> Collector:
        listed = host.options_for(EngineAddresses).listed
        discover = host.options_for(Options).discover
        budget = host.budgets["engines"] if host.budgets else None
        return cls(host.roots, discover, listed, host.size_model, key_owners=host.key_owners, budget=budget)

    def collect(self) -> Findings:
        self._turn += 1
        self._tables = ListenerTables()
        present = self._processes.find() if self._folder >= 0 else []
        running = self._slots.choose(present, self._tables)
        self._kinds = [one.kind.name for one in running]
        if running:
            self._passwd.refresh()
        self._found = {one.key: self._found[one.key] for one in running if one.key in self._found}
        known = {self._served_by(one) for one in running}
        self._options = {query: found for query, found in self._options.items() if query.by in known}
        self._options_turn = {query: turn for query, turn in self._options_turn.items() if turn > self._turn}
        for one in running:
            self._with_options(one)
        if self._reader is not None:
            self._reader.wait(time.monotonic() + READ_SECONDS)
        asked = [self._prepare_found(one) for one in running]
        urls = {one.blank.url for one in asked}
        asked += [
            self._prepare_configured(one, server)
            for one, server in self._configured
            if server.address.url not in urls
        ]
        if to_ask := [one for one in asked if one.server]:
            ask_all(to_ask, self._reader)
        self.period_seconds = PERIOD_SECONDS if asked else NO_SERVER_SECONDS
        engines = [one.server.build(one.blank) if one.server else one.blank for one in asked]
        not_followed = self._processes.not_followed + len(present) - len(running) if self._folder >= 0 else 0
        return Findings(
            engines=with_unique_ids(engines),
            engines_not_followed=not_followed,
            left_out={"listening_sockets": self._tables.cut},
        )

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _prepare_configured(self, one: EngineAddress, server: EngineServer) -> Asked:
        no = Absent.NOT_SUPPORTED
        title = server.kind.title
        blank = Engine(
            one.name, one.kind, title, one.address.url, no, user=no, footprint_bytes=no, remainder_bytes=no
        )
        return Asked(blank, server)

    def _prepare_found(self, process: ServerProcess) -> Asked:
        command = self._with_options(process)
        found = self._found.get(process.key)
        is_silent = found is not None and (found.server is None or found.server.is_silent)
        if found is None or (is_silent and self._turn - found.turn >= SEARCH_TURNS):
            found = self._found[process.key] = self._locate(process, command, found)
        kind, server = process.kind, found.server
        port = server.address.port if server else process.pid
        blank = Engine(
            f"{kind.name}-{port}",
            kind.name,
            kind.title,
            server.address.url if server else Absent.NOT_AVAILABLE,
            process.pid,
            process.pids,
            self._passwd.name(process.uid),
            model=kind.named_model(command, process.inner),
            notes=tuple(_notes(found, process)),
        )
        return Asked(blank, server, command, process.inner)

    def _with_options(self, process: ServerProcess) -> Command:
        """Return the command line with the options of its environment and of its file.

        Each is read once, with the rights of the server. Where its sockets were looked for before its file was
        read, they are again: the file may have its port.
        """
        command, by = process.command, self._served_by(process)
        if variables := process.kind.variables_of(command):
            found = self._read_options(process, ModelQuery("", by=by, variables=tuple(variables)))
            command = replace(command, from_environment=None if found is None else options_of(variables, found))
        if name := command.option(*process.kind.options_files):
            query = ModelQuery(name, by=by, is_options=True)
            was_known = query in self._options
            found = self._read_options(process, query)
            if found is not None and not was_known:
                self._found.pop(process.key, None)
            command = replace(command, from_file=found or ())
        return command

    def _read_options(self, process: ServerProcess, query: ModelQuery) -> tuple[str, ...] | None:
        """Return the options in a file or an environment, None while they are not read."""
        if query in self._options or self._reader is None or self._turn < self._options_turn.get(query, 0):
            return self._options.get(query)
        read = self._reader.size(query, process.account)
        if read is None:
            return None
        if read.note and not read.options:  # it may not be read, or the reader took too long
            self._options_turn[query] = self._turn + (VARIABLES_TURNS if query.variables else OPTIONS_TURNS)
            return None
        self._options[query] = read.options
        return read.options

    def _served_by(self, process: ServerProcess) -> ServedBy:
        return ServedBy(process.pid, process.start_ticks, str(self._roots.procfs), str(self._roots.rootfs))

    def _locate(self, process: ServerProcess, command: Command, before: Found | None) -> Found:
        """Find the socket of a server. One that listens where it did before is kept, with its counters."""
        kind = process.kind
        if why := kind.why_unasked(command):
            return Found(None, why, self._turn)
        named = kind.named_port(command)
        preferred = named or kind.port
        listeners = find_listeners(self._roots.procfs, process, self._tables)
        asked = [one for one in listeners if one.port not in kind.inner_ports]
        if not kind.has_own_port(command):
            asked = [one for one in asked if one.port == named]
        asked.sort(key=lambda one: (one.port != preferred, one.port))
        if listeners and not asked and not kind.has_own_port(command):
            return Found(None, PORT_UNKNOWN, self._turn)
        if not asked:
            return Found(None, SERVER_OFF if listeners else NO_SOCKET, self._turn)
        ours = self._tables.read(self._net)
        first = next((one for one in asked if one.inode in ours), None)
        host = first.loopback if first else None
        if first is None:
            address = self._published_address(kind.name)
        else:
            address = self._with_token(Address(host, first.port)) if host else None
        if address is None:
            return Found(None, NOT_LOOPBACK.format(host=first.host) if first else ELSEWHERE, self._turn)
        if before is not None and before.server is not None and before.server.address == address:
            return Found(before.server, "", self._turn)
        return Found(self._server(kind.name, address, process), "", self._turn)

    def _published_address(self, kind: str) -> Address | None:
        """Return the configured address of a server in a container, whose port the container's runtime forwards.

        Only if it is the one server of its kind, and the one address: otherwise they cannot be told apart.
        """
        of_kind = [one.address for one, _ in self._configured if one.kind == kind]
        if len(of_kind) != 1 or of_kind[0].host not in LOOPBACK or self._kinds.count(kind) != 1:
            return None
        return of_kind[0]

    def _with_token(self, address: Address) -> Address:
        """Return the configured address of the same server, with its token."""
        return next((one.address for one, _ in self._configured if one.address.url == address.url), address)

    def _server(self, kind: str, address: Address, process: ServerProcess | None = None) -> EngineServer:
        from memwatch.core.engines.kinds import KIND_BY_NAME
        from memwatch.core.engines.server import EngineServer

        by = self._served_by(process) if process else None
        size: SizeModel | None = None
        if (reader := self._reader) is not None:
            account = process.account if process else CONFIGURED
            size = lambda query: reader.size(replace(query, by=by), account)  # noqa: E731
        owner = self._owners.get(address.url)
        admit = owner.admit if owner else None
        return EngineServer(KIND_BY_NAME[kind], address, size, self._monotonic, admit, self._resolve)


def ask_all(asked: Sequence[Asked], reader: ModelReader | None) -> None:
    """Ask the servers at once, each within its share of the round. Wait a little for the sizes of their models."""
    from memwatch.core.engines.exchange import SHARE_SECONDS, run_all

    deadline = time.monotonic() + SHARE_SECONDS
    begun = [(one, one.server.begin(one.command, one.inner, deadline)) for one in asked if one.server is not None]
    bounded = [exchange for one, exchange in begun if exchange and one.server and not one.server.may_hang]
    unbounded = [exchange for one, exchange in begun if exchange and one.server and one.server.may_hang]
    run_all(bounded, unbounded, deadline)
    for one, exchange in begun:
        if one.server is not None and exchange is not None:
            one.server.take(exchange, one.command, one.inner)
    if reader is not None:
        reader.wait(deadline + READ_SECONDS)


def _notes(found: Found, process: ServerProcess) -> Iterator[str]:
    if found.note:
        yield found.note
    if process.uncounted:
        yield UNCOUNTED.format(count=len(process.uncounted))


def with_unique_ids(engines: Sequence[Engine]) -> tuple[Engine, ...]:
    """Two servers of a kind can listen on one port, on 127.0.0.1 and ::1."""
    seen: dict[str, Engine] = {}
    for engine in engines:
        name = engine.id if engine.id not in seen else f"{engine.id}-{engine.pid}"
        seen.setdefault(name, replace(engine, id=name))
    return tuple(seen.values())


# Sizes of models are read in a thread: their files may be on a disk that hangs, or take seconds to parse. One is
# read at a time, first for the account that caused the least work. An account with too much of it waits: a server
# that starts again and again, or reports another model each minute, must not occupy a core.

# A reading takes 0.3 s, of 200 files on a network drive 2 s. In the long run an account gets a twentieth of the
# time.
MAX_BUSY_SECONDS = 10.0
BUSY_RATIO = 0.05
MAX_WAITING = 32
MAX_WAITING_OF_ACCOUNT = 16
MAX_DONE = 64


class ModelReader:
    """Reads the sizes that are asked for. `read` takes as long as it takes, and raises nothing."""

    def __init__(
        self, read: Callable[[ModelQuery], ModelSizes], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._monotonic = read, monotonic
        self._waiting: dict[ModelQuery, Hashable] = {}
        self._done: dict[ModelQuery, ModelSizes] = {}
        self._busy: dict[Hashable, tuple[float, float]] = {}
        self._has_new = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def size(self, query: ModelQuery, account: Hashable) -> ModelSizes | None:
        """Return the sizes of a model, None if they are not read yet: ask again. Each result is returned once."""
        with self._changed:
            if query in self._done:
                return self._done.pop(query)
            if query not in self._waiting and self._may_wait(account):
                self._waiting[query] = account
                self._has_new = True
            if self._waiting and self._thread is None:
                self._start()
            return None

    def wait(self, deadline: float) -> None:
        """Wait until nothing is left to read, or until the deadline in seconds of `time.monotonic`.

        Once for each model: one that takes long must not delay round after round.
        """
        with self._changed:
            has_new, self._has_new = self._has_new, False
            if not has_new:
                return
            self._changed.wait_for(lambda: not self._waiting, max(0.0, deadline - time.monotonic()))

    def _may_wait(self, account: Hashable) -> bool:
        of_account = sum(one == account for one in self._waiting.values())
        has_room = len(self._waiting) < MAX_WAITING and of_account < MAX_WAITING_OF_ACCOUNT
        return has_room and self._busy_seconds(account) < MAX_BUSY_SECONDS

    def _busy_seconds(self, account: Hashable) -> float:
        """Return the time that was spent for an account, less what it has got since."""
        seconds, at = self._busy.get(account, (0.0, 0.0))
        return max(0.0, seconds - (self._monotonic() - at) * BUSY_RATIO)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="read-models", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # the next call tries again
            return
        self._thread = thread

    def _run(self) -> None:
        while (query := self._next()) is not None:
            began = self._monotonic()
            try:
                sizes = self._read(query)
            except Exception:
                log.exception("Defect while a model was read")
                sizes = ModelSizes()
            self._finish(query, sizes, began)

    def _next(self) -> ModelQuery | None:
        """Return the model to read now. Without one, the thread ends."""
        with self._changed:
            if not self._waiting:
                self._thread = None
                return None
            return min(self._waiting, key=lambda one: self._busy_seconds(self._waiting[one]))

    def _finish(self, query: ModelQuery, sizes: ModelSizes, began: float) -> None:
        with self._changed:
            account = self._waiting.pop(query)
            now = self._monotonic()
            self._busy[account] = (self._busy_seconds(account) + now - began, now)
            self._busy = {one: spent for one, spent in self._busy.items() if self._busy_seconds(one)}
            self._done[query] = sizes
            if len(self._done) > MAX_DONE:  # those of servers that ended
                del self._done[next(iter(self._done))]
            self._changed.notify_all()
