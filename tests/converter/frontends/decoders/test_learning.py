"""Language models that learn: losses and parameters follow JAX, the loss is that of the graph that serves, and what is
learned is an adapter of this graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lite_runtime
from converter import convert
from converter.errors import ConvertError, TrainingError
from converter.training import Lora, Training
from lite_runtime.graph import Array
from lite_runtime.language import Adapter
from lite_runtime.language.engine import Engine, Part
from lite_runtime.running.session import Model
from tests.converter.frontends.decoders import gguf_bytes
from tests.converter.frontends.decoders.checkpoints import CASES, config, folder, tensors
from tests.converter.frontends.decoders.test_conversion import (
    HEADS,
    MIXES,
    NUMBERS,
    VOCABULARY,
    matrices,
    metadata,
    stored,
)

ADAPTED = Lora(3, alpha=6.0, targets=("query", "value", "layer.1.down"), seed=4)
PLACES = {"query": "attn_q", "value": "attn_v", "down": "ffn_down"}


def texts(batch: int, length: int, vocabulary: int, seed: int = 0) -> dict[str, Array]:
    """Tokens and what follows each; of the last text, the second half does not count."""
    found = np.random.default_rng(seed).integers(0, vocabulary, (batch, length + 1))
    labels = found[:, 1:].astype(np.int64)
    labels[-1, length // 2 :] = -1
    return {"input_ids": found[:, :-1].astype(np.int32), "labels": labels}


def losses_by_jax(held: dict[str, Array], state: dict[str, Array], data: dict[str, Array], steps: int) -> list[float]:
    """Losses before each of some steps of Adam, of a model of the llama family with adapters, in float32."""
    ids, labels = jnp.asarray(data["input_ids"]), jnp.asarray(data["labels"])
    layers, kv = int(NUMBERS["layers"]), int(NUMBERS["kv_heads"])
    angles = np.arange(ids.shape[1])[:, None] * NUMBERS["base"] ** (-np.arange(0, 64, 2) / 64)
    cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))

    def norm(x: Any, name: str) -> Any:
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + NUMBERS["epsilon"]) * held[f"{name}.weight"]

    def turned(x: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

    def loss(params: Any) -> Any:
        def product(x: Any, i: int, part: str) -> Any:
            y = x @ held[f"blk.{i}.{part}.weight"].T
            role = next((role for role, place in PLACES.items() if place == part), None)
            name = f"layer.{i}.{role}.lora_"
            return y + 2.0 * (x @ params[f"{name}a"]) @ params[f"{name}b"] if f"{name}a" in params else y

        x = held["token_embd.weight"][ids]
        for i in range(layers):
            n = norm(x, f"blk.{i}.attn_norm")
            q, k, v = (product(n, i, f"attn_{p}").reshape(*ids.shape, -1, 64) for p in "qkv")
            q, k = turned(q), jnp.repeat(turned(k), HEADS // kv, 2)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
            scores = jnp.where(np.tri(ids.shape[1], dtype=bool), scores, -jnp.inf)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), jnp.repeat(v, HEADS // kv, 2))
            x = x + product(mixed.reshape(*ids.shape, -1), i, "attn_output")
            n = norm(x, f"blk.{i}.ffn_norm")
            x = x + product(jax.nn.silu(product(n, i, "ffn_gate")) * product(n, i, "ffn_up"), i, "ffn_down")
        chances = jax.nn.log_softmax(norm(x, "output_norm") @ held["token_embd.weight"].T)
        picked = jnp.take_along_axis(chances, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
        return -jnp.where(labels >= 0, picked, 0).sum() / (labels >= 0).sum()

    params = {name: jnp.asarray(value) for name, value in state.items() if ".lora_" in name and "/" not in name}
    adam = optax.adam(1e-2)
    slots, found = adam.init(params), []
    step = jax.jit(jax.value_and_grad(loss))
    for _ in range(steps):
        value, gradients = step(params)
        found.append(float(value))
        updates, slots = adam.update(gradients, slots)
        params = optax.apply_updates(params, updates)
    return found


def learning(data: bytes | Path, lora: Lora = ADAPTED, **settings: Any) -> Model:
    training = Training(adapters=lora, optimizer="adam", learning_rate=1e-2)
    made = convert(data, trainable=training, **settings)
    assert not {*made.report.reference_ops} - {"Shape", "Range"}, made.report.reference_ops
    return lite_runtime.load(made.bundle)


@pytest.mark.parametrize("mix", ["of 4 bits", "all"])
def test_losses_follow_jax(mix: str) -> None:
    data = gguf_bytes.file(metadata(), stored(MIXES[mix]))
    batch = texts(2, 24, VOCABULARY)
    for activations, far in (("float32", 2e-4), ("int8", 0.03)):
        model = learning(data, activations=activations)
        wanted = losses_by_jax(matrices(data), model.state_dict(), batch, 12)
        found = [float(model.run(batch, "train_step")["loss"]) for _ in wanted]
        assert wanted[-1] < 0.8 * wanted[0]
        np.testing.assert_allclose(found, wanted, rtol=far)


@pytest.mark.parametrize("case", CASES)
def test_every_family_learns_from_the_loss_of_the_graph_that_serves(case: str, tmp_path: Path) -> None:
    settings = config(case)
    held = tensors(settings)
    path = folder(tmp_path / "model", settings, held)
    model = learning(path, Lora(2, targets=("*",)), activations="float32")
    batch = texts(1, 30, settings["vocab_size"])
    batch["labels"] = np.abs(batch["labels"])
    engine = Engine(model, 64)
    (logits,) = engine.run([Part(engine.start(), batch["input_ids"][0].tolist(), 30)])
    shifted = logits - logits.max(-1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    wanted = -chances[np.arange(30), batch["labels"][0]].mean()
    found = model.run(batch, "evaluate")
    assert abs(found["loss"] - wanted) < 2e-3 * wanted
    assert found["examples"] == 30 and found["correct"] == (logits.argmax(-1) == batch["labels"][0]).sum()
    check_slope(model, batch)
    losses = [float(model.run(batch, "train_step")["loss"]) for _ in range(8)]
    assert losses[-1] < losses[0]


def check_slope(model: Model, batch: dict[str, Array]) -> None:
    """Gradients are the loss's change along a random direction."""
    rng = np.random.default_rng(5)
    names = [name for name in model.state_dict() if ".lora_" in name and "/" not in name]
    first = {name: value.copy() for name, value in model.state_dict().items()}
    start = {n: first[n] + (0.05 * rng.standard_normal(first[n].shape)).astype(np.float32) for n in names}
    model.load_state_dict(start, strict=False)
    given = model.run(batch, "gradients")
    gradients = {n: given[f"grad/{n}"] for n in names}
    size = np.float32(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values())))
    along = {n: gradients[n] / size for n in names}
    slope = sum((gradients[n].astype(np.float64) * along[n]).sum() for n in names)
    ends = []
    for sign in (1, -1):
        model.load_state_dict({n: start[n] + np.float32(sign * 0.02) * along[n] for n in names}, strict=False)
        ends.append(float(model.run(batch, "evaluate")["loss"]))
    assert abs((ends[0] - ends[1]) / 0.04 - slope) < 0.03 * slope
    model.load_state_dict(first)


