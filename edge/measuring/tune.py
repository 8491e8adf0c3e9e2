"""Which of its ways this machine computes a model's steps fastest: measured, step by step, and kept for every model.

All ways are timed in turns, by the native profile: a way that wins by less than `GAIN` is luck, and the rule stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import lite_runtime
from lite_runtime.graph import Array
from lite_runtime.native import tuning
from lite_runtime.running.session import Model

__all__ = ["GAIN", "Found", "keep", "tune"]

GAIN = 0.03
"""Least share of its time that a step must gain for the machine to leave the rule."""
ROUNDS, REPEATS = 7, 3
"""Turns of every way, and runs in a turn; the fastest turn counts."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for one shape: seconds of all steps that have it, by the rule's way and by the best."""

    key: str
    steps: int
    rule: str
    best: str
    rule_seconds: float
    best_seconds: float

    @property
    def gains(self) -> bool:
        """Whether the best way is better than the rule's by more than luck."""
        return self.best_seconds < (1 - GAIN) * self.rule_seconds


def tune(
    bundle: bytes,
    inputs: Mapping[str, Array],
    *,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Found]:
    """Time every way of every step of `predict` that has several. `progress`: told of turns done, and of how many."""
    first = lite_runtime.load(bundle, threads=threads, choices={})
    first.run(inputs)
    asked = first.choices.asked
    ways = [first]
    for i in range(1, max((len(options) for options in asked.values()), default=1)):
        chosen = {key: options[i] for key, options in asked.items() if i < len(options)}
        ways.append(lite_runtime.load(bundle, threads=threads, choices=chosen))
    times: list[dict[str, float]] = [{} for _ in ways]
    for turn in range(ROUNDS if asked else 0):
        for model, fastest in zip(ways, times, strict=True):
            for key, seconds in _seconds(model, inputs, first.choices.nodes).items():
                fastest[key] = min(seconds, fastest.get(key, seconds))
        if progress is not None:
            progress(turn + 1, ROUNDS)
    return [_found(key, options, times, len(first.choices.nodes[key])) for key, options in asked.items()]


def _seconds(model: Model, inputs: Mapping[str, Array], nodes: Mapping[str, list[str]]) -> dict[str, float]:
    """Of one turn, by key: all steps of the operators that asked for it."""
    of_node: dict[str, float] = {}
    for row in model.profile(inputs, repeats=REPEATS):
        of_node[row.node] = of_node.get(row.node, 0.0) + row.seconds
    return {key: sum(of_node.get(node, 0.0) for node in names) for key, names in nodes.items()}


def _found(key: str, options: tuple[str, ...], times: list[dict[str, float]], steps: int) -> Found:
    seconds = {option: found[key] for option, found in zip(options, times, strict=False)}
    best = min(seconds, key=lambda option: seconds[option])
    return Found(key, steps, options[0], best, seconds[options[0]], seconds[best])


def keep(found: list[Found]) -> str:
    """Add to what this machine was tuned to; the file's path."""
    kept = tuning.kept()
    for one in found:
        kept.pop(one.key, None)
        if one.gains:
            kept[one.key] = one.best
    tuning.keep(kept)
    return tuning.path()
