"""The section [tune] of a run's file: which keys may take which values, and how they are searched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from cloud.errors import TrainError
from cloud.train.jobs.sections import READ, Section, need
from federated.tables import Count, NotNegative, Number, Whole

__all__ = ["Choices", "Dimension", "Range", "Tune", "change_of"]


class Range(Section, frozen=True):
    """Numbers from `low` to `high`, both included; `log`: by their logarithms; `integer`: whole ones."""

    low: Number
    high: Number
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.low < self.high, "high", f"a number above low, {self.low:g}", self.high)
        need(not self.log or self.low > 0, "low", "a number above 0 with log = true", self.low)
        whole = float(self.low).is_integer() and float(self.high).is_integer()
        need(not self.integer or whole, "low and high", "whole numbers with integer = true", [self.low, self.high])

    @property
    def ends(self) -> tuple[float, float]:
        """Its first and last value; ints if they are whole ones."""
        return (int(self.low), int(self.high)) if self.integer else (float(self.low), float(self.high))


class Choices(Section, frozen=True):
    """One of these values of any type."""

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = [json.dumps(value, sort_keys=True) for value in self.choices]
        need(len(texts) > 1, "choices", "at least two values", list(self.choices))
        need(len({*texts}) == len(texts), "choices", "different values", list(self.choices))

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them."""
        return self.choices


Dimension: TypeAlias = Range | Choices
_FIXED = ("checkpoint", "export", "track", "tune")
"""Sections that say nothing about what is learned."""


class Tune(Section, frozen=True):
    """How `msedge tune` searches."""

    space: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """By key of this file ("train.rate"): { low, high, log, integer }, or a list of values."""
    metric: str = "loss"
    """Validation's "loss" or a metric."""
    mode: Literal["", "min", "max"] = ""
    """Whether less or more of it is better; "": as is known of the metric."""
    method: Literal["bayes", "random"] = "bayes"
    """By the results so far (tree-structured Parzen estimator), or at random."""
    trials: Count = 20
    evaluations: Whole = 0
    """No further trial begins when all together had this many evaluations (epochs, unless train.evaluate_* say
    otherwise); 0: no limit."""
    seconds: NotNegative = 0.0
    """After this time trials are interrupted; 0: no limit."""
    processes: Count = 1
    halving: Whole = 3
    """At each rung a trial goes on if it is among the best 1 / halving of those that were there; 0: all go on."""
    least: Count = 1
    """Evaluations at the first rung; at each further one `halving` times as many."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 31, description="a whole number from 0 to below 2^31")] = 0
    folder: str = "study"

    def __post_init__(self) -> None:
        super().__post_init__()
        need(bool(self.dimensions), "tune.space", 'at least one key, such as "train.rate" = { low = 1e-4, high = 0.1 }',
             dict(self.space))  # fmt: skip
        need(self.halving != 1, "tune.halving", "0 or at least 2", self.halving)
        need(bool(self.folder), "tune.folder", "a folder", self.folder)

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """The space by key, in the order of keys."""
        return dict(sorted(_dimensions(self.space, "")))


def _dimensions(tables: Mapping[str, Any], before: str) -> Iterator[tuple[str, Dimension]]:
    """The keys may be written as "train.rate" or as nested tables."""
    for name, said in tables.items():
        key = f"{before}{name}"
        where = f"tune.space.{key}"
        if isinstance(said, Mapping) and said and not {"low", "high", "choices"} & {*said}:
            yield from _dimensions(said, f"{key}.")
            continue
        need(isinstance(said, list | Mapping), where, "{ low = …, high = … } or a list of values", said)
        need("." in key and key.partition(".")[0] not in _FIXED, where,
             f"a key such as train.rate, of no section among {', '.join(_FIXED)}", key)  # fmt: skip
        said = {"choices": said} if isinstance(said, list) else said
        try:
            yield key, READ.read(Choices, said, where) if "choices" in said else READ.read(Range, said, where)
        except TrainError as error:
            raise TrainError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error


def change_of(key: str, value: Any) -> str:
    """The change of a run's file as `--set` takes it: "train.rate=0.01"."""
    return f"{key}={_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    return repr(value)
