"""The gradient operators against `jax.vjp` of the forward operators, as the engine lowers them to JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud.engine.lowering import LOWERINGS, Context
from lite_runtime.graph import Node
from lite_runtime.reference import evaluate
from tests.lite_runtime.reference.oracle import RNG, floats

_CONTEXT = Context("here", ("x",), ("y",), 26, False, None, None, 0, None)


def forward(op: str, **attrs: Any) -> Callable[..., Any]:
    row = LOWERINGS[op]
    extra = {"context": _CONTEXT} if row.wants_context else {}

    def run(*operands: Any) -> Any:
        found = row.function(*operands, **attrs, **extra)
        return found[0] if isinstance(found, tuple) and len(found) == 1 else found

    return run


def vjp(fn: Callable[..., Any], operands: Sequence[Any], *results: Any) -> list[np.ndarray]:
    """The gradients of the operands; those of the results are given. One compiled program."""

    def run(operands: Any, results: Any) -> Any:
        _, back = jax.vjp(fn, *operands)
        return back(results if len(results) > 1 else results[0])

    quickly = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
    return [np.asarray(g) for g in quickly(tuple(operands), results)]


def gradients(op: str, operands: Sequence[Any], outputs: int = 1, **attrs: Any) -> list[np.ndarray]:
    names = tuple(f"i{i}" if x is not None else "" for i, x in enumerate(operands))
    return evaluate(Node(op, names, tuple(f"o{i}" for i in range(outputs)), attrs), operands)


def agree(got: Sequence[Any], wanted: Sequence[Any], limit: float = 1e-4) -> None:
    for g, w in zip(got, wanted, strict=True):
        w = np.asarray(w)
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, atol=limit * max(1.0, float(np.abs(w).max(initial=0))))


def last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dense": ((2, 3, 7, 8), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strided, uneven pads": ((2, 4, 9, 6), (6, 4, 3, 2), {"strides": (2, 3), "pads": (1, 0, 0, 1)}),
    "dilated": ((1, 2, 9, 9), (3, 2, 3, 3), {"dilations": (2, 3)}),
    "grouped": ((2, 6, 5, 5), (4, 3, 3, 3), {"group": 2}),
    "depthwise": ((2, 5, 6, 5), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "multiplied": ((2, 3, 6, 5), (6, 1, 3, 3), {"group": 3}),
    "pointwise": ((3, 4, 5, 1), (7, 4, 1, 1), {}),
    "1-D": ((2, 3, 11), (4, 3, 5), {"strides": (2,), "pads": (2, 1)}),
    "3-D": ((1, 2, 4, 5, 3), (3, 2, 2, 2, 2), {}),
    "batch of none": ((0, 2, 4, 4), (3, 2, 3, 3), {}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv_weights(case: str) -> None:
    x_shape, w_shape, attrs = CONVOLUTIONS[case]
    x, w = floats(*x_shape), floats(*w_shape)
    fn = forward("Conv", **attrs)
    dy = floats(*jax.eval_shape(fn, x, w).shape)
    wanted = vjp(fn, (x, w), dy)[1:]
    for layout, operands in (("NCHW", (x, dy)), ("NHWC", (last(x), last(dy)))):
        agree(gradients("ConvWeightGrad", operands, kernel_shape=w_shape[2:], layout=layout, **attrs), wanted)


POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 6, 8), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "overlapping, padded": ((2, 3, 7, 5), {"kernel_shape": (3, 3), "strides": (2, 1), "pads": (1, 1, 1, 0)}),
    "dilated": ((1, 2, 8, 8), {"kernel_shape": (2, 3), "dilations": (3, 2)}),
    "rounded up": ((1, 2, 7, 6), {"kernel_shape": (3, 2), "strides": (3, 4), "ceil_mode": 1}),
    "1-D": ((2, 3, 9), {"kernel_shape": (4,), "strides": (3,), "pads": (1, 1)}),
}


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool over pads"])
def test_pools(op: str, case: str) -> None:
    shape, attrs = POOLS[case]
    op, _, pads = op.partition(" ")
    if pads:
        attrs = {**attrs, "count_include_pad": 1}
    x = RNG.integers(-3, 4, shape).astype(np.float32)  # equal maxima: the first one takes the gradient
    fn = forward(op, **attrs)
    dy = floats(*jax.eval_shape(fn, x).shape)
    wanted = winners_take(x, dy, attrs) if op == "MaxPool" else vjp(fn, (x,), dy)[0]
    agree(gradients(f"{op}Grad", (x, dy), **attrs), [wanted])
    agree(gradients(f"{op}Grad", (last(x), last(dy)), layout="NHWC", **attrs), [last(wanted)])


def winners_take(x: np.ndarray, dy: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """JAX differentiates no dilated windows; MaxPool's own second result says where the maxima were."""
    _, places = gradients("MaxPool", (x,), 2, **attrs)
    dx = np.zeros(x.size, x.dtype)
    np.add.at(dx, places.ravel(), dy.ravel())
    return dx.reshape(x.shape)


