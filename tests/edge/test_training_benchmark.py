"""The training benchmark compares equal work: PyTorch and a trainable bundle, from the same weights."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.training import Ours, Task, Torch, _first_steps, mobilenet_v2
from cloud.zoo import resnet8

SMALL = partial(resnet8, (3, 16, 16), filters=(8, 16))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("trainable", "batch_norm"), [("*", "train"), ("*", "frozen"), ("head.*", "frozen")])
def test_losses_agree_over_steps(trainable: str, batch_norm: str, last: bool) -> None:
    task = Task(SMALL, 8, (3, 16, 16), trainable, batch_norm)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    fed = {"x": rng.standard_normal((8, 3, 16, 16)).astype(np.float32), "labels": rng.integers(0, 10, 8)}
    ours, theirs = Ours(task, fed, 1), Torch(task, fed, last=last, compiled=False)
    losses = [(ours.step(), theirs.step()) for _ in range(5)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-3)
    assert losses[-1][0] < losses[0][0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(("trainable", "batch_norm"), [("*", "train"), ("head.*", "frozen")])
def test_compiled_losses_agree_too(trainable: str, batch_norm: str) -> None:
    task = Task(SMALL, 8, (3, 16, 16), trainable, batch_norm)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    fed = {"x": rng.standard_normal((8, 3, 16, 16)).astype(np.float32), "labels": rng.integers(0, 10, 8)}
    ours, theirs = Ours(task, fed, 1), Torch(task, fed, last=False, compiled=True)
    losses = [(ours.step(), theirs.step()) for _ in range(3)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-3)


def test_what_does_not_run_or_differs_says_why() -> None:
    def broken() -> Torch:
        raise RuntimeError("no compiler\nmore")

    assert _first_steps(broken, [1.0, 1.0]) == (None, "RuntimeError: no compiler")
    made, why = _first_steps(lambda: Fixed(1.5), [1.0, 1.0])  # type: ignore[arg-type, return-value]
    assert made is None and "its losses differ: 1.5, expected 1" in why
    made, why = _first_steps(lambda: Fixed(1.0), [1.0, 1.0])  # type: ignore[arg-type, return-value]
    assert made is not None and why == ""


class Fixed:
    def __init__(self, loss: float) -> None:
        self.loss = loss

    def step(self) -> float:
        return self.loss


def test_mobilenet_has_its_published_size() -> None:
    graph = mobilenet_v2().graph
    sizes = [v.const_value.size for name, v in graph.initializers.items() if v.const_value and "running" not in name]
    assert 2.2e6 < sum(sizes) < 2.3e6  # 2.22 million without the 1000 classes of the paper
    assert sum(node.op_type == "Conv" for node in graph) == 52
