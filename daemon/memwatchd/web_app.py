"""Services of the pages and the API of a daemon. Imported at the first request: see memwatch_web.asgi.lazy_app."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from memwatch.core.processes.process_folder import PssReader, read_oom_score
from memwatch.reporting.doctor.checks import MachineNames
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_monitor.notify.alertmanager import AlertmanagerChannel
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.status import build_view, count_firing
from memwatch_monitor.processes import GrowthWatch
from memwatch_web.api.services import Inquiries, Services
from memwatch_web.asgi.threads import SingleFlight
from memwatchd.daemon import Daemon

if TYPE_CHECKING:
    from memwatch_web.pages.renderer import Pages, PageServices

# Longer than the timeout for an OpenCL driver: only a hanging file system takes longer.
INQUIRY_DEADLINE_SECONDS = 20.0
# The kernel walks 100 GiB of a process in 1 s. If it takes longer, another task holds the lock of that process.
PSS_DEADLINE_SECONDS = 10.0
# Events in which the overview finds the begin of levels; it shows the newest. `/api/v1/events` has the last 1,000.
SHOWN_EVENTS = 200


def create_services(daemon: Daemon) -> Services:
    features = daemon.monitor.features
    services = Services(
        daemon.monitor,
        daemon.broker,
        features.get(NotificationManager),
        cache(partial(create_inquiries, daemon)),
        partial(read_oom_score, daemon.roots),
        features.get(NeighbourBook),
        daemon.callers.account,
    )
    daemon.on_leaving.append(services.queries.close)
    return services


def create_page_services(daemon: Daemon, services: Services) -> PageServices:
    """Return the services of the pages. They share caches, threads and limits with the API."""
    from memwatch_web.pages.renderer import PageServices

    pages = create_pages(daemon)
    pages.machines = services.machines
    return PageServices(**asdict(services), pages=pages, options=daemon.web_options)


def create_inquiries(daemon: Daemon) -> Inquiries:
    """Return the on-demand checks. Their threads end with the daemon."""
    from memwatch.core.backends.finder import Finder  # pages load neither backends nor doctor
    from memwatch.reporting.doctor.examiner import Examiner

    roots, self_usage = daemon.roots, daemon.monitor.self_usage
    inquiries = Inquiries(
        SingleFlight(Finder(roots, for_others=True).find, "backends", INQUIRY_DEADLINE_SECONDS),
        SingleFlight(
            Examiner(
                roots,
                lambda: self_usage.lock_error,
                lambda: daemon.config.state,
                daemon.failed_deliveries,
                partial(names_to_compare, daemon),
            ).examine,
            "the machine",
            INQUIRY_DEADLINE_SECONDS,
        ),
        SingleFlight(PssReader(roots).read, "a PSS", PSS_DEADLINE_SECONDS),
    )
    daemon.on_leaving.append(inquiries.close)
    return inquiries


def names_to_compare(daemon: Daemon) -> MachineNames | None:
    """Return the machine's names for Prometheus, None without a scrape or own alerts, or with a chosen name."""
    alerting, scraped = daemon.monitor.features.get(NotificationManager), daemon.latest_scrape.host
    sends = any(one.channel.kind == AlertmanagerChannel.kind for one in alerting.receivers)
    sender = alerting.sender
    return MachineNames(scraped, sender.instance) if scraped and sends and not sender.is_instance_set else None


def create_pages(daemon: Daemon) -> Pages:
    from memwatch_web.pages.history_data import build_input
    from memwatch_web.pages.renderer import Pages

    monitor, features = daemon.monitor, daemon.monitor.features
    recorder, alerting = features.get(HistoryRecorder), features.get(NotificationManager)
    book, observer = features.get(NeighbourBook), features.get(IncidentObserver)
    return Pages(
        lambda: monitor.rules.pressure,
        lambda: recorder.writer,
        features.get(GrowthWatch).tracker,
        lambda: monitor.events.latest(SHOWN_EVENTS),
        alerting=lambda: build_view(monitor, alerting),
        history=lambda: recorder.series,
        firing=lambda: count_firing(monitor),
        config=lambda: daemon.config.state,
        current=lambda: monitor.latest,
        url=lambda: alerting.sender.url,
        incidents=lambda: observer.log.heads(),
        has_neighbours=lambda: bool(book) or bool(book.not_joined()),
        past=lambda: build_input(monitor),
    )
