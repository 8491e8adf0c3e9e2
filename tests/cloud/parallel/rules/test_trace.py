"""Steps as graphs: the flat jaxpr computes the same as the step, and names its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from cloud.errors import PlanError
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh
from cloud.parallel.running.apply import emitted
from cloud.parallel.staged.inside import unsplit
from cloud.parallel.topology import PRESETS
from cloud.parallel.tracing.rules import RULES
from cloud.parallel.tracing.trace import digest, trace


def real(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed + sum(shape)).normal(size=shape) * 0.3, jnp.float32)


def quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled without a care for speed."""
    compiled: Callable[..., Any] = jax.jit(function, compiler_options=HASTE)
    return compiled


HASTE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def agrees(step: Callable[..., Any], *args: Any, **options: Any) -> Graph:
    """The graph of the step, once its equations, emitted again, have given what the step gives."""
    graph = trace(step, *args, **options)
    run = emitted(graph, unsplit(graph, Mesh((1,), (0,))), PRESETS["cpu8"], lambda array, split: array)
    got = quickly(run)(jax.tree.leaves(args))
    for one, other in zip(got, jax.tree.leaves(quickly(step)(*args)), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    consistent(graph)
    return graph


def consistent(graph: Graph) -> None:
    """Operators are the jaxpr's equations; loops fit the dimensions they walk; nothing is unknown."""
    assert [op.primitive for op in graph.ops] == [eqn.primitive.name for eqn in graph.jaxpr.jaxpr.eqns]
    assert {op.primitive for op in graph.ops} <= set(RULES)
    for op in graph.ops:
        sides = [*zip(op.inputs, op.reads, strict=True), *zip(op.outputs, op.writes, strict=True)]
        for value, labels in sides:
            shape = graph.values[value].shape if value >= 0 else (0,) * len(labels)
            assert len(labels) == len(shape)
            walked = [loop for loop in labels if loop is not None]
            assert len(set(walked)) == len(walked)
            assert all(shape[d] % op.loops[loop].size == 0 for d, loop in enumerate(labels) if loop is not None)
        for number, loop in enumerate(op.loops):
            assert loop.size > 1
            assert loop.reduces or any(number in labels for labels in op.writes)


def trained(loss: Callable[[Any, Any], Any], optimizer: Any) -> Callable[[Any, Any], Any]:
    def step(state: Any, batch: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(state["params"], batch)
        updates, slots = optimizer.update(slopes, state["slots"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "slots": slots}, {"loss": value}

    return step


def started(params: Any, optimizer: Any) -> Any:
    return {"params": params, "slots": optimizer.init(params)}


ADAM, SGD = optax.adam(1e-3), optax.sgd(0.1)


def mlp(params: Any, batch: Any) -> Any:
    hidden = jax.nn.gelu(batch["x"] @ params["w1"] + params["b1"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["w2"], batch["y"]).mean()


def mlp_args() -> tuple[Any, Any]:
    params = {"w1": real(6, 8), "b1": real(8), "w2": real(8, 10)}
    return started(params, ADAM), {"x": real(4, 6), "y": jnp.array([1, 0, 9, 3])}


def test_mlp() -> None:
    graph = agrees(trained(mlp, ADAM), *mlp_args())
    names = [graph.values[i].name for i in graph.entering]
    assert "params.w1" in names and "slots.0.mu.w1" in names and "batch.x" in names
    kinds = {graph.values[i].kind for i in graph.entering if graph.values[i].name.startswith("batch")}
    assert kinds == {"batch"}
    assert graph.carried == (*range(len(names) - 2), None)
    first = next(op for op in graph.ops if op.primitive == "dot_general")
    assert [(loop.size, loop.reduces) for loop in first.loops] == [(4, ""), (6, "add"), (8, "")]
    assert first.flops == 2 * 4 * 6 * 8
    assert first.where.startswith("test_trace.py:")


def gpt(params: Any, words: Any) -> Any:
    heads, width = 2, params["table"].shape[1]
    x = params["table"][words[:, :-1]] + params["place"][None, : words.shape[1] - 1]
    for block in params["blocks"]:
        y = jax.nn.standardize(x, axis=-1) * block["scale"]
        q, k, v = jnp.split(y @ block["qkv"], 3, axis=-1)
        shape = (*q.shape[:2], heads, width // heads)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.reshape(shape), k.reshape(shape)) / np.sqrt(shape[-1])
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v.reshape(shape))
        x = x + mixed.reshape(x.shape) @ block["out"]
        x = x + jax.nn.gelu(jax.nn.standardize(x, axis=-1) @ block["up"]) @ block["down"]
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["table"].T, words[:, 1:]).mean()


def gpt_args() -> tuple[Any, Any]:
    block = {"scale": real(8), "qkv": real(8, 24), "out": real(8, 8), "up": real(8, 32), "down": real(32, 8)}
    params = {"table": real(12, 8), "place": real(4, 8), "blocks": [block]}
    return started(params, SGD), jnp.asarray(np.random.default_rng(0).integers(0, 12, (2, 5)))


def test_gpt_with_tied_head() -> None:
    graph = agrees(trained(gpt, SGD), *gpt_args())
    found = next(op for op in graph.ops if op.primitive == "gather" and graph.values[op.inputs[0]].shape == (12, 8))
    assert [(loop.size, loop.reduces) for loop in found.loops] == [(12, "add"), (8, ""), (2, ""), (4, "")]
    batched = [op for op in graph.ops if op.primitive == "dot_general" and len(op.loops) == 5]
    assert len(batched) == 6, "attention's two products, and each one's two gradients"
    heads = [op for op in graph.ops if op.primitive == "reshape" and op.where and len(op.writes[0]) == 4]
    assert all(op.loops[-1].size == 2 for op in heads if graph.values[op.outputs[0]].shape == (2, 4, 2, 4))


def moe(params: Any, x: Any) -> Any:
    gates = jax.nn.softmax(x @ params["route"])
    weight, chosen = lax.top_k(gates, 2)
    hot = jax.nn.one_hot(chosen, 4)
    place = jnp.cumsum(hot.reshape(-1, 4), axis=0).reshape(hot.shape) * hot - 1
    room = jax.nn.one_hot(place.astype(int), 4) * hot[..., None]
    sent = jnp.einsum("tkec,td->ecd", room, x)
    made = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, params["up"])), params["down"])
    return (jnp.einsum("tkec,tk,ecd->td", room, weight, made) ** 2).mean()


