"""Normalisations folded into weights that are state: the same results, and no operator on activations left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from cloud.zoo.build import BATCH, Builder
from converter.ir import build
from converter.lowering import lower
from converter.pass_lists import PREPARE, optimize, to_ir
from converter.training import Training, fold_norms, prepare
from lite_runtime import reference
from tests.converter.training.models import cnn, shaken


def _dense() -> ir.Model:
    b = Builder("dense", 0)
    y = b.batch_norm(b.dense(b.input("x", (BATCH, 5)), 4, name="first"), name="bn")
    return b.model(y=b.dense(b.relu(y, name="relu"), 3, name="head"))


@pytest.mark.parametrize(
    ("make", "globs"),
    [(cnn, "*"), (cnn, "*.bn.*"), (cnn, "*conv*"), (_dense, "*"), (_dense, "bn.*"), (_dense, "first.*")],
)
def test_folding_changes_no_result(make: Callable[[], ir.Model], globs: str) -> None:
    model = to_ir(shaken(make()))
    prepared = prepare(model, Training(globs))
    optimize(model, PREPARE)
    shape = [d if isinstance(d, int) else 3 for d in build.dims(model.graph.inputs[0]) or ()]
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32), **prepared.state}
    before = reference.run(lower(model), inputs)
    assert fold_norms.run(model) > 0
    assert not any(build.is_op(node, "BatchNormalization") for node in model.graph)
    for name, value in reference.run(lower(model), inputs).items():
        np.testing.assert_allclose(value, before[name], rtol=1e-4, atol=1e-5)


def test_training_form_and_shared_results_stay() -> None:
    b = Builder("shared", 0)
    y = b.dense(b.input("x", (BATCH, 5)), 4, name="first")
    model = to_ir(b.model(a=b.batch_norm(y, name="bn"), b=b.relu(y, name="relu")))
    prepare(model, Training("*"))
    assert fold_norms.run(model) == 0
