"""PyTorch modules trained here: losses and statistics as PyTorch's own, then the model on a device. Slow: tracing takes
seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
import optax
import pytest

import lite_runtime
from cloud.train import Trainer
from converter import convert
from converter.errors import ConvertError
from converter.frontends.safetensors.reader import read
from converter.frontends.torch import from_torch
from converter.weights import load_weights, save_weights

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
nn = torch.nn

ROWS, BATCH, CLASSES = 120, 20, 5


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer, momentum=0.3)
        self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer, affine=False))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


class ResNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 8, 1), Block(8, 16, 2))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.fc(self.blocks(x).mean((2, 3)))


class Transformer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder, self.fc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.fc(self.encoder(self.table(x)).mean(1))


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.fc(self.lstm(x)[0][:, -1])


def images(rng: np.random.Generator) -> Any:
    return rng.normal(size=(ROWS, 3, 8, 8)).astype(np.float32)


def tokens(rng: np.random.Generator) -> Any:
    return rng.integers(0, 20, (ROWS, 7))


def signals(rng: np.random.Generator) -> Any:
    return rng.normal(size=(ROWS, 7, 6)).astype(np.float32)


def both(net: Any, x: Any, y: Any, dynamic: Any) -> tuple[Trainer, list[float], list[float]]:
    """50 steps of momentum by both, on the same batches: (trainer, its losses, PyTorch's)."""
    trainer = Trainer(from_torch(net, {"x": x[:3]}, dynamic=dynamic), optimizer=optax.sgd(0.05, momentum=0.9))
    step, state, ours, theirs = jax.jit(trainer.pure_step), trainer.whole_state(), [], []
    optimizer, rng = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), np.random.default_rng(1)
    net.train()
    for _ in range(50):
        rows = rng.permutation(ROWS)[:BATCH]
        batch = {"inputs": {"x": x[rows]}, "labels": y[rows], "mask": np.ones(BATCH, np.float32)}
        state, sums = step(state, batch)
        ours.append(float(sums["loss"] / sums["examples"]))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(torch.tensor(x[rows])), torch.tensor(y[rows]).long())
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    trainer._state = state
    return trainer, ours, theirs


@pytest.mark.parametrize(
    ("kind", "draw", "dynamic", "counters"),
    [(ResNet, images, "batch", 6), (Transformer, tokens, {"x": {1: "length"}}, 0), (Recurrent, signals, "all", 0)],
)
def test_training_here_is_training_in_pytorch(kind: Any, draw: Any, dynamic: Any, counters: int) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net, x, y = kind(), draw(rng), rng.integers(0, CLASSES, ROWS).astype(np.int32)
    trainer, ours, theirs = both(net, x, y, dynamic)
    assert theirs[-1] < theirs[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    wanted = {name: value.numpy() for name, value in net.state_dict().items()}
    found = {**trainer.params, **trainer.state}
    assert len(wanted) - len(found) == counters  # batch normalisation's counts of batches
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], atol=1e-5, err_msg=name)
    net.eval()
    model = lite_runtime.load(convert(trainer.export()).bundle)
    for given in (x[:4], x[:2, :5] if kind is not ResNet else x[:2]):
        (logits,) = model.run({"x": given}).values()
        np.testing.assert_allclose(logits, net(torch.tensor(given)).detach().numpy(), atol=1e-4)


