"""Attribute inference: the column `sex` of the diabetes table, guessed for members and for others.

    python -m benchmarks.privacy.attributes [--seeds 5]

scikit-learn's diabetes table, the class being a progression above the median. A perceptron is trained on a third of the
rows; the second third are rows that it never saw, the last is what the attacker has of other people.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import optax
from sklearn.datasets import load_diabetes

import msedge
from cloud.audit.privacy.attributes import attribute_inference
from cloud.audit.victim import from_onnx
from cloud.zoo import mlp

SEX = 1


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    table = load_diabetes()
    x = np.asarray(table.data / table.data.std(0), np.float32)
    y = (table.target > np.median(table.target)).astype(np.int64)
    for seed in range(args.seeds):
        own, unseen, known = np.array_split(np.random.default_rng(seed).permutation(len(x)), 3)
        trainer = msedge.Trainer(mlp(x.shape[1], 2, [64], seed), optimizer=optax.adam(5e-3), seed=seed)
        trainer.fit((x[own], y[own]), 200, 32)
        victim = from_onnx(trainer.export())
        for name, rows in (("members", own), ("others", unseen)):
            found = attribute_inference(victim, x[rows], y[rows], SEX, reference=(x[known], y[known]))
            print(
                json.dumps(
                    {
                        "seed": seed,
                        "of": name,
                        "with_model": list(found.with_model),
                        "without_model": list(found.without_model),
                        "most_frequent": found.most_frequent,
                        "advantage": found.advantage,
                        "p_value": found.p_value,
                    }
                )
            )


if __name__ == "__main__":
    main()
