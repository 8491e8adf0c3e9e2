"""Random operators: types, shapes, moments, and repeatability by seed."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import floats, ours

HALF = 10
SHAPED = {"RandomNormal": {"shape": (40, 50)}, "RandomUniform": {"shape": (40, 50)}}
LIKE = ["RandomNormalLike", "RandomUniformLike", "Bernoulli"]


@pytest.mark.parametrize("op", [*SHAPED, *LIKE])
def test_a_seed_repeats(op: str) -> None:
    inputs, attrs = ([], SHAPED[op]) if op in SHAPED else ([np.full((40, 50), 0.5, np.float32)], {})
    first, again = (ours(op, inputs, {**attrs, "seed": 3.5})[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, ours(op, inputs, {**attrs, "seed": 4.5})[0])
    assert (first.shape, first.dtype) == ((40, 50), np.float32)
    assert ours(op, inputs, {**attrs, "dtype": HALF})[0].dtype == np.float16


def test_moments() -> None:
    normal = ours("RandomNormal", [], {"shape": (10000,), "mean": 3.0, "scale": 2.0, "seed": 1.0})[0]
    assert abs(normal.mean() - 3) < 0.1
    assert abs(normal.std() - 2) < 0.1
    uniform = ours("RandomUniform", [], {"shape": (10000,), "low": -1.0, "high": 5.0, "seed": 1.0})[0]
    assert -1 <= uniform.min() < -0.9
    assert 4.9 < uniform.max() <= 5
    share = ours("Bernoulli", [np.full(10000, 0.3, np.float32)], {"seed": 1.0})[0]
    assert abs(share.mean() - 0.3) < 0.03


def test_multinomial_follows_the_odds() -> None:
    odds = np.log(np.array([[1, 3], [9, 1]], np.float32))
    drawn = ours("Multinomial", [odds], {"sample_size": 4000, "seed": 2.0})[0]
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(drawn.mean(1), [0.75, 0.1], atol=0.04)


def test_dropout() -> None:
    x, half, on = floats(100, 100, low=1), np.array(0.5, np.float32), np.array(True)
    y, kept = ours("Dropout", [x, half, on], {"seed": 5}, 2)
    np.testing.assert_allclose(y, np.where(kept, 2 * x, 0))
    assert 0.45 < kept.mean() < 0.55
    same, everything = ours("Dropout", [x, half], outputs=2)
    assert same is x
    assert everything.all()


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="rank 2"):
        ours("Multinomial", [floats(3)])
    with pytest.raises(ShapeError, match=r"\[0, 1\)"):
        ours("Dropout", [floats(3), np.array(1.5), np.array(True)])
