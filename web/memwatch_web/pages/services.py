"""Dependencies of the page handlers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import field

from memwatch_web.api.services import Services
from memwatch_web.asgi.access import WebOptions
from memwatch_web.asgi.sse import SharedDeflate
from memwatch_web.pages.renderer import Pages


class PageServices(Services, kw_only=True):
    """The services of the API, and those of the pages."""

    pages: Pages
    options: Callable[[], WebOptions]
    deflated: dict[str, SharedDeflate] = field(default_factory=dict)
