"""Transport of requests that sends by the HTTP client of webhooks: one deadline from the connection to the answer.

The timeout of requests is for each read. A receiver that sends a byte now and then would hold the thread for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from memwatch.core.http import Admit
from memwatch.monitor.notify.http_post import DEFAULT_PORTS, Endpoint, Poster, PostResult

if TYPE_CHECKING:
    import ssl

# Set by requests for a connection that is kept, and for a body that is decoded. Here neither is.
_OF_REQUESTS = frozenset({"connection", "accept", "accept-encoding"})


class PushFailedError(requests.exceptions.ConnectionError):
    """An attempt without an answer, or with a redirect. The message names no path of the URL."""


class DeadlineAdapter(BaseAdapter):
    """Sends each request on a new connection. `tls` returns the context for https, `admit` checks each connection.

    `failure`: why the last attempt failed, without the URL. The SDK has it only in its log.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext], admit: Admit | None = None) -> None:
        super().__init__()
        self._admit = admit
        self.failure = ""
        self._tls = tls
        self._poster: Poster | None = None
        self._is_closed = False

    def send(  # type: ignore[override]  # the stubs have the proxies of a session, which has none here
        self,
        request: requests.PreparedRequest,
        timeout: float | None = None,
        **_: Any,  # noqa: ANN401
    ) -> requests.Response:
        endpoint = parse_endpoint(str(request.url))
        headers = {name: str(value) for name, value in request.headers.items() if name.lower() not in _OF_REQUESTS}
        body = request.body if isinstance(request.body, bytes) else str(request.body or "").encode()
        result = self._post(endpoint, round(timeout or 0.0, 2), headers, body)
        self.failure = "" if result.success else result.failure
        if result.status is None or 300 <= result.status < 400:
            raise PushFailedError(result.failure)
        return build_response(request, result)

    def _post(self, endpoint: Endpoint, seconds: float, headers: Mapping[str, str], body: bytes) -> PostResult:
        try:
            tls = self._tls() if endpoint.scheme == "https" else None
        except (OSError, ValueError) as error:  # its file may have been replaced
            return PostResult(None, f"its ca_file {error}")
        self._poster = Poster(endpoint, seconds, allow_link_local=True, tls=tls, wall=time.time, admit=self._admit)
        if self._is_closed:
            self._poster.abort()
        return self._poster.post(dict(headers), body)

    def close(self) -> None:
        """End the request in progress."""
        self._is_closed = True
        if self._poster is not None:
            self._poster.abort()


def parse_endpoint(url: str) -> Endpoint:
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    return Endpoint(parts.scheme, parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme], path)


def build_response(request: requests.PreparedRequest, result: PostResult) -> requests.Response:
    """Return the answer without its body, which says nothing that is used."""
    response = requests.Response()
    response.status_code, response.reason = result.status or 0, result.failure
    response.request, response.url = request, str(request.url)
    response.headers = CaseInsensitiveDict()
    if result.retry_after_seconds > 0:
        response.headers["Retry-After"] = str(round(result.retry_after_seconds))
    return response
