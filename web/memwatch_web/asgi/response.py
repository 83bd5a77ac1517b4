"""A complete response. Starlette's loads 60 modules (1.4 MiB) that scrapes and health checks do not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send


class BytesResponse:
    """ASGI response that is complete. `headers` are those of the whole response; names are in lower case."""

    def __init__(
        self, body: bytes, media_type: str, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body = body
        self.status_code = status_code
        own = {name.lower(): value for name, value in (headers or {}).items()}
        self.headers: Mapping[str, str] = {**own, "content-length": str(len(body)), "content-type": media_type}

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status_code, "headers": fields})
        await send({"type": "http.response.body", "body": self.body})

    def for_fastapi(self) -> Response:
        """Return the same response as FastAPI takes it from a path operation function."""
        from starlette.responses import Response

        return Response(self.body, self.status_code, dict(self.headers))
