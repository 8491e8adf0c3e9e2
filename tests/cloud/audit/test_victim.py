"""Victims: ONNX and float bundles with gradients, every bundle as a black box."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud import zoo
from cloud.audit.attacks import fgsm, pgd, square
from cloud.audit.attacks.losses import loss_of
from cloud.audit.victim import WhiteBox, from_bundle, from_onnx, open_bundle
from cloud.errors import AuditError
from tests.cloud.models import parsed, run_onnx

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def plain(network: ir.Model) -> bytes:
    return converter.convert(network).bundle


@pytest.fixture(scope="module")
def integers(network: ir.Model, digits: Rows) -> bytes:
    return converter.convert(network, quantize="int8", calibration={"x": digits[0][64:320]}).bundle


def test_scores_are_the_models(network: ir.Model, plain: bytes, rows: Rows, victim: WhiteBox) -> None:
    wanted = run_onnx(network, x=rows[0])[0]
    trained = converter.convert(network, trainable="*").bundle
    for one in (victim, from_bundle(plain), open_bundle(plain), from_bundle(trained), open_bundle(trained)):
        np.testing.assert_allclose(one.logits(rows[0]), wanted, atol=1e-4)
        assert (one.shape, one.classes) == ((64,), 10)


def test_the_gradient_is_that_of_finite_differences(victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows[0][:4], rows[1][:4]
    loss = loss_of("ce", False, 10)
    before = victim.queries
    values, slopes = victim.gradient(loss, x, labels)
    assert victim.queries - before == 4
    np.testing.assert_allclose(values, loss(victim.logits(x), labels)[0], rtol=1e-5)
    direction = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    up, down = (loss(victim.logits(x + s * direction), labels)[0] for s in (1e-2, -1e-2))
    np.testing.assert_allclose((slopes * direction).sum(1), (up - down) / 2e-2, rtol=0.1, atol=1e-3)


def test_a_bundles_gradient_is_its_onnx_models(victim: WhiteBox, plain: bytes, rows: Rows) -> None:
    ours, theirs = (fgsm(one, *rows, epsilon=0.1) for one in (from_bundle(plain), victim))
    assert (ours.success == theirs.success).mean() > 0.95


def test_fused_convolutions_with_channels_last_become_a_function() -> None:
    model = zoo.resnet8((1, 8, 8), seed=2, softmax=True)
    data = converter.convert(model).bundle
    white, black = from_bundle(data), open_bundle(data)
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    shifted = np.exp(white.logits(x))
    np.testing.assert_allclose(shifted / shifted.sum(1, keepdims=True), black.logits(x), atol=1e-5)
    assert np.abs(white.gradient(loss_of("ce", False, 10), x, np.zeros(3, int))[1]).max() > 0


def test_an_integer_bundle_is_a_black_box(integers: bytes, rows: Rows) -> None:
    black = open_bundle(integers, "digits.mslite")
    with pytest.raises(AuditError, match=r"digits\.mslite: this attack needs a gradient.*square and hop_skip_jump"):
        pgd(black, *rows, epsilon=0.1)
    with pytest.raises(AuditError, match=r"no gradient, because the engine does not have .*open_bundle"):
        from_bundle(integers)
    before = black.queries
    found = square(black, *rows, epsilon=0.12, steps=100)
    assert black.queries - before >= found.queries.sum()
    np.testing.assert_array_equal(found.success, open_bundle(integers).logits(found.inputs).argmax(1) != rows[1])
    assert found.rate > (black.logits(rows[0]).argmax(1) != rows[1]).mean() + 0.1


def test_square_proposes_the_same_to_every_victim(victim: WhiteBox, plain: bytes, rows: Rows) -> None:
    one, other = (square(v, *rows, epsilon=0.1, steps=200) for v in (victim, open_bundle(plain)))
    assert (one.success == other.success).mean() > 0.95


def test_models_of_another_form() -> None:
    fixed = parsed("net (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    with pytest.raises(AuditError, match="expected an open batch"):
        from_onnx(fixed)
    two = parsed("net (float[n, 3] x, float[n, 3] z) => (float[n, 3] y) { y = Add(x, z) }")
    with pytest.raises(AuditError, match="one float32 input of known rank, got x float32"):
        from_onnx(two)
    with pytest.raises(AuditError, match=r"expected scores \[rows, classes\], got \[2\]"):
        from_onnx(parsed("net (float[n, 3] x) => (float[n] y) { y = ReduceSum<keepdims = 0>(x, a) }".replace(
            "{", "<int64[1] a = {1}> {")))  # fmt: skip
    with pytest.raises(AuditError, match="at least 2 classes, got 1"):
        from_onnx(zoo.mlp(4, 1))
