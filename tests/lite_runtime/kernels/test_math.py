"""The polynomials against float64, over every region of float32 and at its special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.native import build
from lite_runtime.ops.activation import ACTIVATIONS
from lite_runtime.running.executor import Executor, Settings

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")

_SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.2e-38,
        3.4e38,
        88.7,
        88.73,
        -87.4,
        -103.9,
        -104.1,
    ],
    np.float32,
)


def samples(seed: int, n: int = 40_000) -> Array:
    """Random bit patterns, moderate numbers, numbers around 0 and the special ones."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 1 << 32, n, np.uint64).astype(np.uint32).view(np.float32)
    parts = [patterns, 5 * rng.standard_normal(n), rng.uniform(-2, 2, n), rng.uniform(-110, 110, n)]
    return np.concatenate([*(p.astype(np.float32) for p in parts), _SPECIAL])


def native(op: str, *inputs: Array, **attrs: float) -> Array:
    """One operator by its kernel."""
    names = tuple(f"x{i}" for i in range(len(inputs)))
    values = tuple(Value(n, "float32", x.shape) for n, x in zip(names, inputs, strict=True))
    graph = Graph(values, (Value("y", "float32"),), (Node(op, names, ("y",), attrs),), {})
    executor = Executor(graph, Settings())
    given = dict(zip(names, inputs, strict=True))
    assert executor.bound(given).plan.kernels == ("elementwise.f32_chain",)
    return np.asarray(executor.run(given)["y"])


def ulps(got: Array, exact: Array) -> Array:
    """Errors in units of the last place of the exact value's float32; inf where NaN or infinity stands wrongly."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(nearest)).astype(np.float64), 2.0**-149)
        error = np.abs(got.astype(np.float64) - exact) / unit
    error = np.where(np.isinf(nearest), np.where(got == nearest, 0, np.inf), error)
    return np.where(np.isnan(nearest) | np.isnan(got), np.where(np.isnan(nearest) & np.isnan(got), 0, np.inf), error)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_EXACT: list[tuple[str, Callable[[Array], Array], float]] = [
    ("Exp", np.exp, 1.1),
    ("Log", np.log, 0.9),
    ("Sigmoid", _sigmoid, 2.5),
    ("Tanh", np.tanh, 2.6),
    ("Erf", _erf, 3.0),
    ("Softplus", lambda x: np.logaddexp(0, x), 2.2),
    ("Sin", np.sin, 1.7),
    ("Cos", np.cos, 1.7),
    ("Tan", np.tan, 3.5),
    ("Asin", np.arcsin, 1.9),
    ("Acos", np.arccos, 1.4),
    ("Atan", np.arctan, 1.5),
    ("Sinh", np.sinh, 2.2),
    ("Cosh", np.cosh, 1.6),
    ("Asinh", np.arcsinh, 2.1),
    ("Acosh", np.arccosh, 2.2),
    ("Atanh", np.arctanh, 2.3),
    ("Sqrt", np.sqrt, 0.5),
    ("Reciprocal", lambda x: 1 / x, 0.5),
]
_TARGET = build.host()
_HAS_FMA = _TARGET is not None and "fma" in _TARGET.needs


@pytest.mark.parametrize(("op", "exact", "bound"), _EXACT, ids=[row[0] for row in _EXACT])
def test_elementary_functions_stay_within_their_bounds(op, exact, bound):
    x = samples(1)
    with np.errstate(all="ignore"):
        error = ulps(native(op, x), exact(x.astype(np.float64)))
    worst = int(np.argmax(error))
    assert error[worst] <= (bound if _HAS_FMA else 2 * bound + 1), (x[worst], error[worst])


def test_power_is_nearly_correctly_rounded():
    rng = np.random.default_rng(2)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 0.5, -0.5, 3, -3, 1.5], np.float32)
    grid_x, grid_y = map(np.ravel, np.meshgrid(special, special))
    wild = samples(3)
    base = rng.uniform(0, 30, 20_000).astype(np.float32)
    exponent = rng.uniform(-20, 20, 20_000).astype(np.float32)
    x = np.concatenate([grid_x, wild, base, -base])
    y = np.concatenate([grid_y, rng.permutation(wild), exponent, np.rint(exponent)])
    with np.errstate(all="ignore"):
        error = ulps(native("Pow", x, y), np.power(x.astype(np.float64), y.astype(np.float64)))
    assert error.max() <= 0.51


@pytest.mark.parametrize("op", ["Exp", "Log", "Sigmoid", "Tanh", "Erf", "Silu", "Gelu", "Mish", "Softplus", "Sin"])
def test_nan_passes_through(op):
    assert np.isnan(native(op, np.full(5, np.nan, np.float32))).all()


def test_limits():
    inf = np.float32(np.inf)
    assert native("Exp", np.array([-inf, inf, 0], np.float32)).tolist() == [0, np.inf, 1]
    assert native("Log", np.array([0, 1, inf], np.float32)).tolist() == [-np.inf, 0, np.inf]
    assert np.isnan(native("Log", np.array([-1, -inf], np.float32))).all()
    assert native("Sigmoid", np.array([-inf, inf], np.float32)).tolist() == [0, 1]
    assert native("Tanh", np.array([-inf, inf], np.float32)).tolist() == [-1, 1]


_PARAMETERS = {2: (-0.5, 0.75), 3: (0.1, 0.0), 7: (0.2, 0.5), 11: (1.3, 0.0)}
_FORMULAS: dict[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0),
    "Clip": lambda x: np.clip(x, -0.5, 0.75),
    "LeakyRelu": lambda x: np.where(x < 0, 0.1 * x, x),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "Silu": lambda x: x * _sigmoid(x),
    "Gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "GeluTanh": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "Elu": lambda x: np.where(x < 0, 1.3 * np.expm1(np.minimum(x, 0)), x),
}


@pytest.fixture(scope="module")
def activate():
    """The epilogue's `activate`, compiled for this process."""
    from lite_runtime.kernels._math import activate as inner
    from lite_runtime.native.simd import f32p

    @numba.njit(error_model="numpy")
    def run(code, a, b, at, n):
        inner(code, np.float32(a), np.float32(b), f32p(at), n)

    return run


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activate_works_in_place_on_any_length(name, activate):
    code = ACTIVATIONS[name].code
    a, b = _PARAMETERS.get(code, (0.0, 0.0))
    rng = np.random.default_rng(4)
    for n in (0, 1, 3, 15, 16, 17, 31, 33, 64, 100):
        data = (4 * rng.standard_normal(n + 2)).astype(np.float32)
        before = data.copy()
        activate(code, a, b, data.ctypes.data + 4, n)
        assert data[0] == before[0] and data[-1] == before[-1]
        np.testing.assert_allclose(data[1:-1], _FORMULAS[name](before[1:-1].astype(np.float64)), rtol=2e-6, atol=2e-7)


def test_every_activation_is_the_references():
    """The table and the reference of fused nodes know the same names."""
    from lite_runtime.reference.activation import ACTIVATIONS as THEIRS

    assert {name for name in ACTIVATIONS if name} == {name for name in THEIRS if name}
