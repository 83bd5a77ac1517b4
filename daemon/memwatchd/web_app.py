"""The API and the pages of a daemon. Imported when somebody wants them: see memwatch_web.asgi.lazy_app."""

from __future__ import annotations

import gc

from fastapi import FastAPI

from memwatch.backends.finder import Finder
from memwatch.doctor.examiner import Examiner
from memwatch.notify.status import build_view
from memwatch.processes.pss import PssReader
from memwatch_web.api.inquiries import Inquiries
from memwatch_web.app import create_app
from memwatch_web.asgi.single_flight import SingleFlight
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.services import PageServices
from memwatchd.daemon import Daemon

# Longer than a driver of OpenCL may take to answer: what takes longer is a file system that hangs.
INQUIRY_DEADLINE_SECONDS = 20.0
# The kernel walks 100 GiB of a process in a second; longer, and somebody holds that process's lock.
PSS_DEADLINE_SECONDS = 10.0
# As many as are read at a glance; `/api/v1/events` has the last 1,000.
SHOWN_EVENTS = 8


def create_web_app(daemon: Daemon, metrics_endpoint: MetricsEndpoint) -> FastAPI:
    services = PageServices(
        daemon.monitor,
        daemon.broker,
        daemon.alerting,
        create_inquiries(daemon),
        pages=create_pages(daemon),
        options=daemon.web_options,
        scrapes=metrics_endpoint,
    )
    app = create_app(services)
    gc.freeze()  # what is made now stays: the collector need not walk it
    return app


def create_inquiries(daemon: Daemon) -> Inquiries:
    """What is looked into on demand, in threads that end with the daemon."""
    roots = daemon.roots
    inquiries = Inquiries(
        SingleFlight(Finder(roots, for_others=True).find, "backends", INQUIRY_DEADLINE_SECONDS),
        SingleFlight(Examiner(roots).examine, "the machine", INQUIRY_DEADLINE_SECONDS),
        SingleFlight(PssReader(roots).read, "a PSS", PSS_DEADLINE_SECONDS),
    )
    daemon.on_leaving.append(inquiries.close)
    return inquiries


def create_pages(daemon: Daemon) -> Pages:
    monitor = daemon.monitor
    return Pages(
        lambda: monitor.rules.pressure,
        lambda: monitor.history_writer,
        monitor.growth,
        lambda: monitor.events.latest(SHOWN_EVENTS),
        alerting=lambda: build_view(monitor, daemon.alerting),
        history=lambda: monitor.history,
    )
