"""From a choice to a bundle: trained to the end with a teacher, quantised with its bits, measured."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax

import converter
import lite_runtime
from cloud.search.cost import floats_of
from cloud.search.data import Data
from cloud.search.goal import ENDS, Classes, Part
from cloud.search.space import Choice
from cloud.search.task import TrainTable
from cloud.train.inputs.augment import Augment, random_affine
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.quantized import quantize_aware
from cloud.train.stepping.optimizers import cosine_schedule, decay_mask
from cloud.train.trainer import Trainer
from cloud.train.variants import Distill
from converter.quantize import Options
from lite_runtime.graph import Array

__all__ = ["Trained", "answers", "augment_for", "figure_of", "finished", "trained"]

_CALIBRATION = 256
_EPOCHS_OF_FOUR = 4
"""Epochs of training on rounded weights, for networks with weights of four bits."""
_ROWS = 64
_SAVE_SECONDS = 20.0


class Trained(NamedTuple):
    """A trained network, and the seconds that its training took; of one that was interrupted, by the part since
    then."""

    model: ir.Model
    seconds: float


def trained(
    model: ir.Model, data: Data, said: TrainTable, folder: Path, *, seed: int, augment: Augment | None,
    teacher: ir.Model | None = None,
) -> Trained:  # fmt: skip
    """Train a network by the recipe of [train]: AdamW whose rate rises for a twentieth of the steps and then falls to
    0 along half a cosine; with a teacher if there is one. Checkpoints are in `folder`, from which an interrupted
    training goes on, and which is deleted at the end."""
    name, goal = str(model.graph.inputs[0].name), data.goal
    x, y = data.train
    distill, w = None, said.weight
    if teacher is not None and w and isinstance(goal, Classes):
        distill = Distill(teacher, said.temperature, w)
    elif teacher is not None and w:  # (1 - w) (a - y)² + w (a - t)² = (a - ((1 - w) y + w t))² + a constant
        taught = answers(converter.convert(teacher.clone()).bundle, x)
        y = np.asarray((1 - w) * y + w * taught, y.dtype)
    steps = said.epochs * -(-len(y) // min(said.batch, len(y)))
    rate = cosine_schedule(said.rate, steps, warmup=max(1, steps // 20))
    moved = None if augment is None else lambda key, inputs: {name: augment(key, {"x": inputs[name]})["x"]}
    trainer = Trainer(
        model, loss=goal.trained_by,
        optimizer=optax.adamw(rate, weight_decay=said.decay, mask=decay_mask), seed=seed, augment=moved, clip=5.0,
        checkpoints=Checkpoints(folder, seconds=_SAVE_SECONDS, keep=1), distill=distill,
    )  # fmt: skip
    if trainer.checkpoints is not None and trainer.checkpoints.there():
        trainer.resume()
    before, begun = trainer.steps_done, time.perf_counter()
    if before < steps:
        trainer.fit(({name: x}, y), said.epochs - trainer.epochs_done, said.batch)
    seconds = (time.perf_counter() - begun) * steps / max(trainer.steps_done - before, 1)
    shutil.rmtree(folder, ignore_errors=True)
    return Trained(trainer.export(), seconds)


def finished(
    model: ir.Model, data: Data, choice: Choice | None, said: TrainTable, seed: int
) -> tuple[ir.Model, dict[str, Any]]:
    """What a trained network is converted from, and the arguments of its conversion: int8, with stages in floats or
    with weights of four bits as the choice has them, which are trained further; None: int8 throughout."""
    name = str(model.graph.inputs[0].name)
    rows = np.linspace(0, len(data.train[1]) - 1, min(_CALIBRATION, len(data.train[1]))).astype(np.intp)
    given = {name: data.train[0][rows]}
    floats = ENDS if choice is None else floats_of(choice)
    if "*" in floats:
        return model, {}
    four = () if choice is None else tuple(f"stage{i}.*" for i, s in enumerate(choice.stages) if s.bits == 4)
    options = Options(mode="int8", keep_float=floats)
    if not four:
        return model, {"quantize": options, "calibration": given}
    run = quantize_aware(
        model, ({name: data.train[0]}, data.train[1]), options=options, weight_bits=4, narrow=four, calibration=given,
        epochs=min(_EPOCHS_OF_FOUR, said.epochs), batch_size=said.batch, rate=said.rate / 10, seed=seed,
        loss=data.goal.trained_by,
    )  # fmt: skip
    return run.model, {}


def figure_of(bundle: bytes, data: Data, part: Part) -> float:
    """The goal's figure of a bundle's first output on a part, by the device runtime."""
    return data.goal.value(answers(bundle, part[0]), part)


def answers(bundle: bytes, x: Array) -> Array:
    """The first output of a bundle for rows of its only input, by the device runtime."""
    model = lite_runtime.load(bundle)
    name, output = model.inputs()[0].name, model.outputs()[0].name
    return np.concatenate([model.run({name: x[i : i + _ROWS]})[output] for i in range(0, len(x), _ROWS)])


# -- augmentation ------------------------------------------------------------------------------------------------------


def augment_for(kind: str, data: Data) -> Augment | None:
    """Changes of training examples that keep their labels: small affine moves of images; of sound and series, moves in
    time, and changes of loudness; noise in a table's columns. Forecasts have none: what follows would change too."""
    if kind == "forecast":
        return None
    if kind == "image":
        return random_affine(shift=1.5, zoom=0.1, shear=0.15, fill=float(data.train[0].min()))
    spread = None if data.columns is None else jnp.asarray(data.columns.spread, jnp.float32)
    axis, most = (2, 4) if kind == "sound" else (3, 8)

    def move(key: jax.Array, inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        first, second, third = jax.random.split(key, 3)
        x = inputs["x"]
        if spread is not None:
            return {**inputs, "x": x + 0.05 * spread * jax.random.normal(third, x.shape)}
        steps = jax.random.randint(first, (len(x),), -most, most + 1)
        moved = jax.vmap(lambda one, by: jnp.roll(one, by, axis - 1))(x, steps)
        gain = 1 + 0.1 * jax.random.normal(second, (len(x), x.shape[1], 1, 1))
        return {**inputs, "x": moved * gain + 0.05 * jax.random.normal(third, x.shape)}

    return move