class Dropping(nn.Module):  # type: ignore[misc]
    """Every kind of dropout, each on ones."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.lstm = nn.Dropout2d(0.5), nn.GRU(4, 4, num_layers=2, dropout=0.5)

    def forward(self, x: Any) -> Any:
        keep = 0.75
        depth = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(keep).div_(keep) if self.training else 1.0
        dropped = nn.functional.dropout(x, 0.25, self.training)
        return dropped, self.whole(x), x * depth, self.lstm(x[:, :, 0])[0]


def outputs(net: Any, x: Any, **options: Any) -> Mapping[str, Any]:
    trainer = Trainer(from_torch(net, {"x": x[:2]}, outputs=tuple("abcd")), loss=lambda out, labels: labels)
    params, state = trainer.task.init()
    found: Mapping[str, Any] = trainer.task.apply(params, state, {"x": x}, **options)[0]
    return found


def test_dropout_draws_in_training_alone() -> None:
    x, net = np.ones((400, 6, 4, 4), np.float32), Dropping()
    out = {name: np.asarray(a) for name, a in outputs(net, x, rng=jax.random.key(0), train=True).items()}
    for name, values, scaled in (("a", {0, 4 / 3}, 1.0), ("b", {0, 2}, 1.0), ("c", {0, 4 / 3}, 1.0)):
        np.testing.assert_allclose(np.unique(out[name]), sorted(values), rtol=1e-6)
        assert out[name].mean() == pytest.approx(scaled, abs=0.1)
    assert (out["b"] == out["b"][:, :, :1, :1]).all()
    assert (out["c"] == out["c"][:, :1, :1, :1]).all()
    assert np.unique(out["a"][:, 0, 0, 0]).size == 2
    assert len(np.unique(np.round(out["d"][-1], 6), axis=0)) > 1  # rows of one kind, other draws
    still = outputs(net, x, rng=None, train=False)
    net.eval()
    for name, wanted in zip("abcd", net(torch.tensor(x)), strict=True):
        np.testing.assert_allclose(still[name], wanted.detach().numpy(), atol=1e-6)


def test_what_pytorch_does_not_train_stays() -> None:
    class Fixed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.still, self.fc = nn.BatchNorm1d(32), nn.BatchNorm1d(32), nn.Linear(32, 32)
            self.fc.bias.requires_grad = False
            self.register_buffer("table", torch.randn(32))

        def forward(self, x: Any) -> Any:
            return self.still(self.fc(self.norm(x + self.table)))

    net = Fixed()
    net.still.eval()
    trainer = Trainer(from_torch(net, {"x": np.ones((3, 32), np.float32)}), optimizer=optax.sgd(0.1))
    assert set(trainer.params) == {f"{n}.{p}" for n in ("norm", "still") for p in ("weight", "bias")} | {"fc.weight"}
    rng = np.random.default_rng(0)
    trainer.fit((rng.normal(size=(64, 32)).astype(np.float32), rng.integers(0, 32, 64)), steps=4, batch_size=16)
    state = trainer.state
    np.testing.assert_array_equal(state["still.running_mean"], np.zeros(32))
    np.testing.assert_array_equal(state["still.running_var"], np.ones(32))
    assert np.abs(state["norm.running_mean"]).min() > 0
    assert net.training and not net.still.training


class Drawing(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x + torch.randn_like(x)


class Counting(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.seen.add_(x.sum(0))
        return x * self.seen


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.BatchNorm1d(4, momentum=None)), "BatchNorm1d '0' has momentum=None"),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), "no running statistics"),
        (nn.Sequential(nn.AlphaDropout()), "AlphaDropout '0' draws random numbers by alpha_dropout"),
        (nn.Sequential(Drawing()), "Drawing '0' draws random numbers by randn_like"),
        (nn.Sequential(Counting()), "Counting '0' changes the buffer '0.seen' by add_"),
    ],
)
def test_what_has_no_form_in_training_is_refused(net: Any, message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        from_torch(net, {"x": np.ones((3, 4), np.float32)})
    assert net.training


def test_sizes_that_are_asked_for_stay_open() -> None:
    x = np.ones((2, 5), np.int64)
    for dynamic, wanted in (
        ("batch", ["batch", 5]),
        ("all", ["batch", "x.1"]),
        ({"x": {1: "length"}}, ["batch", "length"]),
    ):
        model = from_torch(nn.Embedding(9, 4), {"x": x}, dynamic=dynamic)
        assert [d if isinstance(d, int) else d.value for d in model.graph.inputs[0].shape or ()] == wanted
    for dynamic, message in (
        ("rows", 'expected dynamic as "batch"'),
        ({"y": {0: "n"}}, r"expected inputs of \['x'\], got \['y'\]"),
        ({"x": {2: "n"}}, r"an axis of 'x', whose example is \[2, 5\]"),
        ({"x": {1: "n m"}}, "a name of letters"),
    ):
        with pytest.raises(ConvertError, match=message):
            from_torch(nn.Embedding(9, 4), {"x": x}, dynamic=dynamic)


class Tied(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(9, 6), nn.BatchNorm1d(5), nn.Linear(6, 9, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("place", torch.randn(5, 6))

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.table(x) + self.place))


def test_weights_go_back_as_a_state_dict(tmp_path: Path) -> None:
    net, x = Tied(), np.random.default_rng(0).integers(0, 9, (32, 5))
    trainer = Trainer(from_torch(net, {"x": x[:2]}), optimizer=optax.sgd(0.1))
    trainer.fit((x, x), steps=3, batch_size=8)
    path = tmp_path / "m.safetensors"
    names = save_weights(ir.from_proto(ir.to_proto(trainer.export())), path)
    assert set(names) == set(net.state_dict()) - {"norm.num_batches_tracked"}
    other = Tied()
    other.load_state_dict({name: torch.tensor(t.array) for name, t in read(path).items()})
    np.testing.assert_allclose(trainer.predict(x), other.eval()(torch.tensor(x)).detach().numpy(), atol=1e-5)
    model = load_weights(from_torch(Tied(), {"x": x[:2]}), path)
    np.testing.assert_allclose(Trainer(model).predict(x), trainer.predict(x), atol=1e-6)
