"""A small fleet for trials: `python make_fleet.py FOLDER` writes model.mslite and devices.npz there, and runs of
three kinds: run.toml trains the model, statistics.toml asks for statistics, trees.toml grows boosted trees.

Softmax regression on Synthetic(0.5, 0.5) (Li et al. 2020), a few hundred examples per device; devices are `device-00`
….
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from cloud.zoo import mlp
from converter import convert
from federated import synthetic

DEVICES, MOST = 10, 400
CONFIG = """\
[model]
bundle = "model.mslite"

[data]
shards = "devices.npz"

[algorithm]
name = "fedavg"
rate = 0.05

[rounds]
count = 5
minimum = 3

[evaluation]
every = 5

[codec]
up = ["feedback", "topk:0.1", "int8"]

[state]
checkpoint = "run.state"

[report]
json = "run.json"
"""
STATISTICS = """\
[data]
shards = "devices.npz"

[[analytics]]
kind = "histogram"
feature = "labels"
low = -0.5
high = 9.5
bins = 10

[[analytics]]
kind = "quantiles"
feature = "x"
low = -10
high = 10

[privacy]
secure = true
"""
TREES = """\
[data]
shards = "devices.npz"

[trees]
objective = "multi:softprob"
classes = 10
features = 60
n_estimators = 5
max_depth = 3

[report]
model = "trees.json"
"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    fleet = [(data.inputs["x"][:MOST], data.labels[:MOST]) for data in synthetic(0.5, 0.5, DEVICES)]
    names = [f"device-{at:02d}" for at, (x, _) in enumerate(fleet) for _ in x]
    x, labels = (np.concatenate(parts) for parts in zip(*fleet, strict=True))
    np.savez(folder / "devices.npz", x=x, labels=labels, device=np.array(names))
    convert(mlp(60, 10), output=folder / "model.mslite", trainable="*")
    for name, text in (("run", CONFIG), ("statistics", STATISTICS), ("trees", TREES)):
        (folder / f"{name}.toml").write_text(text)
        print(f"next: msedge federate {folder / name}.toml --simulate 0")


if __name__ == "__main__":
    main()
