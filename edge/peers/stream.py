"""A peer that carries a stream's state: standard ONNX has none, so the state goes in and comes out in every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lite_runtime.graph import Array

if TYPE_CHECKING:
    from lite_runtime.bundle import Bundle

__all__ = ["carrying", "with_initial"]

Runner = Callable[[Mapping[str, Array]], Mapping[str, Any]]


def with_initial(inputs: Mapping[str, Array], bundle: Bundle, names: frozenset[str]) -> dict[str, Array]:
    """`inputs` and the initial state of "predict", as far as the source has it among its inputs `names`."""
    use = bundle.uses.get("predict")
    held = {} if use is None else {n: bundle.state[s].copy() for n, s in use.reads.items() if n in names}
    return {**inputs, **held}


def carrying(run: Runner, bundle: Bundle, names: frozenset[str]) -> Runner:
    """A runner of the source that continues where its last run ended; `run` itself if the source keeps its state.

    names: the source's inputs.
    """
    use = bundle.uses.get("predict")
    if use is None or not set(use.reads) <= names:
        return run
    state = {state: bundle.state[state].copy() for state in use.reads.values()}  # some runtimes want writable arrays

    def step(inputs: Mapping[str, Array]) -> Mapping[str, Any]:
        outputs = dict(run({**inputs, **{name: state[held] for name, held in use.reads.items()}}))
        state.update({held: outputs.pop(name) for name, held in use.writes.items()})
        return outputs

    return step
