"""Membership inference on bundles, LiRA beside a published implementation, and what shadow models cost.

    python -m benchmarks.privacy.membership --data DIR [--published FILE.py] [--out OUT.json] [--models 16]

Examples of MNIST, half of them members of the target, a perceptron trained without regularisation; its float and int8
bundles are attacked on the device runtime. `--published`: tensorflow-privacy's `advanced_mia.py`, which is NumPy and is
run on the same arrays: each shadow model in turn is the target of the others, as in Carlini et al. 2022. `--cost`: CPU
time of one program for all shadow models against one Trainer after another.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import optax

import msedge
from cloud.audit.privacy.membership import Membership, Shadows, lira, measure, membership, shifted, train_shadows
from cloud.audit.victim import open_bundle
from cloud.zoo import Builder, mlp
from lite_runtime._files import write_atomically

EPOCHS, BATCH, RATE = 30, 64, 2e-3


def examples(data: Path, count: int, seed: int) -> tuple[Any, Any, Any]:
    """Images (count, 784), labels, and which are members of the target: a random half."""
    with np.load(data / "mnist.npz") as file:
        x, y = file["x_train"], file["y_train"]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(x))[:count]
    is_member = np.zeros(count, bool)
    is_member[rng.permutation(count)[: count // 2]] = True
    return np.float32(x[rows].reshape(count, -1) / 255), y[rows].astype(np.int64), is_member


def perceptron(seed: int) -> Any:
    """784 to 10 by way of 64."""
    return mlp(784, 10, [64], seed)


def convolutional(seed: int) -> Any:
    """Two convolutions and a dense layer."""
    b = Builder("cnn", seed)
    y = b.relu(b.conv(b.input("x", ("batch", 1, 28, 28)), 8, 5, name="first", stride=2, bias=True))
    y = b.relu(b.conv(y, 16, 5, name="second", stride=2, bias=True))
    flat = b.op("Flatten", y, name="flat", shape=("batch", 16 * 49), axis=1)
    return b.model(logits=b.dense(flat, 10, name="head"))


def row(found: Membership) -> dict[str, Any]:
    """One line of the table."""
    at = {f"tpr_at_{one.fpr:g}": list(one.tpr) for one in found.at}
    return {"attack": found.attack, "auc": list(found.auc), "balanced_accuracy": found.balanced_accuracy, **at}


def on_bundles(x: Any, y: Any, is_member: Any, shadows: Shadows, seed: int) -> dict[str, Any]:
    """All attacks on the target's float and int8 bundles."""
    target = msedge.Trainer(perceptron(seed + 1000), optimizer=optax.adam(RATE), seed=seed + 1000)
    target.fit((x[is_member], y[is_member]), EPOCHS, BATCH)
    moves = ((0, 1), (0, -1), (1, 0), (-1, 0))
    views = [lambda x, d=d, r=r: shifted(d, r)(x.reshape(-1, 1, 28, 28)).reshape(len(x), -1) for d, r in moves]
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("none", "int8"):
            path = Path(folder) / f"{kind}.mslite"
            given = {"x": x[is_member][:256]} if kind == "int8" else None
            msedge.convert(target.export(), output=path, quantize=kind, calibration=given)
            victim = open_bundle(path)
            right = victim.logits(x).argmax(1) == y
            found = membership(victim, x, y, is_member, shadows=shadows)
            more = membership(victim, x, y, is_member, shadows=shadows, views=views)
            rows = [row(one) for one in found]
            rows += [{**row(one), "attack": f"{one.attack}, 5 queries"} for one in more if "LiRA" in one.attack]
            accuracy = {"accuracy_members": float(right[is_member].mean()), "others": float(right[~is_member].mean())}
            made["float" if kind == "none" else kind] = {**accuracy, "attacks": rows}
    return made


