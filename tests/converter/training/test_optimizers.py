"""Updates as graph against optax: same parameters after several steps of the same gradients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx_ir as ir
import optax
import pytest

from converter.ir import build
from converter.ir.grad.tape import Tape
from converter.lowering import lower
from converter.training import Training
from converter.training.ends import add_input, add_output
from converter.training.optimizers import LEARNING_RATE, STEP, update
from lite_runtime import reference

SHAPES = {"w": (3, 4), "filters": (2, 3, 1, 1), "b": (4,), "empty": (0, 2)}


def _decayed(rate: float) -> Any:
    return optax.add_decayed_weights(rate, mask=lambda tree: {k: v.ndim >= 2 for k, v in tree.items()})


def _adamw(rate: float, decay: float) -> Any:
    return optax.chain(optax.scale_by_adam(), _decayed(decay), optax.scale(-rate))


CASES = [
    ({"optimizer": "sgd"}, optax.sgd(0.1)),
    ({"optimizer": "sgd", "weight_decay": 0.2}, optax.chain(_decayed(0.2), optax.sgd(0.1))),
    ({"optimizer": "sgd", "clip_norm": 0.5}, optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))),
    ({"optimizer": "sgd", "clip_norm": 1e6}, optax.sgd(0.1)),
    ({"optimizer": "sgd", "clip_value": 0.5}, optax.chain(optax.clip(0.5), optax.sgd(0.1))),
    ({"optimizer": "momentum"}, optax.sgd(0.1, momentum=0.9)),
    ({"optimizer": "momentum", "nesterov": True, "momentum": 0.5}, optax.sgd(0.1, momentum=0.5, nesterov=True)),
    ({"optimizer": "momentum", "weight_decay": 0.1}, optax.chain(_decayed(0.1), optax.sgd(0.1, momentum=0.9))),
    ({"optimizer": "adam"}, optax.adam(0.1)),
    ({"optimizer": "adam", "betas": (0.5, 0.9), "epsilon": 1e-3}, optax.adam(0.1, b1=0.5, b2=0.9, eps=1e-3)),
    ({"optimizer": "adam", "weight_decay": 0.1}, _adamw(0.1, 0.1)),
]


@pytest.mark.parametrize(("settings", "oracle"), CASES, ids=[str(settings) for settings, _ in CASES])
def test_updates_follow_optax(settings: dict[str, Any], oracle: optax.GradientTransformation) -> None:
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 26}), ir_version=10)
    build.adopt(model)
    tape = Tape(model.graph)
    parameters = {name: add_input(tape, name, shape).value for name, shape in SHAPES.items()}
    gradients = {name: add_input(tape, f"grad/{name}", shape).value for name, shape in SHAPES.items()}
    made = update(model, Training("*", learning_rate=0.1, **settings), parameters, gradients)
    for name, value in made.writes.items():
        add_output(tape, value, f"next/{name}")
    graph = lower(model)

    @jax.jit
    def step(grads: Any, slots: Any, params: Any) -> Any:
        updates, slots = oracle.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots

    rng = np.random.default_rng(0)
    start = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    state, wanted, slots = start | made.initial, start, oracle.init(start)
    for _ in range(5):
        grads = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        results = reference.run(graph, {**state, **{f"grad/{name}": g for name, g in grads.items()}})
        state = state | {name.removeprefix("next/"): value for name, value in results.items()}
        wanted, slots = step(grads, slots, wanted)
        for name in SHAPES:
            np.testing.assert_allclose(state[name], wanted[name], rtol=2e-5, atol=2e-6, err_msg=name)
    assert set(made.initial) == set(state) - set(SHAPES) and state[LEARNING_RATE] == np.float32(0.1)
    if settings["optimizer"] == "adam":
        assert state[STEP] == 5 and state[STEP].dtype == np.int64
