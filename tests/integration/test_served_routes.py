"""The application serves exactly the routes of the route tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.routing import Route as ServedRoute

from memwatch_web.api_app import create_api
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages.template_environment import LINKS, PATHS
from memwatch_web.plain_routes import PAGES
from memwatch_web.routes import API, api_routes
from memwatchd.daemon import Daemon
from memwatchd.settings.schema import Settings
from memwatchd.web_app import create_services


@pytest.fixture
def app() -> Iterator[FastAPI]:
    daemon = Daemon(Settings(), lambda _: Settings())
    yield create_api(create_services(daemon, MetricsEndpoint(daemon.monitor, daemon.exporter())))
    daemon.stop()


def test_application_serves_the_route_tables(app: FastAPI) -> None:
    served = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, ServedRoute)
        for method in route.methods or ()
        if method != "HEAD"
    }

    assert served == {(route.method, route.path) for route in (*api_routes(), *PAGES)} | {("GET", "/openapi.json")}
    assert len(served) == len(app.routes)


def test_openapi_describes_the_api_and_no_pages(app: FastAPI) -> None:
    described = {
        (method.upper(), path, *operation["tags"])
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    }

    assert described == {(route.method, route.path, tag) for tag, routes in API.items() for route in routes}


def test_operations_are_described_by_handler_docstrings(app: FastAPI) -> None:
    """Handlers without a docstring return a part of the snapshot, which is described by its name."""
    undescribed = {
        path
        for path, operations in app.openapi()["paths"].items()
        for one in operations.values()
        if not one.get("description")
    }

    assert undescribed == {route.path for route in api_routes() if route.handler.__doc__ is None}


def test_pages_link_to_routes() -> None:
    paths = {route.path for route in PAGES if route.method == "GET"}

    assert {*PATHS.values(), *LINKS.values()} <= paths
