"""Keys of a model's config.json: typed reads, and a record of the keys that were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memwatch.planning.sizes import InvalidInputError

Json = Mapping[str, Any]
Fields = dict[str, int]


class UnknownFamilyError(InvalidInputError):
    """A config.json of a family whose layers are not known."""


class ReadKeys(Mapping[str, object]):
    """A config whose reads are recorded: `unread` has the keys that no code asked for."""

    def __init__(self, keys: Json) -> None:
        self._keys = keys
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self._read.add(name)
        return self._keys[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def unread(self) -> list[str]:
        return [name for name in self._keys if name not in self._read]


def number(text: Json, *words: str) -> int:
    """Return the first positive integer among `words`, else 0. The user of the value checks the upper limit."""
    found = [text.get(word) for word in words]
    return next((one for one in found if type(one) is int and one > 0), 0)


def integers(text: Json, word: str) -> list[int]:
    """Return a list of integers, empty if it is none."""
    found = text.get(word)
    return found if isinstance(found, list) and all(type(one) is int for one in found) else []


def layer_types(text: Json) -> list[str]:
    """Return the type of each layer. Some files list more than they have, for multi-token prediction."""
    found = [text.get(word) for word in ("layer_types", "layers_block_type")]
    types = next((one for one in found if isinstance(one, list)), [])
    return [str(one) for one in types][: number(text, "num_hidden_layers") or None]


def count_layers(text: Json) -> int:
    """Return the number of layers. transformers 5 writes some hybrid models with the list of types only."""
    return number(text, "num_hidden_layers", "n_layer", "num_layers") or len(layer_types(text))
