"""Low-rank adapters of a language model (Hu et al., 2021, "LoRA"), and the places of an engine that hold some of them.

    adapter = Adapter.load("alice.msstate")
    for piece in model.generate("Hello", adapter=adapter):
        ...

A file is a state file (`lite_runtime.learning.checkpoint`) with the arrays `layer.3.query.lora_a` [inputs, rank] and
`layer.3.query.lora_b` [rank, outputs] of every product that the bundle names, and nothing else.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["Adapter", "Layout", "NoSlot", "Slots", "Target", "blank", "layout"]

_MOST = 1 << 28
"""Numbers of an adapter, at most."""
_NONE = "this model takes no adapters; convert it with adapters (--lora)"


class NoSlot(MsedgeError):
    """All places for adapters are used by texts."""


class Target(NamedTuple):
    """A product that has adapters: (inputs, rank) and (rank, outputs)."""

    name: str
    inputs: int
    outputs: int


class Layout(NamedTuple):
    """What a bundle says of its adapters. rank: the highest. factor: what B is multiplied by."""

    rank: int
    factor: float
    targets: tuple[Target, ...]

    @property
    def size(self) -> int:
        """Numbers of an adapter."""
        return self.rank * sum(target.inputs + target.outputs for target in self.targets)


def layout(about: Mapping[str, Any]) -> Layout | None:
    """The adapters that a language model takes, by the bundle's metadata about it; None: none. Raises InputError for a
    description that is not one."""
    said = about.get("adapters")
    if said is None:
        return None
    try:
        rows = tuple(Target(str(row["name"]), row["inputs"], row["outputs"]) for row in said["targets"])
        made = Layout(said["rank"], float(said["factor"]), rows)
        counts = [made.rank, *(count for row in rows for count in row[1:])]
        fits = all(type(count) is int and 0 < count < 1 << 24 for count in counts) and 0 < made.size <= _MOST
        known = len({row.name for row in rows}) == len(rows) and np.isfinite(made.factor)
    except (KeyError, TypeError, ValueError):
        fits = known = False
    if not fits or not known:
        raise InputError("this bundle's description of its adapters is damaged; convert the model again")
    return made


class Adapter:
    """What was learned beside the weights of one bundle."""

    def __init__(self, arrays: Mapping[str, Array], model: str) -> None:
        """arrays: float32, by name. model: the digest of the bundle that they belong to."""
        self.arrays, self.model = MappingProxyType(dict(arrays)), model

    @classmethod
    def load(cls, source: str | os.PathLike[str] | bytes | memoryview) -> Adapter:
        """The adapter in a file. Raises BundleError for one that cannot be read or is damaged."""
        from lite_runtime.learning import checkpoint

        found = checkpoint.read(source)
        return cls(found.state, found.model)

    @classmethod
    def of_state(cls, state: Mapping[str, Array], about: Mapping[str, Any], model: str) -> Adapter:
        """The adapter in the state of a model that learned, or in a part of it and the bundle's own. about, model: the
        bundle's metadata about the language model, and its digest. Raises InputError for a bundle that takes no
        adapters, and for state without them."""
        places = layout(about)
        if places is None:
            raise InputError(_NONE)
        names = [f"{target.name}.lora_{part}" for target in places.targets for part in "ab"]
        if missing := [name for name in names if name not in state]:
            raise InputError(
                f"expected state with the {len(names)} arrays of the model's adapters, got none named {missing[0]}; "
                "take the state of the model that learned"
            )
        return cls({name: state[name] for name in names}, model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, atomically. Raises BundleError."""
        from lite_runtime.learning import checkpoint

        checkpoint.write(path, self.arrays, self.model)

    @cached_property
    def digest(self) -> str:
        """Identifies the arrays and the model."""
        from lite_runtime.learning import checkpoint

        return checkpoint.read(checkpoint.write(None, self.arrays, self.model)).digest

    def flat(self, about: Mapping[str, Any]) -> Array:
        """All numbers as LoraMatMul reads them, float32 [size]: for each product A transposed, then B times the factor,
        both with zeros up to the bundle's rank. about: the bundle's metadata. Raises InputError for a bundle that takes
        no adapters, and for arrays that are missing, left over, of another shape or rank, or not finite."""
        places = layout(about)
        if places is None:
            raise InputError(_NONE)
        self._check_names(places)
        made, at = np.zeros(places.size, np.float32), 0
        for target in places.targets:
            a, b = self._matrices(target, places.rank)
            middle = at + places.rank * target.inputs
            made[at : at + a.size] = a.T.reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                made[middle : middle + b.size] = b.reshape(-1) * np.float32(places.factor)
            at = middle + places.rank * target.outputs
        if not np.isfinite(made).all():
            raise InputError(
                "expected finite numbers in an adapter, got infinity or NaN; its training failed: train it again"
            )
        return made

    def _check_names(self, places: Layout) -> None:
        wanted = {f"{target.name}.lora_{part}" for target in places.targets for part in "ab"}
        for names, what in ((wanted - set(self.arrays), "lacks"), (set(self.arrays) - wanted, "has unknown")):
            if names:
                some = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
                raise InputError(
                    f"expected an adapter with the {len(wanted)} arrays that this model names, got one that {what} "
                    f"{some}; train it with this model"
                )

    def _matrices(self, target: Target, rank: int) -> tuple[Array, Array]:
        a, b = (self.arrays[f"{target.name}.lora_{part}"] for part in "ab")
        own = a.shape[1] if a.ndim == 2 else 0
        if (a.shape, b.shape) != ((target.inputs, own), (own, target.outputs)) or own < 1:
            raise InputError(
                f"adapter of {target.name!r}: expected shapes [{target.inputs}, rank] and [rank, {target.outputs}], "
                f"got {list(a.shape)} and {list(b.shape)}"
            )
        if a.dtype != np.float32 or b.dtype != np.float32:
            raise InputError(f"adapter of {target.name!r}: expected float32, got {a.dtype} and {b.dtype}")
        if own > rank:
            raise InputError(
                f"adapter of {target.name!r}: expected a rank of at most {rank}, as the bundle has, got {own}; convert "
                "the model with a higher rank, or train the adapter with a lower one"
            )
        return a, b


