"""Small valid bundles with state: the operators of training steps, and models that only keep state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lite_runtime import bundle
from lite_runtime.graph import Array, Graph, Node, StateUse, Value
from tests.lite_runtime.learners import learner

__all__ = ["training_bundles"]


def _real(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def _value(name: str, array: Array) -> Value:
    return Value(name, str(array.dtype), array.shape)


def _step(
    inputs: dict[str, tuple[int | str, ...]],
    state: dict[str, Array],
    writes: dict[str, str],
    nodes: list[Node],
    *shown: Value,
) -> bytes:
    """A signature that reads all state by its name, and one that shows it."""
    values = tuple(_value(name, array) for name, array in state.items())
    given = tuple(Value(name, "float32", shape) for name, shape in inputs.items())
    outputs = tuple(_value(name, state[held]) for name, held in writes.items())
    reads = {name: name for name in state}
    copies = tuple(Node("Identity", (name,), (f"{name}/copy",)) for name in state)
    shows = Graph(values, tuple(_value(f"{name}/copy", array) for name, array in state.items()), copies, {})
    return bundle.write(
        None,
        {"step": Graph((*given, *values), (*shown, *outputs), tuple(nodes), {}), "show": shows},
        state=state,
        uses={"step": StateUse(reads, writes), "show": StateUse(reads, {})},
    )


def _momentum(gradient: str, weight: str) -> list[Node]:
    """weight/new and its velocity from a gradient."""
    velocity = f"{weight}/velocity"
    return [
        Node("Mul", (velocity, "decay"), (f"{weight}/decayed",)),
        Node("Add", (f"{weight}/decayed", gradient), (f"{velocity}/new",)),
        Node("Mul", (f"{velocity}/new", "rate"), (f"{weight}/change",)),
        Node("Sub", (weight, f"{weight}/change"), (f"{weight}/new",)),
    ]


def _convolution(layout: str, group: int) -> bytes:
    """Conv, Relu and MaxPool forth and back, by momentum."""
    at = {"layout": layout}
    window = {**at, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "group": group}
    pool = {**at, "kernel_shape": (2, 2), "strides": (2, 2)}
    first = layout == "NCHW"
    x: tuple[int | str, ...] = ("n", 4, 6, 6) if first else ("n", 6, 6, 4)
    d: tuple[int | str, ...] = ("n", 8, 3, 3) if first else ("n", 3, 3, 8)
    w = _real(8, 4 // group, 3, 3)
    state = {"w": w, "w/velocity": np.zeros_like(w)} | _rates()
    nodes = [
        Node("Conv", ("x", "w"), ("c",), window),
        Node("Relu", ("c",), ("r",)),
        Node("MaxPool", ("r",), ("y",), pool),
        Node("MaxPoolGrad", ("r", "d"), ("dr",), pool),
        Node("Greater", ("c", "none"), ("on",)),
        Node("Where", ("on", "dr", "none"), ("dc",)),
        Node("ConvWeightGrad", ("x", "dc"), ("dw",), window),
        Node("ConvTranspose", ("dc", "w"), ("dx",), window),
        *_momentum("dw", "w"),
    ]
    writes = {"w/new": "w", "w/velocity/new": "w/velocity"}
    return _step({"x": x, "d": d}, state, writes, nodes, Value("y", "float32", d), Value("dx", "float32", x))


def _rates() -> dict[str, Array]:
    return {name: np.array(value, np.float32) for name, value in (("rate", 0.1), ("decay", 0.9), ("none", 0))}


def _normalisation() -> bytes:
    """BatchNormalization in training form, whose statistics run, then LayerNormalization; forth and back."""
    state = {"scale": _real(3), "b": _real(3), "mean": _real(3), "var": np.ones(3, np.float32)}
    nodes = [
        Node(
            "BatchNormalization",
            ("x", "scale", "b", "mean", "var"),
            ("y", "mean/new", "var/new", "saved", "rstd"),
            {"training_mode": 1, "momentum": 0.75},
        ),
        Node("BatchNormalizationGrad", ("d", "x", "scale", "saved", "rstd"), ("dx", "dscale", "db")),
        Node("LayerNormalization", ("l", "scale"), ("z", "zm", "zs"), {"axis": -1}),
        Node("LayerNormalizationGrad", ("z", "l", "scale", "zm", "zs"), ("dl", "dlscale", "dlb"), {"axis": -1}),
        Node("Sub", ("scale", "dscale"), ("scale/new",)),
        Node("Sub", ("b", "dlb"), ("b/new",)),
    ]
    writes = {f"{name}/new": name for name in ("scale", "b", "mean", "var")}
    image: tuple[int | str, ...] = ("n", 3, 4, 5)
    shown = (Value("dx", "float32", image), Value("dl", "float32", ("n", 7, 3)))
    return _step({"x": image, "d": image, "l": ("n", 7, 3)}, state, writes, nodes, *shown)


def _pooling(op: str, **attrs: int) -> bytes:
    """The gradient of a pool with windows that overlap, added up."""
    pool = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), **attrs}
    state = {"sum": _real(2, 3, 5, 4)}
    forward = op.removesuffix("Grad")
    nodes = [
        Node(forward, ("sum",), ("y",), pool),
        Node(op, ("sum", "y"), ("g",), pool),
        Node("Add", ("g", "sum"), ("sum/new",)),
        Node("Mul", ("x", "sum"), ("shown",)),
    ]
    return _step({"x": (1,)}, state, {"sum/new": "sum"}, nodes, Value("shown", "float32", (2, 3, 5, 4)))


def _memory() -> bytes:
    """Rows of a table by a counter that is state too: an index that no caller gave."""
    state = {"table": _real(4, 3), "at": np.array([[1]], np.int64), "one": np.array(1, np.int64), "size": np.array(4)}
    nodes = [
        Node("ScatterND", ("table", "at", "x"), ("table/new",)),
        Node("Gather", ("table", "at"), ("row",), {"axis": 0}),
        Node("Add", ("at", "one"), ("next",)),
        Node("Mod", ("next", "size"), ("at/new",)),
    ]
    writes = {"table/new": "table", "at/new": "at"}
    return _step({"x": (1, 3)}, state, writes, nodes, Value("row", "float32", (1, 1, 3)))


def _made() -> Iterator[bytes]:
    yield learner()
    for layout in ("NCHW", "NHWC"):
        yield from (_convolution(layout, group) for group in (1, 2, 4))
    yield _normalisation()
    yield _pooling("MaxPoolGrad", ceil_mode=1)
    yield _pooling("AveragePoolGrad", count_include_pad=1)
    yield _pooling("AveragePoolGrad", ceil_mode=1)
    yield _memory()


def training_bundles() -> list[bytes]:
    """The family "training"."""
    return list(_made())
