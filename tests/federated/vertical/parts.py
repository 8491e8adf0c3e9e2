"""A joint model of two towers, its two parts as bundles, and the rows of two parties with some people in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder
from converter import Training, convert, cut
from federated.vertical.config import Party, parse

OWN, OTHER, RESULT = 5, 7, 4


def joint(classes: int = 2) -> ir.Model:
    """x_a [batch, 5], x_b [batch, 7] -> logits."""
    b = Builder("joint", 0)
    left, right = b.input("x_a", (BATCH, OWN)), b.input("x_b", (BATCH, OTHER))
    here = b.relu(b.dense(left, 6, name="here"), name="here.relu")
    there = b.dense(b.relu(b.dense(right, 8, name="there"), name="there.relu"), RESULT, name="result")
    both = b.op("Concat", here, there, shape=(BATCH, 6 + RESULT), axis=1)
    return b.model(logits=b.dense(both, classes, name="head"))


def bundles(folder: Path, classes: int = 2) -> dict[str, Path]:
    """The whole model and both parts, trainable."""
    paths = {name: folder / f"{name}.mslite" for name in ("joint", "active", "passive")}
    passive, active = cut(joint(classes), ["x_b"])
    (result,) = (str(value.name) for value in passive.graph.outputs)
    convert(joint(classes), output=paths["joint"], trainable="*")
    convert(passive, output=paths["passive"], trainable=Training("*", loss="inner_product"))
    convert(active, output=paths["active"], trainable=Training("*", slopes=result))
    return paths


def people(folder: Path, count: int = 120, classes: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """`count` people whom both know, and others; each party's rows in an order of its own. Returns all arrays of the
    common ones, in the order of their identifiers."""
    rng = np.random.default_rng(seed)
    everyone = np.array([f"person-{at:05d}" for at in rng.permutation(3 * count)])
    a, b = rng.standard_normal((3 * count, OWN)), rng.standard_normal((3 * count, OTHER))
    labels = (a[:, :3].sum(1) + b[:, :4].sum(1) > 0).astype(np.int64) + (classes > 2) * (a[:, 3] > 0)
    first, second = rng.permutation(2 * count), count + rng.permutation(2 * count)
    np.savez(folder / "active.npz", id=everyone[first], x_a=a[first].astype("f4"), labels=labels[first])
    np.savez(folder / "passive.npz", id=everyone[second], x_b=b[second].astype("f4"))
    rows = sorted(range(count, 2 * count), key=lambda at: everyone[at])
    return {"id": everyone[rows], "x_a": a[rows].astype("f4"), "x_b": b[rows].astype("f4"), "labels": labels[rows]}


def parties(folder: Path, *, passive: dict[str, Any] | None = None, **active: dict[str, Any]) -> tuple[Party, Party]:
    """Both files, with a few sections changed."""
    one: dict[str, Any] = {
        "vertical": {"role": "active", "bundle": "active.mslite"},
        "data": {"file": "active.npz"},
        "learning": {"epochs": 3, "batch": 16, "rate": 0.2},
    }
    other: dict[str, Any] = {
        "vertical": {"role": "passive", "bundle": "passive.mslite"},
        "data": {"file": "passive.npz"},
        "learning": {"rate": 0.2},
    }
    for words, changes in ((one, active), (other, passive or {})):
        for name, section in changes.items():
            words[name] = {**words.get(name, {}), **section}
    return parse(one, folder), parse(other, folder)
