"""GET /api/v1/fit: whether so many bytes, or a model of a shape, would fit on this machine now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.fit import fit_of
from memwatch.planning.quantities import BadInput, bytes_of
from memwatch.planning.question import Use, need_of_checkpoint
from memwatch.planning.transformer import Transformer
from memwatch.snapshot import Snapshot
from memwatch_web.as_json import fit_json, to_bytes
from memwatch_web.problems import Problem

SHAPE = ("hidden_size", "intermediate_size", "n_layers", "vocab_size", "n_heads", "n_kv_heads")


class FitQuestion(BaseModel):
    """A size, or the shape of a model and how it is to be used."""

    model_config = ConfigDict(extra="forbid")

    bytes: str | None = Field(None, max_length=40, description="Such as 20GiB, or a number of bytes.")
    hidden_size: int | None = None
    intermediate_size: int | None = None
    n_layers: int | None = None
    vocab_size: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    context: int = Field(8192, ge=1, le=1 << 30, description="Tokens of each sequence.")
    batch: int = Field(1, ge=1, le=1 << 20, description="Sequences at a time.")
    dtype: str = Field("bfloat16", max_length=40, description="Of the weights: bfloat16, int8, nf4, q4_k, …")

    def need(self) -> int:
        """Raises BadInput."""
        shape = {name: getattr(self, name) for name in SHAPE}
        given = [name for name, value in shape.items() if value is not None]
        if self.bytes is not None and not given:
            return bytes_of(self.bytes, "bytes")
        missing = [name for name in SHAPE if name not in given]
        if self.bytes is not None or missing:
            lacking = f"; {', '.join(missing)} are missing" if given and missing else ""
            raise BadInput(f"give either bytes, for example bytes=20GiB, or all of {', '.join(SHAPE)}{lacking}")
        model = Checkpoint("model", "shape", Transformer(**shape), None, self.context, 2.0)
        return need_of_checkpoint(model, Use(self.context, self.batch, self.dtype)).bytes


def create_router(current: Callable[[], Snapshot]) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["memory"])

    @router.get("/fit")
    async def fit(question: Annotated[FitQuestion, Query()]) -> Response:
        """Whether it would fit now, on which device, with how much to spare, and why."""
        try:
            need = question.need()
        except BadInput as error:
            raise Problem(422, f"{error}.") from None
        return Response(to_bytes(fit_json(fit_of(need, current()))), media_type="application/json")

    return router
