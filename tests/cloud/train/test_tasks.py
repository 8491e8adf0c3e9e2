"""Functions and modules as tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax
import pytest

from cloud.errors import TrainError
from cloud.train import JaxTask, Trainer
from cloud.train.tasks import as_task
from tests.cloud.models import run_onnx, tiny_net

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
PARAMS = {"a": RNG.normal(size=(4, 8)).astype(np.float32), "b": RNG.normal(size=(8, 2)).astype(np.float32)}


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["a"]) @ params["b"]


def nnx_net() -> Any:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(4, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.last = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))

    return Net(nnx.Rngs(0))


def linen_net() -> Any:
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, features: Any, train: bool = False) -> Any:
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(features))
            return linen.Dense(2)(linen.Dropout(0.2, deterministic=not train)(linen.relu(x)))

    net = Net()
    return net, net.init(jax.random.key(0), X)


MAKERS: dict[str, Callable[[], Any]] = {"nnx": nnx_net, "linen": linen_net, "function": lambda: JaxTask(mlp, PARAMS)}


@pytest.mark.parametrize("kind", MAKERS)
def test_modules_learn_with_state_and_random_numbers(kind: str) -> None:
    model = MAKERS[kind]()
    trainer = Trainer(model, optimizer=optax.adam(0.03))
    before = jax.tree.map(np.array, trainer.state)
    again = Trainer(model, optimizer=optax.adam(0.03))
    reports = trainer.fit((X, Y), 12, 16)
    again.fit((X, Y), 12, 16)
    assert reports[-1].loss < reports[0].loss / 2
    assert (trainer.evaluate((X, Y)).accuracy or 0) > 0.9
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (trainer.state, before)), strict=True)]
    assert len(moved) == (0 if kind == "function" else 2)
    assert all(m > 0.01 for m in moved)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (trainer.params, again.params)), strict=True))
    assert trainer.task.inputs == (("features",) if kind == "linen" else ("x",))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_written_in_jax_comes_out_as_onnx(kind: str) -> None:
    """Slow: importing jax2onnx alone takes ten seconds and more."""
    pytest.importorskip("jax2onnx")
    trainer = Trainer(MAKERS[kind](), optimizer=optax.adam(0.03))
    trainer.fit((X, Y), 1, 16)
    model = trainer.export()
    assert model.graph.inputs[0].shape is not None
    assert not isinstance(model.graph.inputs[0].shape[0], int)
    name = trainer.task.inputs[0]
    for rows in (1, 48):
        (found,) = run_onnx(model, **{name: X[:rows]})
        np.testing.assert_allclose(found, trainer.predict(X[:rows]), atol=1e-5)
    again = Trainer(ir.from_proto(ir.to_proto(model)))
    assert again.evaluate((X, Y)).loss == pytest.approx(trainer.evaluate((X, Y)).loss, rel=1e-4)


@pytest.mark.slow
def test_exporting_leaves_jax_as_it_was() -> None:
    pytest.importorskip("jax2onnx")
    from cloud.train.tasks.exported import to_onnx

    original = jnp.cumsum
    for _ in range(2):
        model = to_onnx(lambda x: jnp.cumsum(x, axis=1), {"x": jax.ShapeDtypeStruct((48, 3), jnp.float32)})
        assert [node.op_type for node in model.graph] == ["CumSum"]
        assert jnp.cumsum is original and jnp.cumsum(X, 1).shape == X.shape


def test_a_function_with_state_inputs_and_settings() -> None:
    def counting(params: Any, state: Any, x: Any, bias: Any, *, rng: Any, train: bool) -> Any:
        assert (rng is not None) == train
        return {"logits": x @ params["a"] @ params["b"] + bias, "n": state["n"]}, {"n": state["n"] + train}

    task = JaxTask(counting, PARAMS, {"n": np.zeros((), np.int32)})
    assert task.inputs == ("x", "bias")
    trainer = Trainer(task, loss=lambda out, labels: jnp.square(out["logits"][:, 0] - labels), optimizer=optax.sgd(0.0))
    trainer.fit(({"x": X, "bias": np.zeros((48, 1), np.float32)}, Y), 2, 16)
    assert int(trainer.state["n"]) == 6


def test_files_and_functions_are_trained_as_they_are(tmp_path: Path) -> None:
    """The path of an ONNX file, also an old one with a fixed batch; a function and its parameters, with state or
    not."""
    ir.save(tiny_net(), tmp_path / "m.onnx")
    images = np.ones((8, 1, 8, 8), np.float32)
    for path in (tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        np.testing.assert_allclose(Trainer(path).predict(images), Trainer(tiny_net()).predict(images), rtol=1e-6)
    np.testing.assert_array_equal(Trainer((mlp, PARAMS)).predict(X), Trainer(JaxTask(mlp, PARAMS)).predict(X))
    counted = Trainer((lambda params, state, x: (mlp(params, x), {"n": state["n"] + 1}), PARAMS, {"n": np.int32(0)}))
    counted.fit((X, Y), 1, 16)
    assert int(counted.state["n"]) == -(-len(X) // 16)
    with pytest.raises(TrainError, match=r"got 'run\.toml', a run file: job_of\(read\('run\.toml'\)\)"):
        Trainer("run.toml")
    with pytest.raises(TrainError, match=r"Trainer: cannot read '.*none\.onnx'"):
        Trainer(tmp_path / "none.onnx")


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(TrainError, match="at least one float array"):
        JaxTask(mlp, {"a": np.arange(3)})
    with pytest.raises(TrainError, match=r"a function of \(params, inputs\.\.\.\), got one of \(params\)"):
        JaxTask(lambda params: params, PARAMS)
    with pytest.raises(TrainError, match=r"return \(output, state\), got"):
        Trainer(JaxTask(lambda params, state, x: mlp(params, x), PARAMS, {})).fit((X, Y))
    with pytest.raises(TrainError, match=r"got function; give its parameters too: \(function, params\)"):
        Trainer(mlp)
    with pytest.raises(TrainError, match="use freeze="):
        Trainer(JaxTask(mlp, PARAMS), trainable=["a"])
    with pytest.raises(TrainError, match=r"exporting needs the shapes of \['x'\]"):
        Trainer(JaxTask(mlp, PARAMS)).export()
    with pytest.raises(TrainError, match=r"examples of \['x'\], got also \['z'\]"):
        JaxTask(mlp, PARAMS, examples={"z": X})
    task = as_task(tiny_net())
    assert as_task(task) is task