def test_what_was_learned_is_an_adapter() -> None:
    model = learning(gguf_bytes.file(metadata(), stored(MIXES["of 4 bits"])), activations="float32")
    assert set(model.signatures) == {"predict", "adapted", "train_step", "evaluate", "gradients"}
    batch = texts(1, 24, VOCABULARY)
    for _ in range(5):
        model.run(batch, "train_step")
    batch["labels"] = np.abs(batch["labels"])
    learned = {name: value for name, value in model.state_dict().items() if ".lora_" in name and "/" not in name}
    engine = Engine(model, 64)
    slot = engine.attach(Adapter(learned, model.bundle.digest))
    (logits,) = engine.run([Part(engine.start(slot), batch["input_ids"][0].tolist(), 24)])
    shifted = logits - logits.max(-1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    wanted = -chances[np.arange(24), batch["labels"][0]].mean()
    assert abs(model.run(batch, "evaluate")["loss"] - wanted) < 2e-3 * wanted


def test_recomputation_does_not_change_a_bit() -> None:
    data, batch = gguf_bytes.file(metadata(), stored(MIXES["all"])), texts(2, 24, VOCABULARY)
    found = []
    for budget in (None, 1):
        training = Training(adapters=ADAPTED, learning_rate=1e-2, arena_budget=budget, arena_batch=24)
        made = convert(data, trainable=training)
        model = lite_runtime.load(made.bundle)
        losses = [float(model.run(batch, "train_step")["loss"]) for _ in range(3)]
        found.append((losses, model.cost(batch, "train_step").arena_bytes))
    assert found[0][0] == found[1][0]
    assert found[1][1] < 0.8 * found[0][1]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (Training("*"), "only adapters can be trained"),
        (Training("*", adapters=Lora()), "only adapters can be trained"),
        (Training(adapters=Lora(), loss="mse"), "loss: a language model learns"),
        (Training(adapters=Lora(), signatures=("train_step", "curvature")), "curvature is not made"),
        (Training(adapters=Lora(targets=("head",))), "no product matches 'head'"),
    ],
)
def test_what_cannot_be_trained_is_refused(training: Training, words: str) -> None:
    with pytest.raises((TrainingError, ConvertError), match=words):
        convert(gguf_bytes.file(metadata(), stored(MIXES["dense"])), trainable=training)
