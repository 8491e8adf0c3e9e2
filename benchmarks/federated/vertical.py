"""`python -m benchmarks.federated.vertical [OUT.json]`: what gradients tell about labels, with and without protection;
and private set intersection, in seconds of CPU time.

Two parties and 20,000 people, 4 % of whom have label 1: the active party has 6 features, the passive one 14. Each
party's part of the model is a small network. The attacks of Li et al. (ICLR 2022) see what the passive party is sent in
every step: the norms of the rows, and their cosines with the row of a person whose label 1 is known. Means of their AUC
over all steps, and the 95th percentile; "chance" is what they find in random rows, since an attacker that is always
wrong counts as one that is always right. The model's own AUC is on people who were not trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder
from converter import Training, convert, cut
from federated.messages.packed import unpack
from federated.vertical.active import Active
from federated.vertical.config import parse
from federated.vertical.leakage import auc, cosine_attack, norm_attack
from federated.vertical.matching import Matcher
from federated.vertical.passive import Passive

__all__ = ["CASES", "chance", "leak", "match", "write"]

PEOPLE, OWN, OTHER, RARE = 20_000, 6, 14, 0.04

CASES: Mapping[str, dict[str, float]] = {
    "none": {},
    "clip 0.2": {"clip": 0.2},
    "clip 0.2, noise 0.5": {"clip": 0.2, "multiplier": 0.5},
    "clip 0.2, noise 1": {"clip": 0.2, "multiplier": 1.0},
    "clip 0.05, noise 2": {"clip": 0.05, "multiplier": 2.0},
    "clip 0.05, noise 4": {"clip": 0.05, "multiplier": 4.0},
    "clip 0.000001": {"clip": 1e-6},
    "labels, epsilon 4": {"labels_epsilon": 4.0},
    "labels, epsilon 3": {"labels_epsilon": 3.0},
    "labels, epsilon 2": {"labels_epsilon": 2.0},
    "labels, epsilon 1": {"labels_epsilon": 1.0},
}
"""The active party's [protect]. With a clip of a millionth the passive part learns nothing."""


def joint() -> ir.Model:
    """x_a, x_b -> logits of two classes."""
    b = Builder("joint", 0)
    left, right = b.input("x_a", (BATCH, OWN)), b.input("x_b", (BATCH, OTHER))
    here = b.relu(b.dense(left, 8, name="here"), name="here.relu")
    there = b.dense(b.relu(b.dense(right, 16, name="there"), name="there.relu"), 8, name="result")
    both = b.op("Concat", here, there, shape=(BATCH, 16), axis=1)
    return b.model(logits=b.dense(b.relu(b.dense(both, 8, name="top"), name="top.relu"), 2, name="head"))


def write(folder: Path) -> None:
    """Both parts of the model, and both parties' rows."""
    passive, active = cut(joint(), ["x_b"])
    convert(passive, output=folder / "passive.mslite", trainable=Training("*", loss="inner_product"))
    convert(active, output=folder / "active.mslite", trainable=Training("*", slopes="result"))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((PEOPLE, OWN)), rng.standard_normal((PEOPLE, OTHER))
    scores = a @ rng.standard_normal(OWN) + b @ rng.standard_normal(OTHER) + rng.standard_normal(PEOPLE)
    labels = (scores > np.quantile(scores, 1 - RARE)).astype(np.int64)
    np.savez(folder / "active.npz", id=np.arange(PEOPLE), x_a=a.astype(np.float32), labels=labels)
    np.savez(folder / "passive.npz", id=np.arange(PEOPLE), x_b=b.astype(np.float32))


def leak(folder: Path, protect: Mapping[str, float], epochs: int = 5) -> dict[str, Any]:
    """A run's figures."""
    active = parse(
        {"vertical": {"role": "active", "bundle": "active.mslite"}, "data": {"file": "active.npz"}, "protect": protect,
         "learning": {"epochs": epochs, "batch": 256, "rate": 0.5}}, folder
    )  # fmt: skip
    other = {"vertical": {"role": "passive", "bundle": "passive.mslite"}, "data": {"file": "passive.npz"}}
    passive = Passive(parse({**other, "learning": {"rate": 0.5}}, folder))
    seen: list[tuple[int, np.ndarray]] = []

    def send(message: bytes) -> bytes:
        _, body = unpack(message)
        if "slopes" in body:
            seen.append((run.step, body["slopes"]))
        return passive.answer(message)

    run = Active(active, send)
    run.begin()
    run.train()
    labels = run._true(np.arange(len(run.own)))
    attacks: dict[str, list[float]] = {"norm": [], "cosine": []}
    for step, slopes in seen:
        true = labels[run.schedule.batch_of(step)]
        if 1 < true.sum() < len(true):
            attacks["norm"].append(norm_attack(slopes, true))
            attacks["cosine"].append(cosine_attack(slopes, true, int(np.flatnonzero(true)[0])))
    told = run.end()["labels"]
    test = run.schedule.parts[1]
    values = passive._computed(passive.table.at(passive._rows.own[test]))
    logits = run.part.learner.outputs(run.part.params, {**run.table.at(run.own[test]), "result": values})["logits"]
    found = {name: round(float(np.mean(each)), 3) for name, each in attacks.items()}
    high = {f"{name}_95": round(float(np.quantile(each, 0.95)), 3) for name, each in attacks.items()}
    return {**found, **high, "test_auc": round(auc(logits[:, 1] - logits[:, 0], labels[test]), 3),
            "epsilon": None if told["epsilon"] is None else round(told["epsilon"], 2)}  # fmt: skip


def chance(steps: int = 300, batch: int = 256) -> dict[str, float]:
    """The norm attack on random rows."""
    rng, labels = np.random.default_rng(0), (np.arange(batch) < RARE * batch).astype(np.int64)
    found = [norm_attack(rng.standard_normal((batch, 8)), labels) for _ in range(steps)]
    return {"norm": round(float(np.mean(found)), 3), "norm_95": round(float(np.quantile(found, 0.95)), 3)}


def match(identifiers: int = 100_000) -> dict[str, Any]:
    """Seconds of CPU time of both parties, who have half of their identifiers in common, and bytes in all."""
    half = identifiers // 2
    begun = time.process_time()
    one = Matcher([b"person %d" % at for at in range(identifiers)])
    other = Matcher([b"person %d" % at for at in range(half, half + identifiers)])
    hidden = one.hidden(), other.hidden()
    again = other.again(hidden[0]), one.again(hidden[1])
    found = one.matched(*again), other.matched(*again[::-1])
    if len(found[0]) != identifiers - half or len(found[1]) != len(found[0]):
        raise RuntimeError("expected half of the identifiers")
    used = time.process_time() - begun
    moved = sum(each.nbytes for each in (*hidden, *again))
    return {"identifiers": identifiers, "cpu_seconds": round(used, 1), "bytes": moved}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--only", choices=("match", *CASES), nargs="*", help="some of the cases")
    parser.add_argument("--identifiers", type=int, default=100_000)
    words = parser.parse_args()
    found: dict[str, Any] = {"chance": chance()}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        for name in words.only or ("match", *CASES):
            found[name] = match(words.identifiers) if name == "match" else leak(folder, CASES[name])
            print(name, found[name], file=sys.stderr, flush=True)
    text = json.dumps(found, indent=1)
    print(text)
    if words.out is not None:
        words.out.write_text(text)


if __name__ == "__main__":
    main()
