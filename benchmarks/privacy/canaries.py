"""Lower bounds of epsilon beside the accountant's on ten settings, and on mechanisms with a planted mistake.

    python -m benchmarks.privacy.canaries [--out OUT.json] [--trials 2000] [--canaries 1000]

Each setting is audited twice: the mechanism run many times with and without a canary, and one federated run with many
canaries. Mistakes: no noise, an eighth of it, a half of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cloud.audit.privacy.canaries import Audited, audit_mechanism, audit_run
from federated.privacy.noise import NoiseSource, SecureSource
from lite_runtime._files import write_atomically


class Setting(NamedTuple):
    """A run: [privacy], rounds, the share of devices in each."""

    privacy: Mapping[str, Any]
    rounds: int = 1
    rate: float = 1.0


def central(clip: float = 1.0, **more: Any) -> dict[str, Any]:
    """Central noise."""
    return {"clip": clip, "noise": "central", **more}


SETTINGS = (
    Setting(central(multiplier=0.5)),
    Setting(central(multiplier=1.0)),
    Setting(central(multiplier=2.0)),
    Setting(central(multiplier=4.0)),
    Setting(central(multiplier=2.0), 4),
    Setting(central(multiplier=3.0, by_layer=True), 4),
    Setting(central(multiplier=1.0, sampling="poisson"), 4, 0.25),
    Setting(central(multiplier=0.7, sampling="poisson"), 8, 0.1),
    Setting(central(0.1, epsilon=1.0), 2),
    Setting(central(10.0, epsilon=3.0, sampling="poisson"), 8, 0.5),
)
BROKEN = (Setting(central(multiplier=2.0)), Setting(central(multiplier=4.0)), Setting(central(epsilon=1.0), 4))


class Weakened(NoiseSource):
    """A mistake: a part of the noise."""

    def __init__(self, share: float) -> None:
        self._share, self._whole = share, SecureSource()

    def normal(self, size: int) -> np.ndarray:
        """That part."""
        return np.asarray(self._share * self._whole.normal(size))


def row(setting: Setting, share: float, trials: int, canaries: int) -> dict[str, Any]:
    """Both audits of one setting."""
    source = Weakened(share)
    many = audit_mechanism(setting.privacy, rounds=setting.rounds, rate=setting.rate, trials=trials, source=source)
    once = audit_run(setting.privacy, canaries=canaries, rounds=setting.rounds, rate=setting.rate, source=source)

    def shown(found: Audited) -> dict[str, Any]:
        return {"lower": round(found.lower, 3), "claimed": round(found.claimed, 3), "holds": found.holds}

    many_runs = {**shown(many), "gaussian": many.gaussian and round(many.gaussian, 3)}
    return {**setting._asdict(), "noise_added": share, "many_runs": many_runs, "one_run": shown(once)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--canaries", type=int, default=1000)
    args = parser.parse_args()
    rows = []
    for setting, share in [*((one, 1.0) for one in SETTINGS), *((one, s) for one in BROKEN for s in (0.0, 0.125, 0.5))]:
        rows.append(row(setting, share, args.trials, args.canaries))
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        write_atomically(args.out, json.dumps(rows, indent=1).encode())


if __name__ == "__main__":
    main()
