"""A model's gradients three ways: JAX's of the forward model, ours by reference, ours after all passes by kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from onnx import helper

import lite_runtime
from cloud import engine
from converter.ir import spec
from converter.ir.grad import differentiate
from converter.lowering import lower
from converter.pass_lists import PASSES, optimize, to_ir
from lite_runtime import bundle, reference
from lite_runtime.graph import Array
from tests.converter.support import Builder

Arrays = Mapping[str, Array]
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""For functions that run once: compiling them well would take most of the time."""


def loss_of(b: Builder, *results: str) -> str:
    """A scalar that every element of the results moves in its own way."""
    total = ""
    for y in results:
        part = b("ReduceSum", b("Sin", b("Add", b("Mul", y, b.const(np.float32(1.3))), b.const(np.float32(0.4)))),
                 keepdims=0)  # fmt: skip
        total = b("Add", total, part) if total else part
    return total


class Part:
    """A builder's view for one case of several in a model: its inputs carry its name, and a range to draw them from."""

    def __init__(self, b: Builder, name: str) -> None:
        self.b, self.case, self.ranges = b, name, dict[str, tuple[float, float]]()
        self.const, self.weight, self.rng = b.const, b.weight, b.rng

    def input(self, name: str, shape: Sequence[int | str], low: float = -2.0, high: float = 2.0) -> str:
        name = f"{self.case}: {name}"
        self.ranges[name] = (low, high)
        return self.b.input(name, shape)

    def ints(self, values: Any) -> str:
        return self.b.const(values, np.int64)

    def __call__(self, op: str, *inputs: str, **more: Any) -> Any:
        return self.b(op, *inputs, **more)


Make = Callable[[Part], "str | list[str]"]


def drawn(b: Builder, ranges: Mapping[str, tuple[float, float]], batch: int = 3) -> dict[str, Array]:
    """Numbers for every input of the model; symbolic sizes are `batch`, but for "one"."""
    found = {}
    for info in b.inputs:
        kind = info.type.tensor_type
        open_ended = {"one": 1}
        shape = [d.dim_value if d.HasField("dim_value") else open_ended.get(d.dim_param, batch) for d in kind.shape.dim]
        found[info.name] = b.rng.uniform(*ranges[info.name], shape).astype(np.float32)
    return found


def jax_gradients(model: ir.Model, fed: Arrays, wrt: list[str]) -> dict[str, Array]:
    """By `jax.grad` of the model's first output."""
    function = engine.lower(model)
    name = function.outputs[0].name

    @compiled
    def gradients(chosen: Any, rest: Any) -> Any:
        def loss(values: Any) -> Any:
            outputs, _ = function.apply(function.params, function.state, {**rest, **values})
            return outputs[name].reshape(())

        return jax.grad(loss)(chosen)

    rest = {k: v for k, v in fed.items() if k not in wrt}
    return {k: np.asarray(v) for k, v in gradients({k: fed[k] for k in wrt}, rest).items()}


def differentiated(model: ir.Model, wrt: list[str]) -> ir.Model:
    """The model with the loss and grad/<name> as its only outputs."""
    by_name = {v.name: v for v in (*model.graph.inputs, *model.graph.initializers.values())}
    grads = differentiate(model, model.graph.outputs[0], [by_name[name] for name in wrt])
    for name, value in grads.items():
        value.name = f"grad/{name}"
        model.graph.outputs.append(value)
    spec.check(model, "after differentiation")
    return model


def agree(got: Arrays, wanted: Arrays, limit: float = 1e-4) -> None:
    for name, w in wanted.items():
        g = got[f"grad/{name}"]
        assert g.shape == w.shape and g.dtype == w.dtype, (name, g.shape, w.shape, g.dtype, w.dtype)
        span = max(float(np.abs(w).max(initial=0)), 1e-2)  # terms of size 1 that cancel leave a few 1e-8
        error = float(np.abs(g.astype(np.float64) - w).max(initial=0)) / span
        assert error <= limit, (name, error, g, w)


def natively(model: ir.Model, fed: Arrays) -> dict[str, Array]:
    """After all passes, with kernels where there are some."""
    optimize(model, PASSES)
    return dict(lite_runtime.load(bundle.write(None, {"predict": lower(model)})).run(dict(fed)))


def check(
    cases: Mapping[str, Make], *, limit: float = 1e-4, native: bool = True, seed: int = 0, opset: int = 26
) -> ir.Model:
    """All cases as one model, differentiated by every input and compared; it comes back as the passes left it."""
    b, results, ranges = Builder(opset, seed=seed), list[str](), dict[str, tuple[float, float]]()
    for name, make in cases.items():
        part = Part(b, name)
        made = make(part)
        results += [made] if isinstance(made, str) else made
        ranges |= part.ranges
    proto = b.model(loss_of(b, *results))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = to_ir(proto)
    fed = drawn(b, ranges)
    wanted = jax_gradients(model, fed, list(fed))
    found = differentiated(model, list(fed))
    agree(reference.run(lower(found), fed), wanted, limit)
    if native:
        agree(natively(found, fed), wanted, limit)
    return found
