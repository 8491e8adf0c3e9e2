"""Workers: every share is done once, runs take turns, sleepers wake."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from lite_runtime.executor import Executor, Settings
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.target import host

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
RNG = np.random.default_rng(7)


def _executor(threads: int) -> tuple[Executor, dict[str, np.ndarray]]:
    """Three products in a row, large enough to be shared."""
    weights = {f"w{i}": RNG.standard_normal((96, 96)).astype(np.float32) / 10 for i in range(3)}
    nodes = tuple(Node("MatMul", (f"v{i}", f"w{i}"), (f"v{i + 1}",)) for i in range(3))
    graph = Graph((Value("v0", "float32", (300, 96)),), (Value("v3", "float32", (300, 96)),), nodes, weights)
    return Executor(graph, Settings(threads=threads)), {"v0": RNG.standard_normal((300, 96)).astype(np.float32)}


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_workers_gives_the_same_bits(threads: int) -> None:
    state = RNG.bit_generator.state
    alone, inputs = _executor(1)
    RNG.bit_generator.state = state
    many, _ = _executor(threads)
    want = alone.run(inputs)["v3"]
    for _ in range(50):
        assert many.run(inputs)["v3"].tobytes() == want.tobytes()


def test_workers_wake_after_sleeping() -> None:
    executor, inputs = _executor(2)
    want = executor.run(inputs)["v3"]
    for _ in range(5):
        time.sleep(0.02)
        assert executor.run(inputs)["v3"].tobytes() == want.tobytes()


def test_callers_from_many_threads_take_turns() -> None:
    executors = [_executor(2) for _ in range(3)]
    want = [e.run(i)["v3"].tobytes() for e, i in executors]
    wrong: list[int] = []

    def call(k: int) -> None:
        executor, inputs = executors[k % 3]
        for _ in range(30):
            if executor.run(inputs)["v3"].tobytes() != want[k % 3]:
                wrong.append(k)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