def batch_norm(x: Any, scale: Any, b: Any) -> Any:
    over, wide = (0, *range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    normal = (x - x.mean(over, keepdims=True)) / jnp.sqrt(x.var(over, keepdims=True) + 1e-3)
    return normal * scale.reshape(wide) + b.reshape(wide)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (6, 5), (3, 2, 9), (1, 4, 1, 3)])
def test_batch_normalization(shape: tuple[int, ...], layout: str) -> None:
    x, scale, b = floats(*shape), floats(shape[1]), floats(shape[1])
    dy = floats(*shape)
    turn = last if layout == "NHWC" else lambda a: a
    mean, var = floats(shape[1]), floats(shape[1], low=0.5)
    outs = gradients(
        "BatchNormalization", (turn(x), scale, b, mean, var), 5, training_mode=1, epsilon=1e-3, layout=layout
    )
    agree(outs[:1], [turn(np.asarray(batch_norm(x, scale, b)))])
    over = (0, *range(2, x.ndim))
    agree(outs[1:4], [0.9 * mean + 0.1 * x.mean(over), 0.9 * var + 0.1 * x.var(over), x.mean(over)])
    agree(outs[4:], [1 / np.sqrt(x.var(over) + np.float32(1e-3))], 1e-5)
    got = gradients("BatchNormalizationGrad", (turn(dy), turn(x), scale, *outs[3:]), 3, layout=layout)
    dx, *rest = vjp(batch_norm, (x, scale, b), dy)
    agree(got, [turn(dx), *rest])


@pytest.mark.parametrize(("shape", "axis"), [((4, 7), -1), ((2, 3, 5), 1), ((2, 5, 6), 2), ((3, 4), 0)])
def test_layer_normalization(shape: tuple[int, ...], axis: int) -> None:
    x, dy, scale, b = floats(*shape), floats(*shape), floats(*shape[axis:]), floats(*shape[axis:])
    _, mean, inverse = gradients("LayerNormalization", (x, scale, b), 3, axis=axis)
    got = gradients("LayerNormalizationGrad", (dy, x, scale, mean, inverse), 3, axis=axis)
    agree(got, vjp(lambda *v: forward("LayerNormalization", axis=axis)(*v)[0], (x, scale, b), dy))


CELLS = {"LSTM": (4, ("h", "c")), "GRU": (3, ("h",)), "GRU late": (3, ("h",))}


@pytest.mark.parametrize(
    ("direction", "layout", "lengths"), [("reverse", 1, True), ("bidirectional", 0, False)]
)
@pytest.mark.parametrize("cell", CELLS)
def test_recurrences(cell: str, lengths: bool, direction: str, layout: int) -> None:
    gates, states = CELLS[cell]
    time, batch, inputs, hidden, count = 5, 3, 4, 2, 2 if direction == "bidirectional" else 1
    x = floats(*((batch, time) if layout else (time, batch)), inputs)
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    w, r = floats(count, gates * hidden, inputs), floats(count, gates * hidden, hidden)
    b, starts = floats(count, 2 * gates * hidden), [floats(*state) for _ in states]
    ends = np.array([5, 0, 3], np.int32) if lengths else None
    attrs: dict[str, Any] = {"direction": direction, "layout": layout}
    if cell == "GRU late":
        attrs["linear_before_reset"] = 1
    op = cell.partition(" ")[0]

    def run(x: Any, w: Any, r: Any, b: Any, *starts: Any) -> Any:
        return forward(op, hidden_size=hidden, **attrs)(x, w, r, b, ends, *starts)

    y, *finals = gradients(op, (x, w, r, b, ends, *starts), 1 + len(states), hidden_size=hidden, **attrs)
    grads = [floats(*v.shape) for v in (y, *finals)]
    operands = (x, w, r, y, b, ends, *starts, *grads)
    agree(gradients(f"{op}Grad", operands, 4 + len(states), **attrs), vjp(run, (x, w, r, b, *starts), *grads))
    without = (x, w, r, y, None, ends, *(None for _ in states), None, grads[1])
    assert [g.shape for g in gradients(f"{op}Grad", without, 4 + len(states), **attrs)][3] == b.shape