def published(path: Path) -> Any:
    """The module of a file, with the one import of its package that LiRA does not use replaced by an empty one."""
    name = "tensorflow_privacy"
    for part in ("privacy", "privacy_tests", "utils"):
        sys.modules.setdefault(name, types.ModuleType(name))
        name = f"{name}.{part}"
    stand_in = types.ModuleType(name)
    stand_in.log_loss = None  # type: ignore[attr-defined]
    sys.modules.setdefault(name, stand_in)
    spec = importlib.util.spec_from_file_location("published_lira", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def beside(theirs: Any, values: Any, keep: Any) -> list[dict[str, Any]]:
    """AUC over all models, each in turn the target, of both implementations on the same confidences (models, n, 1)."""
    made = []
    for variance, fixed in (("example", False), ("shared", True)):
        ours, others = [], []
        for k in range(len(values)):
            rest = np.arange(len(values)) != k
            shadow, kept = values[rest], keep[rest]
            ours.append(lira(values[k], shadow, kept, variance=variance))  # type: ignore[arg-type]
            lists = [[shadow[chosen[:, i], i] for i in range(shadow.shape[1])] for chosen in (kept, ~kept)]
            others.append(-theirs.compute_score_lira(values[k], *lists, option="both", fix_variance=fixed))
        truth = keep.ravel()
        made.append(
            {
                "variance": variance,
                "ours": row(measure("ours", np.concatenate(ours), truth)),
                "published": row(measure("published", np.concatenate(others), truth)),
                "largest_difference_of_scores": float(np.abs(np.concatenate(ours) - np.concatenate(others)).max()),
            }
        )
    return made


def cost(x: Any, y: Any, models: int, epochs: int) -> dict[str, Any]:
    """Seconds of this process's CPU time and of the clock, compiling included: one program against one Trainer a
    model."""
    made: dict[str, Any] = {"models": models, "epochs": epochs}
    for name, make, given in (("perceptron", perceptron, x), ("cnn", convolutional, x.reshape(-1, 1, 28, 28))):
        for group in (1, 2, 4, 8):
            begun = time.process_time(), time.perf_counter()
            shadows = train_shadows(
                make, given, y, models=models, epochs=epochs, batch_size=BATCH, optimizer=optax.adam(RATE), group=group
            )
            made[f"{name}, one program, group {group}"] = spent(begun)
        begun = time.process_time(), time.perf_counter()
        for k in range(models):
            trainer = msedge.Trainer(make(k), optimizer=optax.adam(RATE), seed=k)
            trainer.fit((given[shadows.keep[k]], y[shadows.keep[k]]), epochs, BATCH)
        made[f"{name}, one Trainer after another"] = spent(begun)
    return made


def spent(begun: tuple[float, float]) -> dict[str, float]:
    """CPU time and the clock's since."""
    return {"cpu_s": round(time.process_time() - begun[0], 2), "s": round(time.perf_counter() - begun[1], 2)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz")
    parser.add_argument("--published", type=Path, help="advanced_mia.py of tensorflow-privacy")
    parser.add_argument("--out", type=Path, help="JSON")
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    x, y, is_member = examples(args.data, args.examples, args.seed)
    made: dict[str, Any] = {"models": args.models, "examples": len(x), "seed": args.seed}
    if args.cost:
        made["cost"] = cost(x[:2000], y[:2000], 8, 5)
    else:
        begun = time.process_time(), time.perf_counter()
        shadows = train_shadows(
            perceptron, x, y, models=args.models, epochs=EPOCHS, batch_size=BATCH, optimizer=optax.adam(RATE)
        )
        made["training"] = spent(begun)
        made["bundles"] = on_bundles(x, y, is_member, shadows, args.seed)
        if args.published:
            made["beside"] = beside(published(args.published), shadows.confidences(x, y), shadows.keep)
    text = json.dumps(made, indent=1)
    if args.out:
        write_atomically(args.out, text.encode())
    print(text)


if __name__ == "__main__":
    main()