def blank(places: Layout, model: str) -> Adapter:
    """An adapter of rank 1 that changes nothing."""
    arrays = {}
    for name, inputs, outputs in places.targets:
        arrays[f"{name}.lora_a"] = np.zeros((inputs, 1), np.float32)
        arrays[f"{name}.lora_b"] = np.zeros((1, outputs), np.float32)
    return Adapter(arrays, model)


class Holds(Protocol):
    """What has places for adapters: an `Engine`."""

    def attach(self, adapter: Adapter) -> int:
        """Put an adapter into a free place; its number."""

    def detach(self, slot: int) -> None:
        """Free a place."""

    @property
    def free_slots(self) -> int:
        """Places that are free."""


class _Used:
    """A place: its number, and how many texts use it."""

    def __init__(self, slot: int) -> None:
        self.slot, self.texts = slot, 0


class Slots:
    """Which adapters are in the places of an engine. An adapter stays until another one needs its place."""

    def __init__(self, engine: Holds, forget: Callable[[int], object]) -> None:
        """forget: called with a place whose adapter makes way; what is kept of its texts is of no use then."""
        self._engine, self._forget = engine, forget
        self._used: OrderedDict[str, _Used] = OrderedDict()
        """By digest, the least recently used first."""

    def __len__(self) -> int:
        """Adapters that are in places."""
        return len(self._used)

    def find(self, adapter: Adapter | None) -> int | None:
        """The place of an adapter, -1 for no adapter; None if it has none."""
        if adapter is None:
            return -1
        held = self._used.get(adapter.digest)
        return None if held is None else held.slot

    def room(self, adapter: Adapter | None) -> bool:
        """Whether `take` would find a place."""
        free = self._engine.free_slots or any(not held.texts for held in self._used.values())
        return adapter is None or adapter.digest in self._used or bool(free)

    def take(self, adapter: Adapter | None) -> int:
        """The place of an adapter for one more text, -1 for no adapter. Raises NoSlot if texts use all places,
        InputError for an adapter that does not fit the model."""
        if adapter is None:
            return -1
        if adapter.digest not in self._used:
            if not self._engine.free_slots:
                self._make_way()
            self._used[adapter.digest] = _Used(self._engine.attach(adapter))
        held = self._used[adapter.digest]
        self._used.move_to_end(adapter.digest)
        held.texts += 1
        return held.slot

    def give_back(self, slot: int) -> None:
        """A text that used this place, or none (-1), has ended."""
        for held in self._used.values():
            if held.slot == slot:
                held.texts -= 1

    def _make_way(self) -> None:
        found = next((digest for digest, held in self._used.items() if not held.texts), None)
        if found is None:
            raise NoSlot(
                f"texts use all {len(self._used)} places for adapters; end one of them, or load the model with more "
                "(adapters=…)"
            )
        slot = self._used.pop(found).slot
        self._forget(slot)
        self._engine.detach(slot)
