"""How often the loop's test is wrong, and how soon it is right: `python -m benchmarks.drift har.npz OUT.json`.

100 simulated devices of real people tell 20 examples an hour each. A device does one thing for a while: all examples of
an hour have one label, which stays from hour to hour with probability 0.8; so examples are anything but independent. In
the months without a change, alarms are counted (after one, a new reference is taken). In each trial a third of the
devices has an axis flipped, after a week.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from cloud.hub.loop.drift import NOTHING, Rule, State, Told, after, windows_to_detect
from edge.demo.updates.scene import Examples, Scene, scene
from lite_runtime._files import write_atomically
from lite_runtime.updates.sketch import ACCURACY, Sketch

DEVICES, DRAWN, STAYS = 100, 20, 0.8
MONTH, WEEK = 730, 168
"""Windows: one an hour."""
REFERENCE = 10_000.0


class Fleet:
    """Devices and what they do now."""

    def __init__(self, there: Scene, rng: np.random.Generator) -> None:
        self._there, self._rng = there, rng
        self._mine = list(there.devices.values())
        self._labels = [int(rng.choice(mine.learn.y)) for mine in self._mine]

    def window(self, changed: bool) -> Told:
        """What all devices tell in an hour."""
        parts = []
        for number, mine in enumerate(self._mine):
            if self._rng.random() > STAYS:
                self._labels[number] = int(self._rng.choice(mine.learn.y))
            seen = mine.learn_later if changed else mine.learn
            parts.append(seen.x[self._rng.choice(_of(seen, self._labels[number]), DRAWN)])
        x = np.concatenate(parts)
        return Told({name: _sketch(x[:, column]) for name, column in self._there.streams.items()}, {})


def _of(examples: Examples, label: int) -> npt.NDArray[np.intp]:
    return np.flatnonzero(examples.y == label)


def _sketch(values: npt.NDArray[np.float32]) -> Sketch:
    """The sketch of many values at once, as adding each gives it."""
    base = math.log((1 + ACCURACY) / (1 - ACCURACY))
    found = Sketch()
    for side, chosen in ((found.positive, values[values > 0]), (found.negative, -values[values < 0])):
        bins, counts = np.unique(np.ceil(np.log(chosen.astype(np.float64)) / base).astype(int), return_counts=True)
        side.update(zip(bins.tolist(), counts.astype(float).tolist(), strict=True))
    found.zero = float((values == 0).sum())
    return found


def _alarms(there: Scene, rule: Rule, months: int, rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    """The windows at which alarms came without a change; distances of all windows are the second part of the last."""
    fleet, state, farthest = Fleet(there, rng), State(), 0.0
    for window in range(months * MONTH):
        state = after(state, fleet.window(False), rule)
        farthest = max([farthest, *(one.distance for one in state.streams.values())])
        if state.alarm:
            yield window, farthest
            state = State(NOTHING)
    yield -1, farthest


def _delay(there: Scene, rule: Rule, rng: np.random.Generator) -> tuple[int, float]:
    """Windows from the change to the alarm, and the distance of the farthest stream in the first of them."""
    fleet, state, far = Fleet(there, rng), State(), 0.0
    for window in range(WEEK + MONTH):
        state = after(state, fleet.window(window >= WEEK), rule)
        far = far if window < WEEK or far else max(one.distance for one in state.streams.values())
        if state.alarm:
            return window + 1 - WEEK, far
    return MONTH, far


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="har_30_subjects.npz")
    parser.add_argument("out", type=Path, help="JSON")
    parser.add_argument("--months", type=int, default=24)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--tolerance", type=float, default=0.1)
    args = parser.parse_args()
    there = scene(DEVICES, args.data)
    rule = Rule(args.tolerance, float(MONTH), REFERENCE)
    found = list(_alarms(there, rule, args.months, np.random.default_rng(1)))
    delays = [_delay(there, rule, np.random.default_rng(100 + trial)) for trial in range(args.trials)]
    windows, far = [one[0] for one in delays], median(one[1] for one in delays)
    promised = windows_to_detect(far, rule, len(there.streams))
    made = {
        "devices": DEVICES, "examples_of_a_window": DEVICES * DRAWN, "streams": len(there.streams),
        "months": args.months, "false_alarms": len(found) - 1, "largest_calm_distance": round(found[-1][1], 4),
        "trials": args.trials, "windows": {"median": median(windows), "most": max(windows)},
        "examples": {"median": median(windows) * DEVICES * DRAWN, "most": max(windows) * DEVICES * DRAWN},
        "distance": round(far, 4), "promised_windows_at_this_distance": promised, "tolerance": args.tolerance,
    }  # fmt: skip
    write_atomically(args.out, json.dumps(made, indent=1).encode())
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
