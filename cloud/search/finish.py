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

import lite_runtime
from cloud.search.cost import floats_of
from cloud.search.space import Choice
from cloud.search.task import Data, TrainTable
from cloud.train.inputs.augment import Augment, random_affine
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.quantized import quantize_aware
from cloud.train.stepping.optimizers import cosine_schedule, decay_mask
from cloud.train.trainer import Trainer
from cloud.train.variants import Distill
from converter.quantize import Options
from lite_runtime.graph import Array

__all__ = ["Trained", "accuracy_of", "augment_for", "finished", "trained"]

_CALIBRATION = 256
_EPOCHS_OF_FOUR = 4
"""Epochs of training on rounded weights, for networks with weights of four bits."""
_ROWS = 64
_SAVE_SECONDS = 20.0


class Trained(NamedTuple):
    """A trained network, its accuracy on the validation part in floats, and the seconds that its training took; of one
    that was interrupted, by the part since then."""

    model: ir.Model
    accuracy: float
    seconds: float


def trained(
    model: ir.Model, data: Data, said: TrainTable, folder: Path, *, seed: int, augment: Augment | None,
    teacher: ir.Model | None = None,
) -> Trained:  # fmt: skip
    """Train a network by the recipe of [train]: AdamW whose rate rises for a twentieth of the steps and then falls to
    0 along half a cosine; with a teacher if there is one. Checkpoints are in `folder`, from which an interrupted
    training goes on, and which is deleted at the end."""
    name = str(model.graph.inputs[0].name)
    x, y = data.train
    steps = said.epochs * -(-len(y) // min(said.batch, len(y)))
    rate = cosine_schedule(said.rate, steps, warmup=max(1, steps // 20))
    moved = None if augment is None else lambda key, inputs: {name: augment(key, {"x": inputs[name]})["x"]}
    trainer = Trainer(
        model, optimizer=optax.adamw(rate, weight_decay=said.decay, mask=decay_mask), seed=seed, augment=moved,
        metrics=("accuracy",), clip=5.0, checkpoints=Checkpoints(folder, seconds=_SAVE_SECONDS, keep=1),
        distill=Distill(teacher, said.temperature, said.weight) if teacher is not None and said.weight else None,
    )  # fmt: skip
    if trainer.checkpoints is not None and trainer.checkpoints.there():
        trainer.resume()
    before, begun = trainer.steps_done, time.perf_counter()
    if before < steps:
        trainer.fit(({name: x}, y), said.epochs - trainer.epochs_done, said.batch)
    seconds = (time.perf_counter() - begun) * steps / max(trainer.steps_done - before, 1)
    shutil.rmtree(folder, ignore_errors=True)
    found = trainer.evaluate(({name: data.validation[0]}, data.validation[1]))
    return Trained(trainer.export(), float(found.metrics["accuracy"]), seconds)


def finished(
    model: ir.Model, data: Data, choice: Choice | None, said: TrainTable, seed: int
) -> tuple[ir.Model, dict[str, Any]]:
    """What a trained network is converted from, and the arguments of its conversion: int8, with stages in floats or
    with weights of four bits as the choice has them, which are trained further; None: int8 throughout."""
    name = str(model.graph.inputs[0].name)
    rows = np.linspace(0, len(data.train[1]) - 1, min(_CALIBRATION, len(data.train[1]))).astype(np.intp)
    given = {name: data.train[0][rows]}
    floats = () if choice is None else floats_of(choice)
    if "*" in floats:
        return model, {}
    four = () if choice is None else tuple(f"stage{i}.*" for i, s in enumerate(choice.stages) if s.bits == 4)
    options = Options(mode="int8", keep_float=floats)
    if not four:
        return model, {"quantize": options, "calibration": given}
    run = quantize_aware(
        model, ({name: data.train[0]}, data.train[1]), options=options, weight_bits=4, narrow=four, calibration=given,
        epochs=min(_EPOCHS_OF_FOUR, said.epochs), batch_size=said.batch, rate=said.rate / 10, seed=seed,
    )  # fmt: skip
    return run.model, {}


def accuracy_of(bundle: bytes, part: tuple[Array, Array]) -> float:
    """The share of a part that the bundle's first output answers correctly, by the device runtime."""
    model = lite_runtime.load(bundle)
    name, output = model.inputs()[0].name, model.outputs()[0].name
    x, y = part
    right = 0
    for i in range(0, len(y), _ROWS):
        right += int((model.run({name: x[i : i + _ROWS]})[output].argmax(-1) == y[i : i + _ROWS]).sum())
    return right / len(y)


# -- augmentation ------------------------------------------------------------------------------------------------------


def augment_for(kind: str, data: Data) -> Augment:
    """Changes of training examples that keep their class: small affine moves of images; of sound and series, moves in
    time, and changes of loudness."""
    if kind == "image":
        return random_affine(shift=1.5, zoom=0.1, shear=0.15, fill=float(data.train[0].min()))
    axis, most = (2, 4) if kind == "sound" else (3, 8)

    def move(key: jax.Array, inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        first, second, third = jax.random.split(key, 3)
        x = inputs["x"]
        steps = jax.random.randint(first, (len(x),), -most, most + 1)
        moved = jax.vmap(lambda one, by: jnp.roll(one, by, axis - 1))(x, steps)
        gain = 1 + 0.1 * jax.random.normal(second, (len(x), x.shape[1], 1, 1))
        return {**inputs, "x": moved * gain + 0.05 * jax.random.normal(third, x.shape)}

    return move
