"""Result types of the gradient operators: mostly those of the operands whose gradients they are."""

from __future__ import annotations

from lite_runtime.graph import Spec
from lite_runtime.ops._axes import FLOATS, attr_int, axis_of, expect
from lite_runtime.ops._checks import choice
from lite_runtime.ops.pool import channels_at, infer_window
from lite_runtime.ops.registry import Inference, infer

__all__: list[str] = []

_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _must_be(n: Inference, i: int, what: str, dtype: str, shape: tuple[int, ...]) -> Spec:
    """The type of input `i`, which must be exactly this one."""
    if n.spec(i) != Spec(dtype, shape):
        raise n.error(f"expected {what} of {dtype}{list(shape)}, got {n.spec(i).dtype}{list(n.spec(i).shape)}")
    return n.spec(i)


@infer("ConvWeightGrad")
def _infer_conv_weight(n: Inference) -> tuple[Spec]:
    x, dy = expect(n, 0, FLOATS, "X"), n.spec(1)
    at = 1 if channels_at(n) == "NCHW" else -1
    expected = list(infer_window(n, x))
    channels, filters, group = x.shape[at], dy.shape[at] if dy.shape else 0, attr_int(n, "group", 1)
    if group < 1 or channels % group or filters % group:
        raise n.error(f"group {group} does not divide {channels} channels and {filters} filters")
    expected[at] = filters
    _must_be(n, 1, "dY", x.dtype, tuple(expected))
    return (Spec(x.dtype, (filters, channels // group, *n.attr("kernel_shape"))),)


@infer("MaxPoolGrad", "AveragePoolGrad")
def _infer_pool(n: Inference) -> tuple[Spec]:
    x = expect(n, 0, FLOATS, "X")
    attr_int(n, "count_include_pad", 0)
    _must_be(n, 1, "dY", x.dtype, infer_window(n, x))
    return (x,)


@infer("BatchNormalizationGrad")
def _infer_batch_norm(n: Inference) -> tuple[Spec, Spec, Spec]:
    x = expect(n, 1, FLOATS, "X")
    if len(x.shape) < 2:
        raise n.error(f"expected at least a batch and a channel axis, got shape {list(x.shape)}")
    _must_be(n, 0, "dY", x.dtype, x.shape)
    channels = (x.shape[1 if channels_at(n) == "NCHW" else -1],)
    scale = _must_be(n, 2, "scale", expect(n, 2, FLOATS, "scale").dtype, channels)
    for i, what in ((3, "saved_mean"), (4, "saved_rstd")):
        _must_be(n, i, what, "float32", channels)
    return x, scale, scale


@infer("LayerNormalizationGrad")
def _infer_layer_norm(n: Inference) -> tuple[Spec, Spec, Spec]:
    x = expect(n, 1, FLOATS, "X")
    axis = axis_of(n, len(x.shape), -1)
    _must_be(n, 0, "dY", x.dtype, x.shape)
    scale = _must_be(n, 2, "scale", x.dtype, x.shape[axis:])
    rest = (*x.shape[:axis], *(1,) * len(x.shape[axis:]))
    for i, what in ((3, "mean"), (4, "inv_std")):
        _must_be(n, i, what, expect(n, i, FLOATS, what).dtype, rest)
    return x, scale, scale


_STATES = {"LSTMGrad": ("h", "c"), "GRUGrad": ("h",)}
_GATES = {"LSTMGrad": 4, "GRUGrad": 3}


@infer("LSTMGrad", "GRUGrad")
def _infer_recurrent(n: Inference) -> tuple[Spec, ...]:
    """Operands: X, W, R, Y, B, sequence_lens, initial_h (and initial_c), dY, dY_h (and dY_c)."""
    gates, states = _GATES[n.node.op], _STATES[n.node.op]
    x = expect(n, 0, FLOATS, "X")
    if len(x.shape) != 3 or len(n.spec(2).shape) != 3:
        raise n.error(f"expected X and R of rank 3, got {list(x.shape)} and {list(n.spec(2).shape)}")
    layout = attr_int(n, "layout", 0, (0, 1))
    attr_int(n, "linear_before_reset", 0, (0, 1))
    count = _DIRECTIONS[choice(n, "direction", "forward", tuple(_DIRECTIONS))]
    hidden = attr_int(n, "hidden_size", n.spec(2).shape[2])
    time, batch = (x.shape[1], x.shape[0]) if layout else x.shape[:2]
    state = Spec(x.dtype, (batch, count, hidden) if layout else (count, batch, hidden))
    w = _must_be(n, 1, "W", x.dtype, (count, gates * hidden, x.shape[2]))
    r = _must_be(n, 2, "R", x.dtype, (count, gates * hidden, hidden))
    b = Spec(x.dtype, (count, 2 * gates * hidden))
    y = Spec(x.dtype, (batch, time, count, hidden) if layout else (time, count, batch, hidden))
    _must_be(n, 3, "Y", *y)
    after = 6 + len(states)
    optional = {4: ("B", *b), 5: ("sequence_lens", "int32", (batch,)), after: ("dY", *y)}
    for i, name in enumerate(states):
        optional |= {6 + i: (f"initial_{name}", *state), after + 1 + i: (f"dY_{name}", *state)}
    for i, expected in optional.items():
        if n.has(i):
            _must_be(n, i, *expected)
    return (x, w, r, b, *(state for _ in states))
