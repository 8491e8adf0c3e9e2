"""A model in stages trains like the whole model, and its communication is as predicted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cloud.errors import PlanError
from cloud.parallel.checking.hlo import read_program
from cloud.parallel.plan import Mesh
from cloud.parallel.staged.pipeline import Pipelined
from cloud.parallel.staged.staging import choose_stages
from cloud.parallel.topology import Device, Level, Topology
from cloud.train.stepping.step import StepOptions, TrainState
from tests.cloud.parallel import small_gpt as gpt

STEPS, ROWS = 20, 16


def state(params: Any, optimizer: Any, **more: Any) -> TrainState:
    return TrainState(params, {}, optimizer.init(params), jnp.zeros((), jnp.int32), **more)


def alone(loss_sums: Any, params: Any, optimizer: Any, batches: list[Any], clip: float | None = None) -> Any:
    """Losses and parameters after each step of the same training on one device."""

    @jax.jit
    def step(params: Any, slots: Any, batch: Any) -> Any:
        def mean(params: Any) -> Any:
            sums, _ = loss_sums(params, {}, batch, jax.random.key(0))
            return sums["loss"] / sums["examples"]

        loss, gradient = jax.value_and_grad(mean)(params)
        if clip is not None:
            gradient, _ = optax.clip_by_global_norm(clip).update(gradient, optax.EmptyState())
        updates, slots = optimizer.update(gradient, slots, params)
        return optax.apply_updates(params, updates), slots, loss

    slots, losses, history = optimizer.init(params), [], []
    for batch in batches:
        params, slots, loss = step(params, slots, batch)
        losses.append(float(loss))
        history.append(params)
    return losses, history


def trained(pipeline: Pipelined, start: TrainState, batches: list[Any], step: Any = None) -> Any:
    """Losses, and the state in the end; by `step`, or by the pipeline-parallel step."""
    placed, losses = pipeline.place(start), []
    for batch in batches:
        placed, sums = (step or pipeline.step)(placed, pipeline.place_batch(batch))
        losses.append(float(sums["loss"] / sums["examples"]))
    return losses, pipeline.gather(placed)


def same(one: Any, other: Any, close: float) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=close)


@cache
def whole(blocks: int) -> Any:
    """Losses and parameters of the transformer on one device."""
    return alone(gpt.loss_sums, gpt.params(blocks), optax.adam(1e-3), gpt.batches(STEPS, ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "replicas", "schedule"), [(4, 2, "paired"), (8, 1, "1f1b")])
def test_a_transformer_in_stages_trains_as_it_does_whole(stages: int, replicas: int, schedule: str) -> None:
    batches, optimizer = gpt.batches(STEPS, ROWS), optax.adam(1e-3)
    start = state(gpt.params(8), optimizer)
    pipeline = Pipelined(
        gpt.loss_sums, optimizer, StepOptions(), start, batches[0],
        stages=stages, replicas=replicas, microbatches=4, schedule=schedule,
    )  # fmt: skip
    step = pipeline.lower().compile()
    losses, after = trained(pipeline, start, batches, step)
    expected, history = whole(8)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    same(after.params, history[-1], 1e-3 * STEPS / 50)  # a part of what Adam moves them by: rounding turns small signs
    assert int(after.step) == STEPS
    assert len(set(pipeline.programs.kinds)) < stages  # stages of equal blocks are compiled once
    mesh = Mesh((stages, replicas), (0, 0))
    assert _bytes(read_program(step.as_text(), mesh).collectives) == _bytes(pipeline.collectives)


EAGER = Topology("eager", (Level(8, 1e-7, 1e10),), 1e9, Device({"float32": 1e8}, 1e9, 0.0))
"""Links that cost little compared with computing, so that even small stages are worth sharing."""


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "replicas", "schedule"), [(2, 2, "paired"), (4, 1, "1f1b")])
def test_stages_of_two_devices_train_as_one_does(stages: int, replicas: int, schedule: str) -> None:
    batches, optimizer, params = gpt.batches(STEPS, ROWS), optax.adam(1e-3), gpt.params(4)
    start = state(params, optimizer)
    pipeline = Pipelined(
        gpt.loss_sums, optimizer, StepOptions(), start, batches[0], stages=stages, replicas=replicas, tensor=2,
        microbatches=4, schedule=schedule, topology=EAGER,
    )  # fmt: skip
    assert pipeline.shared is not None and set(pipeline.shared.dims.values()) == {None, 0, 1}  # all kinds of split
    step = pipeline.lower().compile()
    mesh = Mesh((stages, replicas, 2), (0, 0, 0))
    assert _bytes(read_program(step.as_text(), mesh).collectives) == _bytes(pipeline.collectives)
    losses, after = trained(pipeline, start, batches, step)
    expected, history = whole(4)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    same(after.params, history[-1], 1e-3 * STEPS / 50)


def _bytes(collectives: Any) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for one in collectives:
        total[one.kind, one.axes] += one.bytes * one.times
    return dict(total)


def layers(count: int = 4) -> list[Any]:
    keys = jax.random.split(jax.random.key(1), count)
    return [{"w": jax.random.normal(key, (6, 6)) * 0.5, "b": jnp.zeros(6)} for key in keys]


def mlp(params: Any, state: Any, batch: Any, key: Any) -> tuple[dict[str, Any], Any]:
    x = first = batch["x"]
    for number, layer in enumerate(params):
        x = jnp.tanh(x @ layer["w"] + layer["b"])
        first = x if number == 0 else first
    return {"examples": jnp.float32(len(x)), "first": first.sum(), "loss": jnp.sum((x + first - 1) ** 2)}, state


def rows(count: int, size: int = 8) -> list[Any]:
    return [{"x": np.random.default_rng(k).normal(size=(size, 6)).astype(np.float32)} for k in range(count)]


@pytest.fixture(scope="module")
def two() -> list[Any]:
    return jax.devices()[:2]


@pytest.mark.parametrize("tensor", [1, 2])
def test_clipping_freezing_means_and_what_skips_a_stage(tensor: int) -> None:
    """`first` leaves the first stage as a sum and passes through the second to the loss."""
    params, batches, optimizer = layers(), rows(4), optax.adam(1e-2)
    masked = [{"w": layer["w"], "b": None if n == 0 else layer["b"]} for n, layer in enumerate(params)]
    start = TrainState(params, {}, optimizer.init(masked), jnp.zeros((), jnp.int32), average=masked)
    options = StepOptions(clip=0.1, freeze=["0/b"], average=0.5)
    pipeline = Pipelined(
        mlp, optimizer, options, start, batches[0], stages=2, microbatches=2, tensor=tensor, topology=EAGER,
        devices=jax.devices()[: 2 * tensor],
    )  # fmt: skip
    assert tensor == 1 or any("|" in key for key in pipeline.holdings.trained_sizes)
    same(pipeline.gather(pipeline.place(start)), start, 0)
    losses, after = trained(pipeline, start, batches)

    def frozen(params: Any, *rest: Any) -> Any:
        return mlp([{**params[0], "b": jax.lax.stop_gradient(params[0]["b"])}, *params[1:]], *rest)

    expected, history = alone(frozen, params, optimizer, batches, clip=0.1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    same(after.params, history[-1], 1e-5)
    mean = params
    for step, now in enumerate(history):  # as `make_step` averages
        share = min(0.5, (1 + step) / (10 + step))
        mean = jax.tree.map(lambda m, n, share=share: share * m + (1 - share) * n, mean, now)
    mean[0]["b"] = None
    same(after.average, mean, 1e-5)
    found = read_program(pipeline.lower().compile().as_text(), Mesh((2, 1, tensor), (0, 0, 0)))
    assert _bytes(found.collectives) == _bytes(pipeline.collectives)


@jax.custom_vjp
def bent(x: Any) -> Any:
    return jnp.sin(x)


bent.defvjp(lambda x: (jnp.sin(x), x), lambda x, slope: (slope * jnp.cos(x),))


@pytest.mark.parametrize("tensor", [1, 2])
def test_loops_recomputation_and_custom_gradients_inside_stages(tensor: int) -> None:
    """Each stage scans over two layers; a loop is one operator of its stage."""

    def loss_sums(params: Any, state: Any, batch: Any, key: Any) -> Any:
        x = batch["x"]
        for part in params:
            x, _ = jax.lax.scan(lambda x, w: (jax.checkpoint(lambda x: bent(x @ w))(x), None), x, part)
        return {"examples": jnp.float32(len(x)), "loss": jnp.sum(x**2)}, state

    keys = jax.random.split(jax.random.key(2), 4)
    params, optimizer = [jax.random.normal(key, (2, 8, 8)) * 0.3 for key in keys[:2]], optax.sgd(0.05)
    batches = [{"x": jax.random.normal(key, (8, 8))} for key in keys[2:]]
    start = state(params, optimizer)
    pipeline = Pipelined(
        loss_sums, optimizer, StepOptions(), start, batches[0], stages=(1,), tensor=tensor, microbatches=2,
        devices=jax.devices()[: 2 * tensor], topology=EAGER,
    )  # fmt: skip
    losses, after = trained(pipeline, start, batches)
    expected, history = alone(loss_sums, params, optimizer, batches)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    same(after.params, history[-1], 1e-5)


@pytest.mark.parametrize(
    ("size", "stages", "text"),
    [(9, 2, "multiple of 4 rows"), (8, 3, "take 3 devices, got 2"), (8, 50, "too few for 50 stages")],
)
def test_what_does_not_divide_says_so(two: list[Any], size: int, stages: int, text: str) -> None:
    start = state(layers(), optax.sgd(0.1))
    with pytest.raises(PlanError, match=text):
        Pipelined(mlp, optax.sgd(0.1), StepOptions(), start, rows(1, size)[0],
                  stages=stages, microbatches=4, devices=two)  # fmt: skip


@pytest.mark.parametrize("options", [StepOptions(accumulate=2), StepOptions(recompute=0.5)])
def test_options_that_a_pipeline_has_by_itself_are_refused(two: list[Any], options: StepOptions) -> None:
    start = state(layers(), optax.sgd(0.1))
    with pytest.raises(PlanError, match="take the place of accumulate"):
        Pipelined(mlp, optax.sgd(0.1), options, start, rows(1)[0], stages=2, microbatches=2, devices=two)


def test_an_optimiser_that_looks_across_stages_is_refused(two: list[Any]) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    with pytest.raises(PlanError, match="give the Trainer `clip`"):
        Pipelined(mlp, optimizer, StepOptions(), state(layers(), optimizer), rows(1)[0],
                  stages=2, microbatches=2, devices=two)  # fmt: skip


def test_a_model_whose_rows_meet_is_refused(two: list[Any]) -> None:
    def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
        sums, _ = mlp(params, state, batch, key)
        return sums, {"mean": 0.9 * state["mean"] + 0.1 * batch["x"].mean(0)}

    start = TrainState(layers(), {"mean": jnp.zeros(6)}, (), jnp.zeros((), jnp.int32))
    with pytest.raises(PlanError, match="rows are not independent"):
        Pipelined(loss, optax.sgd(0.1), StepOptions(), start, rows(1)[0], stages=2, microbatches=2, devices=two)


def test_the_quickest_stages_fit_the_memory_given() -> None:
    start, batch = state(layers(8), optax.adam(1e-3)), rows(1, 64)[0]
    topology = Topology("two", (Level(2, 1e-6, 1e9),), 1e6, Device({"float32": 1e9}, 1e9, 0.0))
    loose = choose_stages(mlp, start, batch, topology)
    assert loose is not None and loose.estimate.peak_bytes < 1e6
    assert (len(loose.stages), loose.replicas) == (1, 1)
    tight = choose_stages(mlp, start, batch, topology, memory=0.9 * loose.estimate.peak_bytes)
    assert tight is not None and tight.estimate.peak_bytes <= 0.9 * loose.estimate.peak_bytes
    assert choose_stages(mlp, start, batch, topology, memory=100.0) is None
    pipeline = Pipelined(mlp, optax.adam(1e-3), StepOptions(), start, batch, devices=jax.devices()[:2], **loose.options)
    assert [stage.segment.start for stage in pipeline.programs.stages] == [0, *loose.stages]


_PROCESS = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import optax
from cloud.parallel.staged.pipeline import Pipelined
from cloud.train.stepping.step import StepOptions
from tests.cloud.parallel import small_gpt as gpt
from tests.cloud.parallel.test_pipeline import ROWS, STEPS, state, trained
optimizer, batches = optax.adam(1e-3), gpt.batches(STEPS, ROWS)
start = state(gpt.params(4), optimizer)
pipeline = Pipelined(
    gpt.loss_sums, optimizer, StepOptions(), start, batches[0], stages=4, replicas=2, microbatches=4
)
Path(sys.argv[3]).write_text(" ".join(map(str, trained(pipeline, start, batches)[0])))
"""


@pytest.mark.slow
def test_a_transformers_stages_in_two_processes(tmp_path: Path) -> None:
    """Two stages in each, on four devices. Losses go to files: Gloo prints to standard output when it likes, in the
    middle of lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    root = Path(__file__).parents[3]
    flags = " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag)
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    files = [tmp_path / str(number) for number in range(2)]
    started = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, address, str(number), str(file)], cwd=root, env=environment)
        for number, file in enumerate(files)
    ]
    try:
        assert [process.wait(timeout=300) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for file in files:
        losses = [float(word) for word in file.read_text().split()]
        np.testing.assert_allclose(losses, whole(4)[0], rtol=0, atol=1e-5)
