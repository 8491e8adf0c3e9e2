"""Workers: every share is done once, runs take turns, sleeping workers wake, and no wait is endless."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.native.target import host
from lite_runtime.running import executor as executors
from lite_runtime.running.executor import Binding, Executor, Settings
from lite_runtime.running.threads import TRIALS, Walk, team, ticks_per_second
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many workers as requested, independent of this machine's processors."""
    monkeypatch.setattr(executors, "cores", lambda: 8)


def _executor(threads: int) -> tuple[Executor, dict[str, Array]]:
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
        thread.join(PATIENCE)
    assert wrong == []


def _bound(executor: Executor, inputs: dict[str, Array], *, always: bool = True) -> tuple[Walk, Array]:
    """What walks the executor's program over these inputs, and the array it fills."""
    binding = Binding(inputs, executor)
    walk = binding._walk
    assert walk is not None and walk.workers > 1
    walk.always = always
    return walk, binding.outputs["v3"]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_always_using_several_workers_gives_the_same_bits(threads: int) -> None:
    """More workers than processors too."""
    executor, inputs = _executor(threads)
    want = executor.run(inputs)["v3"]
    walk, out = _bound(executor, inputs)
    for pause in (0.0, 0.002, 0.0, 0.02, 0.0):
        time.sleep(pause)
        out[...] = 0
        walk.go()
        assert out.tobytes() == want.tobytes()


def test_a_run_may_use_fewer_workers_than_there_are_threads() -> None:
    """Workers that take no part in a run leave it and the next ones alone."""
    executor, inputs = _executor(4)
    want = executor.run(inputs)["v3"]
    bound = [_bound(executor, inputs) for _ in range(3)]
    for (walk, _), workers in zip(bound, (2, 4, 3), strict=True):
        walk.workers = workers
    for i in range(200):
        walk, out = bound[i % 3]
        out[...] = 0
        walk.go()
        assert out.tobytes() == want.tobytes()


def test_a_run_does_not_wait_for_busy_workers() -> None:
    executor, inputs = _executor(2)
    executor.run(inputs)
    walk, _ = _bound(executor, inputs)
    with team()._lock:
        walk.go()  # alone, in no time


def test_workers_that_do_not_help_are_not_used() -> None:
    executor, inputs = _executor(2)
    executor.run(inputs)
    walk, _ = _bound(executor, inputs, always=False)
    assert walk.rests == TRIALS
    walk.rests = 0
    walk.learn(False, 1e-3)
    walk.learn(True, 0.6e-3)
    assert walk.rests == 0
    for rests in (3, 5, 9, 17, 33, 65, 65):
        walk.learn(True, 3.001e-3)
        assert walk.rests == rests
    walk.learn(True, 0.6e-3)
    walk.learn(True, 3.001e-3)
    assert walk.rests == 3


def _interrupted() -> None:
    """A run inside a run, and an exception thrown into one at any place, leave every later run right."""
    executor, inputs = _executor(2)
    other = {"v0": inputs["v0"] * 2}
    want, wanted = executor.run(inputs)["v3"].tobytes(), executor.run(other)["v3"].tobytes()
    seen: list[bytes] = []
    armed = ended = False

    def handle(*_: object) -> None:
        nonlocal armed
        if ended:
            return
        seen.append(executor.run(other)["v3"].tobytes())
        signal.setitimer(signal.ITIMER_REAL, 0.0007)  # only now: on a busy machine a handler outlasts any interval
        if armed and len(seen) > 30:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    try:
        end = time.perf_counter() + PATIENCE / 2
        while len(seen) < 60 and time.perf_counter() < end:
            try:
                armed = True
                result = executor.run(inputs)["v3"].tobytes()
                armed = False
                assert result == want
            except KeyboardInterrupt:
                pass
    finally:
        ended = True  # before the timer is stopped: what has come but was not handled yet must not start it again
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops one that waits for a thread to take it
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 60 and set(seen) == {wanted}
    assert executor.run(inputs)["v3"].tobytes() == want


@pytest.mark.parametrize("function", ["_interrupted", "_in_a_fork"])
def test_signal_handlers_and_forks(function: str) -> None:
    """In a process without other libraries' threads: a run inside a run, and a forked process with its own workers."""
    code = f"from {__name__} import {function} as f; f()"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=PATIENCE).returncode == 0


def _in_a_fork() -> None:
    executor, inputs = _executor(2)
    want = executor.run(inputs)["v3"].tobytes()
    walk, out = _bound(executor, inputs)
    walk.go()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE / 2))
        out[...] = 0
        walk.go()
        right = all(executor.run(inputs)["v3"].tobytes() == want for _ in range(5))
        os._exit(0 if right and out.tobytes() == want else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_ends_while_workers_wait() -> None:
    code = (
        "import numpy as np; from lite_runtime.running.threads import team\n"
        "t = team(); t._start(3); t._wake(3); import time; time.sleep(0.01)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=PATIENCE).returncode == 0


def test_the_counter_keeps_time() -> None:
    assert 1e6 < ticks_per_second() < 1e11
