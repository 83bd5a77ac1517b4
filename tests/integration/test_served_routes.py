"""The application serves exactly the routes of the route tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route as ServedRoute

from memwatch_web.api_app import API, api_routes, create_api
from memwatch_web.asgi import static_files
from memwatch_web.asgi.routes import OPENAPI, is_of_api
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages.template_environment import LINKS, PATHS
from memwatch_web.pages_app import PAGES, create_pages_app
from memwatchd.daemon import Daemon
from memwatchd.settings.schema import Settings
from memwatchd.web_app import create_page_services, create_services


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon(Settings(), lambda _: Settings())
    yield daemon
    daemon.stop()


@pytest.fixture
def app(daemon: Daemon) -> FastAPI:
    return create_api(create_services(daemon), MetricsEndpoint(daemon.monitor, daemon.exporter))


def served_by(app: Starlette) -> list[tuple[str, str]]:
    return [
        (method, route.path)
        for route in app.routes
        if isinstance(route, ServedRoute)
        for method in route.methods or ()
        if method != "HEAD"
    ]


def test_applications_serve_the_route_tables(daemon: Daemon, app: FastAPI) -> None:
    pages = served_by(create_pages_app(create_page_services(daemon, create_services(daemon))))

    assert sorted(served_by(app)) == sorted([*((one.method, one.path) for one in api_routes()), ("GET", OPENAPI)])
    assert sorted(pages) == sorted(
        [*((one.method, one.path) for one in PAGES), *(("GET", one.path) for one in static_files.routes())]
    )
    assert all(is_of_api(path) for _, path in served_by(app))
    assert not any(is_of_api(path) for _, path in pages)


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
