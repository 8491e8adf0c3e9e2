"""Steps that decide by trial: they change a model if that helps on rows not used for calibration."""

from __future__ import annotations

import numpy as np

from converter.quantize import STEPS, Options, calibration_data, quantize
from converter.quantize.steps import equalise
from tests.converter.quantize.support import prepared, run
from tests.converter.support import Builder


def skewed(spread, seed=0):
    """Two convolutions; channels between them differ by up to 2**spread, undone in the second's weights."""
    b = Builder(seed=seed)
    factors = np.exp2(b.rng.uniform(0, spread, 16)).astype(np.float32)
    first = b.rng.standard_normal((16, 4, 3, 3)).astype(np.float32) * factors[:, None, None, None]
    second = b.rng.standard_normal((8, 16, 3, 3)).astype(np.float32) / factors[:, None, None]
    y = b("Relu", b("Conv", b.input("x", [1, 4, 9, 9]), b.const(first)))
    return prepared(b.model(b("Conv", y, b.const(second))))


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 4, 9, 9)).astype(np.float32)


def noise(model, reference):
    pairs = [(run(reference, {"x": x[None]})[0], run(model, {"x": x[None]})[0]) for x in rows(8, 5)]
    return sum(float(np.square(a - b).sum()) for a, b in pairs) / sum(float(np.square(a).sum()) for a, _ in pairs)


def test_equalisation_where_it_helps():
    model, data = skewed(8), rows(16)
    reference, plain = model.clone(), model.clone()
    assert equalise(model, calibration_data(data, model), Options()) > 0
    want = run(reference, {"x": data[:1]})[0]
    np.testing.assert_allclose(run(model, {"x": data[:1]})[0], want, rtol=0, atol=1e-5 * np.abs(want).max())
    simple = {"gptq": False, "bias_correction": False}
    record = quantize(model, Options(**simple), data)
    assert record.notes["equalised layers"] == 0  # nothing is left to even out
    quantize(plain, Options(equalize=False, **simple), data)
    assert noise(model, reference) < 0.5 * noise(plain, reference)


def test_nothing_to_equalise():
    b = Builder()
    model = prepared(b.model(b("Conv", b.input("x", [1, 4, 9, 9]), b.weight(3, 4, 3, 3))))
    assert equalise(model, calibration_data(rows(3), model), Options()) == 0


def test_ranges_widen_where_data_is_scarce():
    simple = {"gptq": False, "bias_correction": False, "equalize": False}
    b = Builder(seed=3)
    few = np.random.default_rng(1).standard_t(3, (6, 8)).astype(np.float32)
    y = b("MatMul", b("Relu", b("MatMul", b.input("x", [1, 8]), b.weight(8, 8))), b.weight(8, 3))
    proto = b.model(y)
    scarce = quantize(prepared(proto), Options(**simple), few)
    assert scarce.notes["ranges"]["margin"] > 1
    exact = quantize(prepared(proto), Options(method="minmax", **simple), few)
    assert "ranges" not in exact.notes
    assert exact.tensors["x"].scale[0] < scarce.tensors["x"].scale[0]


def test_one_row_is_enough():
    model = skewed(1)
    record = quantize(model, Options(), rows(1))
    assert record.samples == 1 and record.tensors["x"].scale[0] > 0


def test_steps_have_names_of_their_own():
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert not any(step.applies(Options(mode="dynamic")) for step in STEPS if step.name in ("observe", "calibrate"))
