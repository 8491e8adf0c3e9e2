"""One version of the runtime, in a separate process: `python -P worker.py CHECKOUT`, with CHECKOUT as PYTHONPATH.

It uses only public functions of a checkout, since the other one may be organised differently. Each line of its input is
a command in JSON, each line of its output the answer:

    {"convert": MODEL, "to": BUNDLE}                     -> {}
    {"load": BUNDLE, "threads": N, "call": "run" or "bind", "outputs": FILE.npz}   -> {"from": folder of lite_runtime}
    {"turn": seconds, "wake": seconds}                   -> {"seconds": of one call}

Any failure is answered by {"error": text}, and the worker continues.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["Worker", "main"]


def _inputs(model: Any) -> dict[str, np.ndarray]:
    """The same numbers in every process: floats from 0 to 1, integers and booleans 0 or 1, open sizes 1."""
    rng = np.random.default_rng(0)
    made = {}
    for value in model.inputs():
        shape = [size if isinstance(size, int) else 1 for size in value.shape or ()]
        kind = np.dtype(value.dtype)
        drawn = rng.random(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
        made[value.name] = np.asarray(drawn).astype(kind)
    return made


ERRORS = ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError


class Worker:
    """Holds the loaded model between commands."""

    def __init__(self, checkout: str) -> None:
        self.root = os.path.realpath(checkout)
        self.call: Callable[[], object] | None = None

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command."""
        if "convert" in command:
            import converter

            self._own(converter)
            converter.convert(command["convert"], output=command["to"])
            return {}
        if "load" in command:
            return self._load(command)
        return {"seconds": self._turn(command["turn"], command["wake"])}

    def _own(self, module: ModuleType) -> str:
        """The folder of a package, which must be in this worker's checkout."""
        folder = os.path.realpath(os.path.dirname(module.__file__ or ""))
        if os.path.commonpath([folder, self.root]) != self.root:
            raise ImportError(f"expected {module.__name__} from {self.root}, got it from {folder}")
        return folder

    def _load(self, command: Mapping[str, Any]) -> dict[str, Any]:
        import lite_runtime

        folder = self._own(lite_runtime)
        model = lite_runtime.load(command["load"], threads=command["threads"])
        inputs = _inputs(model)
        outputs = model.run(inputs)
        arrays: dict[str, Any] = {name: np.asarray(array) for name, array in outputs.items()}
        np.savez(command["outputs"], **arrays)
        if command["call"] == "bind":
            bound = model.bind({name: array.shape for name, array in inputs.items()})
            for name, array in inputs.items():
                bound.inputs[name][...] = array
            self.call = bound
        else:
            self.call = lambda: model.run(inputs)
        gc.collect()
        gc.freeze()
        return {"from": folder}

    def _turn(self, seconds: float, wake: float) -> float:
        """Seconds of one call: uncounted calls for `wake` seconds, then counted ones for about `seconds`."""
        if self.call is None:
            raise RuntimeError("expected a model to be loaded before its first turn")
        call, clock = self.call, time.perf_counter
        gc.disable()
        try:
            calls, begun = 0, clock()
            while calls == 0 or clock() < begun + wake:
                call()
                calls += 1
            repeats = max(1, round(seconds * calls / (clock() - begun)))
            begun = clock()
            for _ in range(repeats):
                call()
            return (clock() - begun) / repeats
        finally:
            gc.enable()


def main() -> None:
    """Answer commands until the input ends."""
    import lite_runtime

    worker = Worker(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output that packages print must not look like an answer
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except (*ERRORS, lite_runtime.MsedgeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
