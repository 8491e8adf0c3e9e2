"""Adapters, a teacher and pruning: what is trained, what is exported, resumed to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax
import pytest
from sklearn.datasets import load_digits

import lite_runtime
from cloud.errors import TrainError
from cloud.train import GradualUnfreezing, JaxTask, Plateau, Trainer
from cloud.train.jobs.config import parse
from cloud.train.jobs.job import exported, job_of
from cloud.train.stepping.losses import LOSSES
from cloud.train.variants import Adversarial, Distill, Lora, Prune
from cloud.train.variants.distill import Taught, distilled
from cloud.train.variants.prune import Pruned, density
from cloud.zoo import mlp, resnet8
from converter import convert
from converter.training import Lora as DeviceLora
from converter.training import Training
from tests.cloud.models import run_onnx, tiny_net

DIGITS = load_digits()
X = (DIGITS.data / 16).astype(np.float32)[:600]
Y = DIGITS.target.astype(np.int32)[:600]
IMAGES = X.reshape(-1, 1, 8, 8)


def dense(seed: int = 0) -> ir.Model:
    return mlp(64, 10, (24, 16), seed=seed)


def arrays(tree: Any) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(p): np.asarray(a) for p, a in jax.tree_util.tree_leaves_with_path(tree)}


VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"lora": Lora(rank=3, alpha=6, targets=("layer*",), also=("head*",))},
    "distill": {"distill": Distill(dense(7), hints={"relu_1": "relu_0"})},
    "prune": {"prune": Prune(0.7, end=10, every=2), "average": 0.9},
    "adversarial": {"adversarial": Adversarial(0.1, steps=2)},
    "structured": {"prune": Prune(0.5, end=10, begin=2, every=4, structured=True), "optimizer": optax.sgd(0.1, 0.9)},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_resumed_run_has_the_same_bits_and_is_exported(name: str, tmp_path: Path) -> None:
    whole = Trainer(dense(), **VARIANTS[name])
    whole.fit((X, Y), steps=16, batch_size=64)
    straight = arrays(whole.whole_state())
    Trainer(dense(), checkpoints=tmp_path, **VARIANTS[name]).fit((X, Y), steps=7, batch_size=64)
    second = Trainer(dense(), checkpoints=tmp_path, **VARIANTS[name])
    second.resume()
    assert second.steps_done == 7
    second.fit((X, Y), steps=9, batch_size=64)
    resumed = arrays(second.whole_state())
    assert straight.keys() == resumed.keys()
    for key, array in straight.items():
        np.testing.assert_array_equal(array, resumed[key], key)
    np.testing.assert_allclose(run_onnx(second.export(), x=X[:50])[0], second.predict(X[:50]), atol=2e-5)


def test_adapters_alone_are_trained() -> None:
    model = dense()
    trainer = Trainer(model, **VARIANTS["lora"])
    before = {name: np.asarray(array).copy() for name, array in trainer.params.items()}
    trainer.fit((X, Y), steps=5, batch_size=64)
    moved = {name for name, array in trainer.params.items() if not np.array_equal(array, before[name])}
    assert moved == {"head.weight", "head.bias", *trainer.adapters()}
    a, b = (trainer.adapters()[f"layer0.weight.lora_{part}"] for part in "ab")
    merged = next(v for v in trainer.export().graph.initializers.values() if v.name == "layer0.weight")
    assert merged.const_value is not None
    changed = merged.const_value.numpy() - before["layer0.weight"]
    product = 2.0 * a @ b
    np.testing.assert_allclose(changed, product if changed.shape == product.shape else product.T, atol=1e-6)
    slots = jax.tree.leaves(trainer.whole_state().slots)
    assert sum(s.size for s in slots) < sum(a.size for a in before.values())


def test_a_device_takes_the_adapters(tmp_path: Path) -> None:
    """The bundle of the first model with the same adapters gives what the trainer gives."""
    model = dense()
    trainer = Trainer(model, lora=Lora(rank=2, alpha=4, targets=("layer*",)))
    trainer.fit((X, Y), steps=5, batch_size=64)
    adapters = DeviceLora(rank=2, alpha=4, targets="layer*")
    convert(dense(), output=tmp_path / "m.mslite", trainable=Training(adapters=adapters))
    device = lite_runtime.load(tmp_path / "m.mslite")
    device.load_state_dict(trainer.adapters(), strict=False)
    (found,) = device.run({"x": X[:9]}).values()
    np.testing.assert_allclose(found, trainer.predict(X[:9]), atol=1e-4)


def test_adapters_of_filters_and_of_jax_functions() -> None:
    trainer = Trainer(tiny_net(), lora=Lora(rank=2))
    trainer.fit((IMAGES, Y), steps=3, batch_size=64)
    assert trainer.adapters()["stem.conv.weight.lora_a"].shape == (9, 2)
    np.testing.assert_allclose(run_onnx(trainer.export(), x=IMAGES[:9])[0], trainer.predict(IMAGES[:9]), atol=2e-5)

    def apply(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["first"]["w"]) @ p["second"]["w"]

    rng = np.random.default_rng(0)
    params = {"first": {"w": rng.normal(size=(64, 12)).astype(np.float32) / 8},
              "second": {"w": rng.normal(size=(12, 10)).astype(np.float32)}}  # fmt: skip
    task = Trainer(JaxTask(apply, params), lora=Lora(rank=2, targets=("first/*",)))
    task.fit((X, Y), steps=4, batch_size=64)
    assert set(task.adapters()) == {"first/w.lora_a", "first/w.lora_b"}
    np.testing.assert_array_equal(task.params["first"]["w"], params["first"]["w"])
    assert np.abs(task.adapters()["first/w.lora_b"]).max() > 0


def test_the_teachers_part_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    student, teacher, hidden = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 5), (4, 5), (2, 4, 3)))
    labels = np.array([0, 1, 2, 3])
    said = Distill(dense(), temperature=3.0, weight=0.25, hints={"a": "b"}, hint_weight=2.0)
    loss = distilled(LOSSES["softmax_cross_entropy"], said)
    found = loss(Taught(student, teacher, ((hidden[0], hidden[1]),)), labels)

    def softmax(a: np.ndarray) -> np.ndarray:
        exp = np.exp(a - a.max(-1, keepdims=True))
        return exp / exp.sum(-1, keepdims=True)

    p, q = softmax(teacher / 3.0), softmax(student / 3.0)
    hard = -np.log(softmax(student)[np.arange(4), labels])
    wanted = 0.75 * hard + 0.25 * 9 * (p * np.log(p / q)).sum(-1) + 2.0 * np.square(hidden[0] - hidden[1]).mean(-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(loss(student, labels), hard, rtol=1e-5)


def test_a_student_becomes_like_its_teacher() -> None:
    teacher = Trainer(dense(3), optimizer=optax.adam(1e-2))
    teacher.fit((X, Y), epochs=8, batch_size=64)
    taught = teacher.export()
    wrong = np.zeros_like(Y)  # labels teach nothing: what the student knows, it has from the teacher
    student = Trainer(mlp(64, 10, (16,), seed=5), distill=Distill(taught, weight=1.0), optimizer=optax.adam(1e-2))
    student.fit((X, wrong), epochs=30, batch_size=64)
    agree = student.predict(X).argmax(-1) == teacher.predict(X).argmax(-1)
    assert agree.mean() > 0.85
    for name, value in taught.graph.initializers.items():  # the teacher is unchanged
        kept = student.whole_state().state["teacher"][0].get(name)
        if kept is not None and value.const_value is not None:
            np.testing.assert_array_equal(kept, value.const_value.numpy())


def test_sparsity_follows_its_schedule_and_stays() -> None:
    trainer = Trainer(dense(), prune=Prune(0.75, begin=3, end=9, every=3), average=0.9, optimizer=optax.adamw(1e-2))
    shares = []
    for _ in range(7):
        trainer.fit((X, Y), steps=2, batch_size=64)
        weight = np.asarray(trainer.params["layer0.weight"])
        shares.append(float((weight == 0).mean()))
    wanted = [0.0, 0.0, *[0.75 * (1 - 0.5**3)] * 2, 0.75, 0.75, 0.75]  # after 2, 4, 6 … steps
    assert shares == pytest.approx(wanted, abs=2e-3)
    slots = trainer.whole_state().slots
    assert isinstance(slots, Pruned) and density(slots) == pytest.approx(0.25, abs=2e-3)
    averaged = np.asarray(trainer.weights()[0]["layer0.weight"])
    np.testing.assert_array_equal(averaged == 0, weight == 0)
    assert not (np.asarray(trainer.params["layer0.bias"]) == 0).all()


def test_a_student_is_pruned_and_the_matrices_of_hints_are_not() -> None:
    trainer = Trainer(dense(), prune=Prune(0.5, end=2, every=1), **VARIANTS["distill"])
    trainer.fit((X, Y), steps=3, batch_size=64)
    zeros = {name: float((np.asarray(array) == 0).mean()) for name, array in trainer.params.items()}
    assert zeros["layer0.weight"] == pytest.approx(0.5) and zeros["hint:relu_1"] == 0.0
    assert trainer.params["hint:relu_1"].shape == (16, 24)
    assert all("hint" not in name for name in trainer.export().graph.initializers)


def test_pruned_channels_are_not_in_the_exported_graph() -> None:
    model = tiny_net()
    trainer = Trainer(model, prune=Prune(0.5, end=6, every=3, structured=True), optimizer=optax.adam(3e-3))
    trainer.fit((IMAGES, Y), epochs=2, batch_size=64)
    made = trainer.export()
    shapes = {n: tuple(v.const_value.shape) for n, v in made.graph.initializers.items() if v.const_value is not None}
    assert shapes["stem.conv.weight"] == (3, 1, 3, 3) and shapes["stem.bn.bias"] == (3,)
    assert sorted(shapes["head.weight"]) == [10, 48]  # 16 places a channel
    np.testing.assert_allclose(run_onnx(made, x=IMAGES[:40])[0], trainer.predict(IMAGES[:40]), atol=2e-5)
    assert model.graph.initializers["stem.conv.weight"].const_value.shape[0] == 6  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"lora": Lora(targets=("nothing*",))}, "no parameter matches 'nothing"),
        ({"lora": Lora(), "prune": Prune(0.5, end=1)}, "got both"),
        ({"lora": Lora(), "freezing": GradualUnfreezing()}, "no freezing beside lora"),
        ({"prune": Prune(0.5, end=1), "plateau": Plateau(patience=1)}, "no plateau beside prune"),
        ({"prune": Prune(0.5, end=1, targets=("nothing*",))}, "prune: no trained parameter"),
        ({"distill": Distill(mlp(64, 10, (4,)), hints={"none": "relu_0"})}, "the student has no value 'none'"),
        ({"distill": Distill(resnet8((1, 8, 8)), hints={})}, "teacher does not take the student's inputs"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(TrainError, match=expected):
        Trainer(dense(), **arguments).fit((X[:64], Y[:64]), steps=1)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: Lora(rank=0), "rank of at least 1"), (lambda: Lora(targets="head"), "list of globs"),
        (lambda: Lora(alpha=-1), "alpha above 0"), (lambda: Distill(None, temperature=0), "temperature above 0"),
        (lambda: Distill(None, weight=2), "weight from 0 to 1"), (lambda: Distill(None, weight=0), "teaches nothing"),
        (lambda: Prune(1.0, end=1), "between 0 and 1"), (lambda: Prune(0.5, end=1, begin=2), "begin <= end"),
        (lambda: Prune(0.5, end=1, every=0), "at least 1 step"), (lambda: Prune(0.5, end=1, targets=()), "globs"),
    ],
)  # fmt: skip
def test_options_out_of_range(make: Any, expected: str) -> None:
    with pytest.raises(TrainError, match=expected):
        make()


def test_structured_pruning_needs_a_graph() -> None:
    params = {"w": np.ones((64, 10), np.float32)}
    with pytest.raises(TrainError, match="expected an ONNX model"):
        Trainer(JaxTask(lambda p, x: x @ p["w"], params), prune=Prune(0.5, end=1, structured=True))


def test_a_run_file_has_all_of_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X[:200], labels=Y[:200])
    (tmp_path / "t.onnx").write_bytes(ir.to_proto(dense(3)).SerializeToString())
    words = {
        "model": {"zoo": "mlp", "options": {"features": 64, "outputs": 10, "hidden": [8]}},
        "data": {"npz": "d.npz"},
        "train": {"epochs": 2, "lora": {"rank": 2, "targets": ["layer0*"], "also": ["head*"]},
                  "distill": {"onnx": "t.onnx", "weight": 0.3}},
        "export": {"adapter": "a.state", "bundle": "m.mslite"},
    }  # fmt: skip
    config = parse(words, tmp_path)
    job = job_of(config)
    job.fit()
    made = exported(job, config)
    from lite_runtime.learning import checkpoint

    assert set(checkpoint.read(made["adapter"]).state) == {"layer0.weight.lora_a", "layer0.weight.lora_b"}
    (found,) = lite_runtime.load(made["bundle"]).run({"x": X[:9]}).values()
    np.testing.assert_allclose(found, job.trainer.predict(X[:9]), atol=1e-4)
    words["train"] = {"steps": 8, "prune": {"sparsity": 0.5, "every": 2, "structured": True}}
    words["export"] = {"onnx": "m.onnx"}
    config = parse(words, tmp_path)
    job = job_of(config)
    job.fit()
    exported(job, config)
    weight = next(i for i in ir.load(tmp_path / "m.onnx").graph.initializers.values() if i.name == "layer0.weight")
    assert weight.const_value is not None and sorted(weight.const_value.shape) == [4, 64]


@pytest.mark.parametrize(
    "train, export, expected",
    [
        ({"lora": {}}, {}, "rank"),
        ({"lora": {"rank": 2}, "prune": {"sparsity": 0.5}}, {}, "train.prune: expected none together"),
        ({"distill": {}}, {}, "one of the keys onnx, function"),
        ({}, {"adapter": "a.state"}, "export.adapter"),
        ({"prune": {"sparsity": 1.0, "end": 4}}, {}, "between 0 and 1"),
        ({"adversarial": {"epsilon": 0.1}, "distill": {"onnx": "t.onnx"}}, {}, "train.adversarial: expected none"),
        ({"adversarial": {"epsilon": 0.1, "low": 1.0}}, {}, "expected low below high"),
    ],
)
def test_mistakes_in_a_run_file(tmp_path: Path, train: Any, export: Any, expected: str) -> None:
    np.savez(tmp_path / "d.npz", x=X[:50], labels=Y[:50])
    words = {"model": {"zoo": "mlp", "options": {"features": 64, "outputs": 10, "hidden": [8]}},
             "data": {"npz": "d.npz"}, "train": train, "export": export}  # fmt: skip
    with pytest.raises(TrainError, match=expected):
        job_of(parse(words, tmp_path))