def test_experts() -> None:
    params = {"route": real(6, 4), "up": real(4, 6, 8), "down": real(4, 8, 6)}
    graph = agrees(trained(moe, SGD), started(params, SGD), real(8, 6))
    products = [op for op in graph.ops if op.primitive == "dot_general"]
    experts = [op for op in products if graph.values[op.outputs[0]].shape == (4, 4, 8)]
    assert experts and all(op.loops[0].size == 4 and not op.loops[0].reduces for op in experts)


def lstm(params: Any, batch: Any) -> Any:
    def cell(carry: Any, x: Any) -> Any:
        h, s = carry
        i, f, g, o = jnp.split(x @ params["wx"] + h @ params["wh"] + params["b"], 4, axis=-1)
        s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(s)
        return (h, s), h

    zero = jnp.zeros((batch["x"].shape[1], params["wh"].shape[0]))
    (h, _), _ = lax.scan(cell, (zero, zero), batch["x"])
    return ((h @ params["out"] - batch["y"]) ** 2).mean()


def lstm_args() -> tuple[Any, Any]:
    params = {"wx": real(6, 32), "wh": real(8, 32), "b": real(32), "out": real(8, 3)}
    return started(params, SGD), {"x": real(5, 4, 6), "y": real(4, 3)}


def test_the_sums_of_a_scan_are_taken_after_it() -> None:
    """The gradients of a recurrent network's weights are products over all trips: rows are narrower than weights."""
    graph = agrees(trained(lstm, SGD), *lstm_args())
    assert [(body.trips, body.outer) for body in graph.bodies] == [(5, -1), (5, -1)]
    after = [op for op in graph.ops if op.primitive == "dot_general" and {loop.size for loop in op.loops} >= {5, 4}]
    assert len(after) == 2 and all(op.inside == -1 for op in after)
    assert all(loop.reduces == "add" for op in after for loop in op.loops[:2])
    (closed,) = {op.primitive for op in trace(trained(lstm, SGD), *lstm_args(), loops=False).ops} & {
        "scan",
        "loop_carry",
    }
    assert closed == "scan"


def test_unrolled_scan() -> None:
    graph = agrees(trained(lstm, SGD), *lstm_args(), unroll=True)
    assert not [op for op in graph.ops if op.primitive == "scan"]


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_in_scans(reverse: bool) -> None:
    """A carry that is read inside is no mere sum; one of products is, and one of sums of sums."""

    def run(x: Any, w: Any) -> Any:
        def trip(carry: Any, x: Any) -> Any:
            total, rows, read = carry
            y = jnp.sin(x)
            return (total + (y.T @ y).T, rows + y.sum(0, keepdims=True).sum(0), read * 0.5 + x.sum()), (read, x @ w)

        return lax.scan(trip, (jnp.ones((3, 3)), jnp.ones(3), 0.0), x, reverse=reverse)

    graph = agrees(run, real(5, 1, 3), real(3, 2), state_argument=None)
    assert sum(op.primitive == "loop_carry" for op in graph.ops) == 1
    graph = agrees(run, real(5, 4, 3), real(3, 2), state_argument=None)
    assert sum(op.primitive == "loop_carry" for op in graph.ops) == 2, "operands are larger than the first"
    graph = agrees(run, real(5, 4, 3), real(3, 2), state_argument=None, parts=2)
    kept = [graph.values[op.outputs[0]].shape for op in graph.ops if op.primitive == "loop_carry"]
    assert kept == [(2, 3, 3), ()]


