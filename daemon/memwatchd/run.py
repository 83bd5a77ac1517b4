"""Entry points behind the command line: serve, print one sample, send a test notification."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from memwatch.core.linux.key_owner import KeyOwners, KnownOwners
from memwatch.core.linux.process_files import Passwd
from memwatch.core.printable import printable
from memwatch.core.reading.machine import read_machine
from memwatch.core.runtime.own_process import require_limits
from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import RecordingError
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.notify.manager import build_test_notification
from memwatchd import wiring
from memwatchd.daemon import Daemon
from memwatchd.http_server import server
from memwatchd.settings.schema import Settings
from memwatchd.sockets import ListenError, open_sockets
from memwatchd.state_dir import read_owners

EXIT_OK, EXIT_FAILURE, EXIT_CONFIGURATION = 0, 1, 78


def serve(settings: Settings, load: Callable[[bool], Settings], log_lines_dropped: Callable[[], int]) -> int:
    """Run the daemon until SIGTERM or SIGINT. SIGHUP calls `load` to reload the settings.

    Its argument: the settings of before came from a file.
    """
    require_limits()
    try:
        sockets, problems = open_sockets(settings.web.listen)
    except ListenError as error:
        print(f"memwatchd: {printable(str(error))}", file=sys.stderr)
        # A service manager tries again: what has the port may end, and a name may be known later.
        return EXIT_FAILURE if "NOTIFY_SOCKET" in os.environ else EXIT_CONFIGURATION
    try:
        daemon = Daemon(settings.with_lasting(problems), load, log_lines_dropped)
    except (RecordingError, OSError) as error:
        print(f"memwatchd: {printable(str(error))}", file=sys.stderr)
        return EXIT_CONFIGURATION
    daemon.start()
    daemon.first_tick()
    try:
        ended_by_request = asyncio.run(server.serve(daemon, sockets))
    except server.LimitsError as error:
        print(f"memwatchd: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    finally:
        daemon.stop()
    return EXIT_OK if ended_by_request else EXIT_FAILURE


def test_alert(settings: Settings) -> int:
    """Send a test notification to every receiver, bypassing the outbox, and print the results."""
    if settings.replay.demo or settings.replay.file:
        print(
            "memwatchd: a simulated machine sends no notifications: leave out --demo and --replay", file=sys.stderr
        )
        return EXIT_CONFIGURATION
    folder = settings.state.dir
    known = KnownOwners({} if folder is None else read_owners(folder))
    owners = KeyOwners(Passwd(settings.sampling.rootfs / "etc/passwd"), known)
    channels = [one.create_channel(owners) for one in settings.alerts.receivers]
    if not channels:
        print(
            "memwatchd: no receiver is configured; add [[alerts.webhooks]] to the configuration file",
            file=sys.stderr,
        )
        return EXIT_CONFIGURATION
    notification, snapshot, failed = (
        build_test_notification(),
        read_machine(wiring.build_direct_reading(settings)),
        0,
    )
    sender = wiring.build_sender(settings, settings.web, snapshot.host)
    for channel in channels:
        answer = channel.send(notification.id, channel.body(notification, snapshot, sender))
        failed += not answer.success
        print(printable(f"{channel.title}: {'delivered' if answer.success else answer.failure}"), flush=True)
    return EXIT_FAILURE if failed else EXIT_OK


def once(settings: Settings, as_json: bool) -> int:
    """Print one sample. Return EXIT_FAILURE if it has no pools."""
    from memwatch.cli import status
    from memwatch.cli.charset import fit_output
    from memwatch.cli.output import paint_lines, stdout_depth, stdout_width

    try:
        snapshot = read_machine(wiring.build_direct_reading(settings))
    except RecordingError as error:
        print(f"memwatchd: {printable(str(error))}", file=sys.stderr)
        return EXIT_CONFIGURATION
    if as_json:
        print(to_bytes(snapshot_json(snapshot)).decode())
    else:
        fit_output()
        lines = status.render_lines(snapshot, None, stdout_width(), stdout_depth() > 0)
        print("\n".join(paint_lines(lines)))
    return EXIT_OK if snapshot.pools else EXIT_FAILURE
