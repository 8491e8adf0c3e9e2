"""Random networks: the passes do not change results."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime import reference
from tests.converter.support import Builder, assert_close, converted, random_inputs, with_onnxruntime


class Image:
    """A value of the random network: its name and shape."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape


def conv(b: Builder, x: Image) -> Image:
    n, c, h, w = x.shape
    group = int(b.rng.choice([1, c]))
    filters = c if group > 1 else int(b.rng.integers(1, 5))
    k, stride, pad = int(b.rng.choice([1, 3])), int(b.rng.choice([1, 2])), int(b.rng.integers(0, 2))
    if h + 2 * pad < k or w + 2 * pad < k:
        return x
    inputs = [x.name, b.weight(filters, c // group, k, k)] + [b.weight(filters)] * bool(b.rng.integers(2))
    y = b("Conv", *inputs, kernel_shape=[k, k], strides=[stride] * 2, pads=[pad] * 4, group=group)
    return Image(y, (n, filters, (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1))


def norm(b: Builder, x: Image) -> Image:
    c = x.shape[1]
    scale, bias, mean = b.weight(c), b.weight(c), b.weight(c)
    var = b.const(b.rng.random(c).astype(np.float32) + 0.5)
    return Image(b("BatchNormalization", x.name, scale, bias, mean, var), x.shape)


def unary(b: Builder, x: Image) -> Image:
    op = str(b.rng.choice(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Abs", "Clip", "Elu", "Identity"]))
    extra = [b.const(np.float32(-0.5)), b.const(np.float32(0.7))] if op == "Clip" else []
    return Image(b(op, x.name, *extra), x.shape)


def affine(b: Builder, x: Image) -> Image:
    op = str(b.rng.choice(["Mul", "Add", "Sub", "Div"]))
    shape = [(), (x.shape[1], 1, 1), x.shape[1:], x.shape[3:]][int(b.rng.integers(4))]
    constant = b.const((b.rng.random(shape) + 0.5).astype(np.float32))
    sides = [x.name, constant] if b.rng.integers(2) or op == "Div" else [constant, x.name]
    return Image(b(op, *sides), x.shape)


def pool(b: Builder, x: Image) -> Image:
    n, c, h, w = x.shape
    if min(h, w) < 2:
        return x
    op = str(b.rng.choice(["MaxPool", "AveragePool"]))
    return Image(b(op, x.name, kernel_shape=[2, 2], strides=[2, 2]), (n, c, h // 2, w // 2))


def resize(b: Builder, x: Image) -> Image:
    n, c, h, w = x.shape
    if h * w > 400:
        return x
    y = b("Resize", x.name, "", b.const([1.0, 1.0, 2.0, 2.0], np.float32), mode="nearest", nearest_mode="floor",
          coordinate_transformation_mode="asymmetric")  # fmt: skip
    return Image(y, (n, c, 2 * h, 2 * w))


def pad(b: Builder, x: Image) -> Image:
    n, c, h, w = x.shape
    y = b("Pad", x.name, b.const([0, 0, 1, 0, 0, 1, 0, 2], np.int64))
    return Image(y, (n, c + 1, h + 1, w + 2))


def window(b: Builder, x: Image) -> Image:
    axis = int(b.rng.integers(1, 4))
    if x.shape[axis] < 2:
        return x
    y = b("Slice", x.name, b.const([1], np.int64), b.const([99], np.int64), b.const([axis], np.int64))
    return Image(y, tuple(d - (i == axis) for i, d in enumerate(x.shape)))


def shuffle(b: Builder, x: Image) -> Image:
    n, c, h, w = x.shape
    if c % 2:
        return x
    wide = b("Reshape", x.name, b.const([n, 2, c // 2, h, w], np.int64))
    turned = b("Transpose", wide, perm=[0, 2, 1, 3, 4])
    return Image(b("Reshape", turned, b.const([n, c, h, w], np.int64)), x.shape)


def turn(b: Builder, x: Image) -> Image:
    perm = [int(p) for p in b.rng.permutation(4)]
    return Image(b("Transpose", x.name, perm=perm), tuple(x.shape[p] for p in perm))


def reduce(b: Builder, x: Image) -> Image:
    axis = int(b.rng.integers(1, 4))
    mean = b("ReduceMean", x.name, b.const([axis], np.int64), keepdims=1)
    return Image(b("Sub", x.name, mean), x.shape)


def squeeze_excite(b: Builder, x: Image) -> Image:
    c = x.shape[1]
    small = b("Conv", b("GlobalAveragePool", x.name), b.weight(c, c, 1, 1))
    return Image(b("Mul", x.name, b("Sigmoid", small)), x.shape)


def drop_axis(b: Builder, x: Image) -> Image:
    """Squeeze an axis of one and put it back elsewhere; or a chosen index."""
    picked = b("Gather", x.name, b.const(0, np.int64), axis=2)
    axis = int(b.rng.integers(0, 4))
    rest = [x.shape[0], x.shape[1], x.shape[3]]
    rest.insert(axis, 1)
    return Image(b("Unsqueeze", picked, b.const([axis], np.int64)), tuple(rest))


def softmax(b: Builder, x: Image) -> Image:
    return Image(b("Softmax", x.name, axis=int(b.rng.integers(0, 4))), x.shape)


STEPS = (conv, conv, conv, norm, unary, unary, affine, pool, resize, pad, window, shuffle, turn, reduce, squeeze_excite,
         drop_axis, softmax)  # fmt: skip


def join(b: Builder, a: Image, c: Image) -> Image | None:
    if a.shape == c.shape and b.rng.integers(2):
        return Image(b("Add", a.name, c.name), a.shape)
    axes = [i for i in range(4) if all(a.shape[j] == c.shape[j] for j in range(4) if j != i)]
    if not axes:
        return None
    axis = int(b.rng.choice(axes))
    return Image(
        b("Concat", a.name, c.name, axis=axis), tuple(d + (i == axis) * c.shape[i] for i, d in enumerate(a.shape))
    )


def network(seed: int):
    b = Builder(opset=22, seed=seed)
    values = [Image(b.input("x", [1, 4, 8, 6]), (1, 4, 8, 6))]
    for _ in range(int(b.rng.integers(3, 16))):
        recent = values[-3:]
        x = recent[int(b.rng.integers(len(recent)))]
        y = join(b, x, recent[0]) if b.rng.random() < 0.25 else STEPS[int(b.rng.integers(len(STEPS)))](b, x)
        if y is not None and y is not x and np.prod(y.shape) < 4000:
            values.append(y)
    used = {name for node in b.nodes for name in node.input}
    ends = [v.name for v in values[1:] if v.name not in used] or [values[-1].name]
    flat = b("Reshape", values[-1].name, b.const([1, -1], np.int64))
    head = b("Gemm", flat, b.weight(3, int(np.prod(values[-1].shape))), b.weight(3), transB=1)
    return b.model(*dict.fromkeys([*ends, head]))


@pytest.mark.parametrize("seed", range(60))
def test_a_random_network_stays_the_same(seed):
    model = network(seed)
    graph = converted(model)
    inputs = random_inputs(graph)
    got = reference.run(graph, inputs)
    assert_close(got, reference.run(converted(model, ()), inputs))
    if seed % 3 == 0:
        assert_close(got, with_onnxruntime(model, inputs))