def test_conv_and_batch_norm() -> None:
    def loss(params: Any, batch: Any) -> Any:
        x = lax.conv_general_dilated(batch["x"], params["w"], (1, 1), "SAME")
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        x = (x - mean[:, None, None]) * lax.rsqrt(variance + 1e-5)[:, None, None] * params["scale"][:, None, None]
        x = lax.reduce_window(jax.nn.relu(x), -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return (x.mean((2, 3)) @ params["head"] - batch["y"]).__abs__().mean()

    params = {"w": real(8, 3, 3, 3), "scale": real(8), "head": real(8, 2)}
    graph = agrees(trained(loss, SGD), started(params, SGD), {"x": real(4, 3, 6, 6), "y": real(4, 2)})
    convs = [op for op in graph.ops if op.primitive == "conv_general_dilated"]
    forward, backward = ({(loop.size, loop.reduces) for loop in op.loops} for op in convs)
    assert forward == {(4, ""), (6, ""), (3, "add"), (8, "")}
    assert backward == {(4, "add"), (6, "add"), (3, ""), (8, "")}
    assert [op.flops for op in convs] == [2 * 4 * 8 * 3 * 16 * 16] * 2, "padding costs nothing: 16 pairs a dimension"


def test_recomputing_survives() -> None:
    """What a differentiated `checkpoint` reads is barred, one value an equation."""

    def loss(params: Any, x: Any) -> Any:
        return jax.checkpoint(lambda p, x: jnp.sin(jnp.sin(x @ p)))(params, x).sum()

    def step(params: Any, x: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(params, x)
        return params - slope, value

    graph = agrees(step, real(4, 4), real(2, 4))
    barriers = [op for op in graph.ops if op.primitive == "optimization_barrier"]
    assert len(barriers) == 3 and all(len(op.inputs) == 1 for op in barriers)
    assert sum(op.primitive == "dot_general" for op in graph.ops) == 3


def test_results_that_are_constants_or_arguments() -> None:
    graph = agrees(lambda state, x: (state, (1.5, x, np.arange(3))), real(4), real(2, 4))
    assert graph.ops == () and graph.leaving[0] == graph.entering[0] and graph.leaving[2] == graph.entering[1]
    assert graph.carried == (0, None, None, None)
    assert [graph.values[i].kind for i in graph.leaving] == ["state", "constant", "batch", "constant"]


def test_random_keys() -> None:
    def step(key: Any, x: Any) -> Any:
        key, drop = jax.random.split(key)
        return key, jnp.where(jax.random.bernoulli(drop, 0.5, x.shape), x, 0.0)

    graph = agrees(step, jax.random.PRNGKey(0), real(4, 8))
    (drawn,) = [op for op in graph.ops if op.primitive == "random_bits"]
    assert [loop.size for loop in drawn.loops] == [4, 8]
    assert graph.values[drawn.inputs[0]].bytes == 8
    typed = trace(step, jax.random.key(0), real(4, 8))
    assert typed.values[typed.entering[0]].name == "key"


def test_top_k_is_that_of_jax() -> None:
    for x in (real(4, 9), jnp.asarray(np.random.default_rng(0).integers(-3, 3, (4, 9)))):
        agrees(lambda x: lax.top_k(x, 3), x, state_argument=None)


def test_digest() -> None:
    """The same for shapes and for arrays, and where only a number differs; not for another shape or name."""
    state, batch = mlp_args()
    shapes = jax.eval_shape(lambda *args: args, state, batch)
    one = digest(trace(trained(mlp, ADAM), state, batch))
    assert one == digest(trace(trained(mlp, optax.adam(0.5)), *shapes))
    assert one != digest(trace(trained(mlp, ADAM), state, {"x": real(8, 6), "y": jnp.arange(8)}))
    assert one != digest(trace(trained(mlp, SGD), started(state["params"], SGD), batch))
    assert digest(trace(lambda a, b: (a * 2, b.sum()), real(4), real(4))) == "9ed0fc5382209afe54c608a62662a8d2"


def test_state_must_come_back() -> None:
    with pytest.raises(PlanError, match="first result should be the next state"):
        trace(lambda state, x: (x, state), {"w": real(4)}, real(4))
    with pytest.raises(PlanError, match=r"\['w'\] enters as float32\[4\] and leaves as bfloat16\[4\]"):
        trace(lambda state, x: ({"w": state["w"].astype(jnp.bfloat16)}, 0.0), {"w": real(4)}, real(4))
