"""Small bundles with state, built by hand: a counter, and a linear model that learns by gradient descent."""

from __future__ import annotations

import numpy as np

from lite_runtime import bundle
from lite_runtime.graph import Array, Graph, Node, StateUse, Value

__all__ = ["USES", "B", "W", "bundle_of", "initial", "learner", "signatures"]

RNG = np.random.default_rng(5)
W = RNG.standard_normal((5, 3)).astype(np.float32)
B = RNG.standard_normal(3).astype(np.float32)

USES = {
    "count": StateUse({"count": "n"}, {"next": "n"}),
    "predict": StateUse({"w": "w", "b": "b"}, {}),
    "shift": StateUse({"b": "b"}, {"moved": "b"}),
    "train_step": StateUse({"w": "w", "b": "b", "rate": "hyper/learning_rate"}, {"new_w": "w", "new_b": "b"}),
}


def initial() -> dict[str, Array]:
    """State as the bundle holds it."""
    return {"w": W, "b": B, "hyper/learning_rate": np.array(0.03125, np.float32), "n": np.array(0, np.int64)}


def signatures() -> dict[str, Graph]:
    """count: by -> seen (n * by), n += by. predict: x -> y. shift: b += by. train_step: x, t -> loss, a step of
    gradient descent on the sum of squares. double: x -> 2 x, without state."""
    x, t = Value("x", "float32", ("n", 5)), Value("t", "float32", ("n", 3))
    w, b, rate = Value("w", "float32", (5, 3)), Value("b", "float32", (3,)), Value("rate", "float32", ())
    forward = (Node("MatMul", ("x", "w"), ("xw",)), Node("Add", ("xw", "b"), ("y",)))
    backward = (
        Node("Sub", ("y", "t"), ("d",)),
        Node("Mul", ("d", "d"), ("squares",)),
        Node("ReduceSum", ("squares",), ("loss",), {"keepdims": 0}),
        Node("Transpose", ("x",), ("xt",), {"perm": (1, 0)}),
        Node("MatMul", ("xt", "d"), ("grad_w",)),
        Node("ReduceSum", ("d", "rows"), ("grad_b",), {"keepdims": 0}),
        Node("Mul", ("grad_w", "rate"), ("step_w",)),
        Node("Mul", ("grad_b", "rate"), ("step_b",)),
        Node("Sub", ("w", "step_w"), ("new_w",)),
        Node("Sub", ("b", "step_b"), ("new_b",)),
    )
    counting = (Node("Mul", ("count", "by"), ("seen",)), Node("Add", ("count", "by"), ("next",)))
    by, count = Value("by", "int64", ()), Value("count", "int64", ())
    return {
        "count": Graph((by, count), (Value("seen", "int64", ()), Value("next", "int64", ())), counting, {}),
        "predict": Graph((x, w, b), (Value("y", "float32", ("n", 3)),), forward, {}),
        "shift": Graph(
            (b, Value("by", "float32", (3,))),
            (Value("moved", "float32", (3,)),),
            (Node("Add", ("b", "by"), ("moved",)),),
            {},
        ),
        "train_step": Graph(
            (w, x, b, t, rate),
            (Value("new_w", "float32", (5, 3)), Value("loss", "float32", ()), Value("new_b", "float32", (3,))),
            forward + backward,
            {"rows": np.array([0], np.int64)},
        ),
        "double": Graph((x,), (Value("y", "float32", ("n", 5)),), (Node("Add", ("x", "x"), ("y",)),), {}),
    }


def learner() -> bytes:
    """All of it as a bundle."""
    return bundle.write(None, signatures(), state=initial(), uses=USES)


def bundle_of(node: Node, state: Array, reads: str, writes: str, shape: tuple[int, ...]) -> bytes:
    """One node over a state and an input `x` of that shape; its output is declared to be what the state is."""
    dtype = str(state.dtype)
    kept = Value(reads, dtype, state.shape)
    index = Value("x", "int64" if node.op == "Gather" else dtype, shape)
    graph = Graph((index, kept), (Value(writes, dtype, state.shape),), (node,), {})
    return bundle.write(
        None, {"run": graph}, state={"s": state}, uses={"run": StateUse({reads: "s"}, {writes: "s"})}
    )
