"""Architecture search beside its reference networks: accuracy, latency here and on an Arm port, and the oracle's error.

    python -m benchmarks.search --data ../shared/data --json search.json [--folder DIR] [--tasks kws har wine]

Each task is one `msedge search` with its file; a search that was interrupted is continued. The reference is trained by
the same recipe and as many epochs as finalists (which takes it longer). Held out: of spoken digits a fifth of the
recordings, of inertial sensors nine people, of MNIST its test part; nothing of it takes part in the search. Afterwards
the oracle predicts random networks of the space that it has not seen, from the table of steps alone, and these are then
measured in turns: Spearman's rank correlation, and the error relative to what was measured. Arm: the planner's estimate
for the same two bundles on `aarch64-dotprod`. All timings are of one row by one thread. 7 minutes a task on two cores.
Tables are scikit-learn's (a fifth held out); forecasts are of a wrist's accelerometer, half a second (16 steps) after
three, of people that are in one part each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
from scipy.stats import spearmanr

from cloud.search import Measured, graph, oracle_of, search
from cloud.search.cost import bundle_of, floats_of, latencies, program_of
from cloud.search.data import data_of
from cloud.search.goal import told
from cloud.search.networks import space_of
from cloud.search.space import Space
from cloud.search.task import read
from edge.demo.updates.scene import untangled
from lite_runtime._files import write_atomically

ARM = "aarch64-dotprod"
WARM, CHOICES = 60, 40
"""Random networks of which a table of steps is made, and others whose latency is predicted and measured."""
_HAR = """[task]
kind = "series"
data = "{folder}/har.npz"
group = "subject"
test_share = 0.3
validation_share = 0.3
"""
_SHORT = """[search]
steps = 240
population = 16
generations = 5
finalists = 2
[train]
epochs = 12
"""
"""Of searches that take about ten minutes."""
_TABLE = """[task]
kind = "table"
data = "{{folder}}/{name}.npz"
[search]
steps = 240
population = 16
generations = 5
finalists = 2
[train]
epochs = 60
batch = 32
"""
TASKS = {
    "kws": """[task]
kind = "sound"
data = "{data}/fsdd_spoken_digits.npz"
x = "audio"
offsets = "offsets"
y = "digit"
[reference]
network = "ds_cnn"
"""
    + _SHORT,
    "har": _HAR
    + """[reference]
network = "resnet8"
[search]
finalists = 4
[train]
epochs = 12
""",
    "har-window": _HAR
    + """[reference]
network = "window_cnn"
[search]
bits = [32]
[train]
epochs = 12
""",
    "mnist": """[task]
kind = "image"
data = "{data}/mnist.npz"
x = "x_train"
y = "y_train"
x_test = "x_test"
y_test = "y_test"
most = 6000
scale = 255.0
validation_share = 0.04
[reference]
network = "resnet8"
[train]
epochs = 12
""",
    **{name: _TABLE.format(name=name) for name in ("breast_cancer", "wine", "digits", "diabetes")},
    "wrist": """[task]
kind = "forecast"
data = "{data}/hmp_wrist_accelerometer.npz"
x = "acc"
offsets = "offsets"
group = "volunteer"
window = 96
horizon = 16
hop = 16
season = 32
most = 4000
"""
    + _SHORT,
}
"""The files of searches, by name."""


def predictions(oracle: Measured, space: Space, seed: int = 1234) -> dict[str, Any]:
    """Predicted and measured seconds of random networks, none of which is measured before all are predicted."""
    draw = np.random.default_rng(seed)
    loaded: list[Any] = []
    predicted, unknown = list[float](), 0
    while len(loaded) < CHOICES:
        choice = space.random(draw)
        model, row, steps = program_of(bundle_of(graph(space, choice), floats_of(choice)))
        before = oracle.unknown
        seconds = oracle.predicted(steps)
        unknown += oracle.unknown - before
        if seconds is not None:
            loaded.append((model, row))
            predicted.append(seconds)
    measured = latencies(loaded, rounds=30)
    error = np.abs(np.array(predicted) / np.array(measured) - 1)
    return {
        "networks": len(loaded), "rank_correlation": float(spearmanr(predicted, measured).statistic),
        "mean_error": float(error.mean()), "median_error": float(np.median(error)), "largest_error": float(error.max()),
        "interpolated_steps": unknown, "predicted": predicted, "measured": measured,
    }  # fmt: skip


def asked(name: str, folder: Path) -> tuple[Measured, dict[str, Any]]:
    """A table of steps measured now, and its predictions. Those that the search used may be of a busy machine."""
    file = read(folder / f"{name}.toml")
    space = space_of(file, data_of(file))
    path = folder / f"steps-{name}.json"
    path.unlink(missing_ok=True)
    oracle = Measured(path=path)
    oracle.warm(space, WARM)
    return oracle, predictions(oracle, space)


def write_file(name: str, data: Path, folder: Path) -> Path:
    """The file of a task's search."""
    if "{folder}" in TASKS[name]:
        _prepare(name, data, folder)
    said = TASKS[name].format(data=data.resolve(), folder=folder.resolve())
    table = f'folder = "{(folder / name).resolve()}"\n'
    said = said.replace("[search]\n", f"[search]\n{table}") if "[search]" in said else f"{said}[search]\n{table}"
    path = folder / f"{name}.toml"
    write_atomically(path, said.encode())
    return path


