"""[[data.augment]] of run files: what it makes of the training data, mistakes, and a run with it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from cloud import data
from cloud.data import Apply, Policy
from cloud.data.augment import Blend
from cloud.data.augment.blend import HOW
from cloud.data.augment.table import KINDS
from cloud.errors import TrainError
from cloud.train.inputs.weights import WEIGHT
from cloud.train.jobs.augmenting.keys import AugmentKeys
from cloud.train.jobs.augmenting.nodes import augmented
from cloud.train.jobs.config import parse, read
from cloud.train.jobs.job import job_of
from cloud.train.jobs.settings import Head, Loss
from cloud.train.jobs.template import TEMPLATE
from cloud.train.stepping.losses import LOSSES

RNG = np.random.default_rng(0)
X, Y = RNG.random((40, 1, 8, 8)).astype(np.float32), (np.arange(40) % 4).astype(np.int32)
ROTATE = {"kind": "image", "operation": "rotate", "amount": 20.0, "axes": "chw"}


def made(*changes: dict[str, Any], train: Any = None, inputs: tuple[str, ...] = ("x",), **losses: Loss) -> Any:
    train = ({"x": X}, Y) if train is None else train
    return augmented(train, [AugmentKeys(**c) for c in changes], 16, "pad", inputs, losses or {"": Loss()})


def test_keys_are_those_of_the_transforms() -> None:
    hints, fields = get_type_hints(AugmentKeys), {f.name: f.default for f in msgspec.structs.fields(AugmentKeys)}
    assert set(get_args(hints["kind"])) == {"", *KINDS} and set(get_args(hints["blend"])) == {"", *HOW}
    ours = {"kind", "operation", "how", "on", "labels", "classes"}
    for kind in (Policy, Apply, Blend):
        for field in dataclasses.fields(kind):
            if field.name not in ours:
                assert fields[field.name] == field.default, field.name
    shown = TEMPLATE.partition("# augment = []")[2].partition("[train]")[0]
    assert all(re.search(rf"\b{name}\b", shown) for name in fields)


def test_arrays_become_the_pipeline_with_the_trainers_order() -> None:
    assert made() == ({"x": X}, Y)  # nothing to change
    found = made(ROTATE, {"kind": "image", "axes": "chw", "choose": 1})
    expected = (
        data.arrays({"x": X, "labels": Y}).shuffle().augment("x", Apply("image", "rotate", 20.0, axes="chw"))
        .augment("x", Policy("image", choose=1, axes="chw")).batch(16)
    )  # fmt: skip
    assert found.fingerprint == expected.fingerprint
    for one, other in zip(found.batches(3, 1), expected.batches(3, 1), strict=True):
        assert one.keys() == {"x", "labels", "mask"}
        np.testing.assert_array_equal(one["x"], other["x"])


def test_pipelines_heads_and_weights() -> None:
    whole = data.arrays({"x": X, "labels": Y}).shuffle().batch(10, "drop")
    batch = next(made(ROTATE, train=whole).batches())
    assert batch["x"].shape == (10, 1, 8, 8) and "mask" not in batch
    labels = {"a": Y, "b": Y, WEIGHT: np.ones(40, np.float32)}
    blended = {"blend": "mixup", "classes": 4, "head": "b"}
    batch = next(made(blended, train=({"x": X}, labels), a=Head(), b=Head()).batches())
    assert batch["labels.a"].shape == (16,) and batch["labels.b"].shape == (16, 4) and WEIGHT in batch


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, r"data\.augment\.kind: expected image, spectrum or series, got ''"),
        ({"kind": "film"}, r"kind: expected .*'image'"),
        ({"kind": "image", "operations": ["rotat"]}, r"data\.augment: operations: .* did you mean 'rotate'"),
        ({"kind": "image", "amount": 3.0}, r"data\.augment\.amount: expected 0\.0 for a policy, got 3"),
        ({"kind": "image", "operation": "rotate"}, r"data\.augment: amount of 'rotate': expected a number above 0"),
        ({**ROTATE, "choose": 3}, r"data\.augment\.choose: expected 2 for one operation, got 3"),
        ({**ROTATE, "blend": "mixup"}, r"data\.augment\.operation: expected none together with blend"),
        ({"blend": "mixup"}, r"data\.augment: classes: expected a whole number of at least 2, got 0"),
        ({"blend": "mixup", "classes": 4, "magnitude": 3.0}, r"data\.augment\.magnitude: expected 9\.0 for a blend"),
        ({"blend": "cutmix", "classes": 4}, r"data\.augment: kind: expected one of image"),
        ({"kind": "image", "magnitude": 40.0}, r"data\.augment: magnitude: expected a number from 0 to 30"),
        ({"kind": "image", "axis": "chw"}, r"data\.augment\[0\]\.axis: no such key; did you mean 'axes'"),
    ],
)  # fmt: skip
def test_mistakes_in_tables(said: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainError, match=message):
        parse({"model": {"zoo": "mlp"}, "data": {"npz": "d.npz", "augment": [said]}})


@pytest.mark.parametrize(
    ("said", "how", "message"),
    [
        ({**ROTATE, "axes": ""}, {}, r"data\.augment: rotate of image .*axes 'hwc', got the shape \[1, 8, 8\]"),
        ({**ROTATE, "input": "y"}, {}, r"data\.augment\.input: the model has no input 'y'"),
        (ROTATE, {"inputs": ("x", "z")}, r"data\.augment\.input: expected one of x, z, got ''"),
        (ROTATE, {"train": data.arrays({"x": X, "labels": Y}).batch(4).prefetch()}, r"that ends with .batch"),
        ({"blend": "mixup", "classes": 3}, {}, r"expected 'labels' from 0 to 2"),
        ({"blend": "mixup", "classes": 4, "head": "a"}, {}, r"data\.augment\.head: there is no head 'a'"),
        ({"blend": "mixup", "classes": 4}, {"": Loss(loss="huber")}, r"data\.augment\.blend: .*softmax_cross_entropy"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit(said: dict[str, Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainError, match=message):
        made(said, **how)


def test_soft_labels_are_what_the_loss_takes() -> None:
    logits, soft = RNG.normal(size=(5, 4)).astype(np.float32), RNG.dirichlet(np.ones(4), 5).astype(np.float32)
    found = LOSSES["softmax_cross_entropy"](jnp.asarray(logits), jnp.asarray(soft))
    each = [LOSSES["softmax_cross_entropy"](jnp.asarray(logits), jnp.full(5, c)) for c in range(4)]
    np.testing.assert_allclose(found, (np.stack(each, 1) * soft).sum(1), rtol=1e-5)


def test_a_run_with_policies_and_a_blend(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X.reshape(40, 64), labels=Y)
    (tmp_path / "run.toml").write_text("""
        [model]
        zoo = "mlp"
        options = { features = 64, outputs = 4 }
        [data]
        npz = "d.npz"
        validation = 0.25
        [[data.augment]]
        kind = "series"
        axes = "t"
        [[data.augment]]
        blend = "either"
        classes = 4
        kind = "series"
        axes = "t"
        [train]
        epochs = 2
        batch = 16
        class_weights = "balanced"
    """)
    losses = []
    for _ in range(2):
        job = job_of(read(tmp_path / "run.toml"))
        assert job.steps == 2
        losses.append([report.loss for report in job.fit()])
        assert 0 <= job.trainer.evaluate(job.examples.validation).metrics["accuracy"] <= 1
    assert losses[0] == losses[1] and np.isfinite(losses).all()
