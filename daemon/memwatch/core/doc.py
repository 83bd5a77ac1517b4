"""Documentation of a field, beside its type: `Annotated[int, Doc("…")]`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Doc(Struct, frozen=True):
    """Meaning of a field: the comment above a key in the configuration file, the description in the API.

    `values`: those of this version, where readers have to expect others of later ones.
    """

    text: str = ""
    examples: tuple[Any, ...] = ()
    values: tuple[str, ...] = ()
