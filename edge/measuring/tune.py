"""Tuning: the fastest kernel choice for each step is measured on this machine and saved for all models.

All choices are timed in turns, by the native profile. A choice that wins by less than `GAIN` is considered noise, and
the default rule stays.
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
"""Smallest gain, as a share of a step's time, for which the default rule is replaced."""
ROUNDS, REPEATS = 7, 3
"""Number of turns for each choice, and runs per turn; the fastest turn counts."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result for one shape: seconds of all steps with it, with the rule's choice and with the best one."""

    key: str
    steps: int
    rule: str
    best: str
    rule_seconds: float
    best_seconds: float

    @property
    def gains(self) -> bool:
        """Whether the best choice is better than the rule's by more than noise."""
        return self.best_seconds < (1 - GAIN) * self.rule_seconds


def tune(
    bundle: bytes,
    inputs: Mapping[str, Array],
    *,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Found]:
    """Time all kernel choices of every step of `predict`. `progress`: called with the turns done and their number."""
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
    """Seconds of one turn, by key: the sum over all steps of the operators with that key."""
    of_node: dict[str, float] = {}
    for row in model.profile(inputs, repeats=REPEATS):
        of_node[row.node] = of_node.get(row.node, 0.0) + row.seconds
    return {key: sum(of_node.get(node, 0.0) for node in names) for key, names in nodes.items()}


def _found(key: str, options: tuple[str, ...], times: list[dict[str, float]], steps: int) -> Found:
    seconds = {option: found[key] for option, found in zip(options, times, strict=False)}
    best = min(seconds, key=lambda option: seconds[option])
    return Found(key, steps, options[0], best, seconds[options[0]], seconds[best])


def keep(found: list[Found]) -> str:
    """Add the results to this machine's tuning file; returns its path."""
    kept = tuning.kept()
    for one in found:
        kept.pop(one.key, None)
        if one.gains:
            kept[one.key] = one.best
    tuning.keep(kept)
    return tuning.path()
