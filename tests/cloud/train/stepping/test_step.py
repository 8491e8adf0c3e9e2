"""The pure step: microbatches, clipping, frozen weights, moving means, precisions, recomputing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cloud.errors import TrainError
from cloud.train.stepping.freeze import merge, names, parts, which_frozen
from cloud.train.stepping.losses import LOSSES, METRICS
from cloud.train.stepping.precision import LossScale, first_scale, next_scale
from cloud.train.stepping.step import Objective, StepOptions, TrainState, initial_state, make_step
from cloud.train.tasks import JaxTask, OnnxTask
from tests.cloud.models import tiny_net

RNG = np.random.default_rng(0)
PARAMS = {
    "first": {"w": RNG.normal(size=(4, 8)).astype(np.float32), "b": np.zeros(8, np.float32)},
    "last": {"w": RNG.normal(size=(8, 3)).astype(np.float32)},
}
BATCH: dict[str, Any] = {
    "inputs": {"x": RNG.normal(size=(12, 4)).astype(np.float32)},
    "labels": RNG.integers(0, 3, 12).astype(np.int32),
    "mask": (np.arange(12) < 10).astype(np.float32),
}


def mlp(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["last"]["w"]


def stepped(
    optimizer: optax.GradientTransformation | None = None, *, steps: int = 1, precision: str = "float32",
    batch: Mapping[str, Any] = BATCH, function: Any = mlp, start: Any = None, **options: Any,
) -> tuple[TrainState, dict[str, float]]:  # fmt: skip
    optimizer = optimizer or optax.sgd(0.1)
    objective = Objective(
        JaxTask(function, PARAMS), LOSSES["softmax_cross_entropy"], {"accuracy": METRICS["accuracy"]},
        precision=precision,
    )  # fmt: skip
    chosen = StepOptions(**options)
    state = initial_state(objective, optimizer, chosen) if start is None else start
    step = jax.jit(make_step(objective, optimizer, chosen))
    for _ in range(steps):
        state, sums = step(state, batch)
    return state, {name: float(value) for name, value in sums.items()}


def apart(a: Any, b: Any) -> float:
    return max(float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("accumulate", [2, 3, 12])
def test_microbatches_add_up_to_the_whole_batch(accumulate: int) -> None:
    """With rows that do not count in some of them, so that means of means would be wrong."""
    whole, sums = stepped()
    state, parts_sums = stepped(accumulate=accumulate)
    assert apart(whole.params, state.params) < 1e-6
    assert parts_sums == pytest.approx(sums, rel=1e-6)
    assert sums["examples"] == 10


def test_microbatches_each_draw_their_own_numbers_and_move_the_state_in_turn() -> None:
    def drawing(params: Any, state: Any, x: Any, *, rng: Any) -> Any:
        return mlp(params, x), {"now": jax.random.uniform(rng), "before": state["now"]}

    zeros = {"now": np.zeros((), np.float32), "before": np.zeros((), np.float32)}
    objective = Objective(JaxTask(drawing, PARAMS, zeros), LOSSES["softmax_cross_entropy"])
    options = StepOptions(accumulate=2)
    before = initial_state(objective, optax.sgd(0.1), options)
    after, _ = jax.jit(make_step(objective, optax.sgd(0.1), options))(before, BATCH)
    assert 0 != float(after.state["now"]) != float(after.state["before"]) != 0


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(TrainError, match="12 rows cannot be computed in 5 microbatches"):
        stepped(accumulate=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, "at least 1 microbatch, got 0"),
        ({"clip": 0.0}, "norm above 0 to clip gradients to, got 0"),
        ({"average": 1.0}, "between 0 and 1 for the moving average of weights, got 1"),
        ({"recompute": 2.0}, "a share from 0 to 1"),
        ({"freeze": ("first/*", "inner/*")}, r"\['inner/\*'\], which match none of \['first/b', 'first/w', 'last/w'\]"),
        ({"freeze": ("*",)}, "leaves nothing to train"),
        ({"precision": "int8"}, "a precision of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainError, match=message):
        stepped(**options)


def test_clipping_scales_the_whole_gradient_to_its_norm() -> None:
    def moved(clip: float | None) -> Any:
        return jax.tree.map(lambda new, old: new - old, stepped(optax.sgd(1.0), clip=clip)[0].params, PARAMS)

    free = optax.tree.norm(moved(None))
    assert float(optax.tree.norm(moved(0.01))) == pytest.approx(0.01, rel=1e-3)
    assert apart(moved(float(free) * 2), moved(None)) == 0


def test_frozen_weights_stay_and_have_no_slots() -> None:
    state, _ = stepped(optax.adam(0.1), freeze=("first/*",), steps=3)
    assert apart(state.params["first"], PARAMS["first"]) == 0
    assert apart(state.params["last"], PARAMS["last"]) > 0.1
    slots = [leaf.shape for leaf in jax.tree.leaves(state.slots) if leaf.ndim]
    assert slots == [(8, 3), (8, 3)]


def test_splitting_and_joining_the_state() -> None:
    frozen = which_frozen(PARAMS, ("*/b", "last/*"))
    trained, kept = parts(PARAMS, frozen)
    assert names(trained) == ["first/w"]
    assert names(kept) == ["first/b", "last/w"]
    assert apart(merge(trained, kept), PARAMS) == 0


def test_the_moving_mean_of_weights() -> None:
    """Against the definition, step by step."""
    mean = PARAMS
    state = None
    for n in range(4):
        state, _ = stepped(start=state, average=0.3)
        share = min(0.3, (1 + n) / (10 + n))
        mean = jax.tree.map(lambda m, p, share=share: share * m + (1 - share) * p, mean, state.params)
    assert state is not None
    assert apart(state.average, mean) < 1e-6


def test_recomputing_changes_no_number() -> None:
    (kept, _), (again, _) = stepped(steps=2), stepped(steps=2, recompute=1.0)
    assert apart(kept.params, again.params) < 1e-6


@pytest.mark.parametrize(("precision", "error"), [("bfloat16", 3e-2), ("float16", 4e-3)])
def test_low_precision_steps_stay_close_and_keep_float32_weights(precision: str, error: float) -> None:
    wide, sums = stepped(steps=3)
    state, narrow = stepped(steps=3, precision=precision)
    assert 0 < apart(wide.params, state.params) < error
    assert narrow["loss"] == pytest.approx(sums["loss"], rel=error)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}


def test_narrow_models_multiply_narrow_matrices() -> None:
    """And normalise in float32: the operators themselves, not only weights at the border."""
    objective = Objective(OnnxTask(tiny_net()), LOSSES["softmax_cross_entropy"], precision="bfloat16")
    state = initial_state(objective, optax.sgd(0.1), StepOptions())
    batch = {**BATCH, "inputs": {"x": RNG.normal(size=(12, 1, 8, 8)).astype(np.float32)}}
    equations = jax.make_jaxpr(make_step(objective, optax.sgd(0.1), StepOptions()))(state, batch).eqns
    types = {
        eqn.primitive.name: {str(v.aval.dtype) for v in eqn.invars}
        for eqn in equations if eqn.primitive.name in ("conv_general_dilated", "dot_general", "rsqrt")
    }  # fmt: skip
    assert types == {"conv_general_dilated": {"bfloat16"}, "dot_general": {"bfloat16"}, "rsqrt": {"float32"}}


def test_a_float16_step_that_overflows_is_left_out() -> None:
    """Hidden values of 1e5 do not fit into float16."""
    huge = {**BATCH, "inputs": {"x": BATCH["inputs"]["x"] * 1e4}}
    before, _ = stepped(optax.adam(0.1), precision="float16")
    after, sums = stepped(optax.adam(0.1), precision="float16", start=before, batch=huge)
    assert sums == {"examples": 0, "loss": 0, "metric accuracy": 0, "skipped": 1}
    assert apart((before.params, before.slots), (after.params, after.slots)) == 0
    assert before.scale is not None
    assert after.scale is not None
    assert (float(before.scale.value), float(after.scale.value)) == (2**15, 2**14)
    assert (int(before.step), int(after.step)) == (1, 2)
    last = TrainState(**{**vars(after), "scale": LossScale(jnp.ones(()), jnp.zeros((), jnp.int32))})
    _, hopeless = stepped(optax.adam(0.1), precision="float16", start=last, batch=huge)
    assert np.isnan(hopeless["loss"])
    assert hopeless["skipped"] == 0


def test_the_loss_scale_grows_after_good_steps() -> None:
    scale = first_scale()
    grown = next_scale(LossScale(scale.value, jnp.asarray(1999)), jnp.asarray(True))
    assert (float(grown.value), int(grown.good)) == (2**16, 0)
    kept = next_scale(LossScale(scale.value, jnp.asarray(5)), jnp.asarray(True))
    assert (float(kept.value), int(kept.good)) == (2**15, 6)
    most = next_scale(LossScale(jnp.asarray(2.0**24), jnp.asarray(1999)), jnp.asarray(True))
    assert float(most.value) == 2**24