def _prepare(name: str, data: Path, folder: Path) -> None:
    """scikit-learn's tables; inertial windows in the order of time, of which the shared file has another."""
    if not name.startswith("har"):
        x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        np.savez(folder / f"{name}.npz", x=x, y=y)
        return
    with np.load(data / "har_30_subjects.npz") as found:
        rest = {key: found[key] for key in ("y", "subject", "test")}
        np.savez(folder / "har.npz", x=untangled(found["x"]), **rest)


def run(name: str, path: Path, folder: Path) -> None:
    """One search, or the rest of it."""
    found = search(
        path, resume=True, store=folder / "runs.sqlite", say=lambda text: print(f"{name}: {text}", flush=True)
    )
    print(f"{name}: {found.body['seconds']:.0f} s, {found.bundle}", flush=True)


def figures(name: str, folder: Path) -> dict[str, Any]:
    """What a finished search came to, timed now."""
    made: dict[str, Any] = {}
    body = json.loads((folder / name / "search.json").read_bytes())
    rows = {"reference": body["reference"], "found": body["found"]}
    arm, (here, made["oracle"]) = oracle_of(ARM), asked(name, folder)
    made |= {"seconds": body["seconds"], "candidates": len(body["candidates"])}
    for kind in ("mslite", "float.mslite"):
        bundles = {key: (folder / name / f"{row['files']}.{kind}").read_bytes() for key, row in rows.items()}
        times = latencies([program_of(bundle)[:2] for bundle in bundles.values()], rounds=40)
        for (key, bundle), seconds in zip(bundles.items(), times, strict=True):
            part = made.setdefault(key, {})
            part["floats" if "float" in kind else "deployed"] = {
                "accuracy": rows[key]["test_floats" if "float" in kind else "test"], "measured": seconds,
                "predicted": here.of_bundle(bundle).seconds, "arm": arm.of_bundle(bundle).seconds,
                "file_bytes": len(bundle),
            }  # fmt: skip
    made |= {key: body[key] for key in ("figure", "naive", "plain", "verdict") if key in body}
    made["network"], made["reference_network"] = body["found"]["text"], body["reference"]["name"]
    made["training_seconds"] = {key: row["training_seconds"] for key, row in rows.items()}
    return made


def show(name: str, made: dict[str, Any]) -> None:
    """Print the rows of a task."""
    said = partial(told, made["figure"])
    for form in ("deployed", "floats"):
        a, b = made["reference"][form], made["found"][form]
        print(
            f"{name:10} {form:8} {made['reference_network']:10} {said(a['accuracy'])} {a['measured'] * 1e6:6.1f} µs "
            f"(predicted {a['predicted'] * 1e6:6.1f})  found {said(b['accuracy'])} {b['measured'] * 1e6:6.1f} µs "
            f"(predicted {b['predicted'] * 1e6:6.1f})  ratio {b['measured'] / a['measured']:.2f}, {ARM} "
            f"{b['arm'] / a['arm']:.2f}, file {b['file_bytes'] / a['file_bytes']:.2f}"
        )
    print(f"{name:10} found {made['network']} in {made['seconds']:.0f} s, {made['candidates']} candidates")
    if made.get("verdict"):
        print(f"{name:10} {made['verdict']}")
    show_oracle(name, made["oracle"])


def show_oracle(name: str, o: dict[str, Any]) -> None:
    """Print what a table of steps predicts."""
    print(
        f"{name:10} oracle over {o['networks']} networks of {min(o['measured']) * 1e6:.1f} to "
        f"{max(o['measured']) * 1e6:.1f} µs: rank correlation {o['rank_correlation']:.3f}, error {o['mean_error']:.1%} "
        f"in the mean, {o['median_error']:.1%} in the median, {o['largest_error']:.1%} at most"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="of the searches; a search there is continued")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--only", choices=["search", "figures", "oracle"], help="a part of the work")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="msedge-search-"))
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name in args.tasks:
        path = write_file(name, args.data, folder)
        if args.only in (None, "search"):
            run(name, path, folder)
        if args.only in (None, "figures"):
            made[name] = figures(name, folder)
            show(name, made[name])
        if args.only == "oracle":
            made[name] = asked(name, folder)[1]
            show_oracle(name, made[name])
    if args.json and made:
        write_atomically(args.json, json.dumps(made, indent=1).encode())


if __name__ == "__main__":
    main()
