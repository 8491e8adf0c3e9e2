"""Bytes that known strategies must move, by closed forms; predicted and compiled bytes must be equal to them.

python -m benchmarks.parallel.closed_forms [--backend gpu|cpu] [--small]

The model is two blocks of attention and MLP without biases on eight devices, trained by plain SGD on a mean of squares.
P is the bytes of the parameters, A those of the activations; the 4 bytes are the loss. Prints Markdown. `--backend cpu`
needs XLA_FLAGS=--xla_force_host_platform_device_count=8, `gpu` needs what `benchmarks.parallel.install_compiler`
installs.

Megatron (Shoeybi et al., 2019) sums activations over devices twice per block and direction, but never the gradient of
the batch: 8A - A. This holds for its single matrix for queries, keys and values. With three matrices (`apart`) their
input has three gradients: the GPU's compiler adds them locally before it sums over devices, 7A again; the CPU's
compiler sums each over devices, 9A. Without the normalisation JAX adds each one to the residual's gradient, and both
compilers produce 9A, also with hand-written constraints.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Tree
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.plan import Collective, Mesh
from cloud.parallel.running.apply import apply
from cloud.parallel.searching.predict import predict
from cloud.parallel.searching.search import search
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace

__all__ = ["FORMS", "SMALL", "Form", "Moved", "Sizes", "moved", "two_blocks"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The default sizes give P = 25,165,824 and A = 4,194,304 bytes, as in the notes on hand-written programs. `apart`:
    queries, keys and values each have a matrix, and their input is normalised."""

    blocks: int = 2
    width: int = 512
    heads: int = 8
    rows: int = 16
    length: int = 128
    apart: bool = False

    @property
    def parameters(self) -> int:
        """Bytes of the parameters: 4 matrices for attention, and twice 4 for the MLP."""
        return self.blocks * 12 * self.width**2 * 4

    @property
    def activations(self) -> int:
        """Bytes of the activations between blocks."""
        return self.rows * self.length * self.width * 4


SMALL = Sizes(width=64, length=8)

Bytes = Mapping[str, int]
"""Bytes of the results on one device, by kind of collective."""


@dataclass(frozen=True, slots=True)
class Form:
    """`text`: the formula as printed. `bytes(p, a, n, scatters)`: its value by kind of collective, for `p` bytes of
    parameters, `a` of activations, `n` devices and a compiler with or without reduce-scatters. `whole`: every device
    gets the complete sums; a planner that is free to choose scatters some sums of data parallelism and gathers
    parameters instead."""

    expert: str
    mesh: Mesh
    text: str
    bytes: Callable[[int, int, int, bool], Bytes]
    apart: bool = False
    whole: bool = True


_LINE, _GRID = Mesh((8,), (0,)), Mesh((2, 4), (0, 0))


def _fsdp(p: int, a: int, n: int, scatters: bool) -> Bytes:
    """Each device keeps a part of a scattered sum."""
    sums = {"reduce-scatter": p // n, "all-reduce": 4} if scatters else {"all-reduce": p + 4}
    return {"all-gather": p, **sums}


FORMS: Mapping[str, Form] = {
    "DP8": Form("dp", _LINE, "P + 4", lambda p, a, n, scatters: {"all-reduce": p + 4}),
    "Megatron TP8": Form("megatron", _LINE, "7A", lambda p, a, n, scatters: {"all-reduce": 7 * a}),
    "DP2×TP4": Form("dp_tp", _GRID, "7A/2 + P/4 + 4",
                    lambda p, a, n, scatters: {"all-reduce": 7 * a // 2 + p // 4 + 4}),
    "FSDP8": Form("fsdp", _LINE, "gathers P, sums P + 4", _fsdp, whole=False),
    "TP8, q k v apart": Form("megatron", _LINE, "7A, CPU 9A",
                             lambda p, a, n, scatters: {"all-reduce": (7 if scatters else 9) * a}, apart=True),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes by the closed form, by the prediction, and in the compiled program."""

    closed: Bytes
    foretold: Bytes
    compiled: Bytes


def moved(form: Form, compiler: Compiler, topology: Topology, sizes: Sizes) -> Moved:
    """The bytes of the expert's plan for two blocks with these `sizes`. Raises `PlanError` if there is no such plan."""
    about = _, state, batch = two_blocks(replace(sizes, apart=form.apart))
    graph, results = trace(*about), jax.eval_shape(*about)
    backend = "cpu" if form.whole else compiler.name
    plan = search(graph, topology, expert=form.expert, meshes=[form.mesh], backend=backend)
    applied = apply(graph, plan, topology, (state, batch), results, compiler.devices)
    estimate = predict(graph, plan, topology, reduce_scatter=compiler.reduce_scatter)
    read = measure(compiler.compile(applied.lower()), plan.mesh, topology)
    closed = form.bytes(sizes.parameters, sizes.activations, topology.size, compiler.reduce_scatter)
    return Moved(closed, _by_kind(estimate.collectives), _by_kind(read.collectives))


def _by_kind(collectives: Sequence[Collective]) -> Bytes:
    found: Counter[str] = Counter()
    for one in collectives:
        found[one.kind] += one.bytes * one.times
    return dict(found)


def two_blocks(sizes: Sizes) -> tuple[Callable[[Tree, Tree], tuple[Tree, Tree]], Tree, Tree]:
    """The step, and the shapes of its state and batch."""
    d, heads, each = sizes.width, sizes.heads, sizes.width // sizes.heads
    apart = {name: (d, heads, each) for name in "qkv"} if sizes.apart else {"qkv": (d, 3, heads, each)}
    matrices = {**apart, "out": (heads, each, d), "up": (d, 4 * d), "down": (4 * d, d)}

    def looks(w: Tree, h: jax.Array) -> Any:
        if sizes.apart:
            h *= jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-5)
            return (jnp.einsum("bsd,dhe->bshe", h, w[name]) for name in "qkv")
        return jnp.einsum("bsd,dche->cbshe", h, w["qkv"])

    def loss(blocks: Sequence[Tree], batch: Tree) -> jax.Array:
        h = batch["x"]
        for w in blocks:
            q, k, v = looks(w, h)
            seen = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k) * each**-0.5, -1)
            h = h + jnp.einsum("bhqk,bkhe,hed->bqd", seen, v, w["out"])
            h = h + jax.nn.gelu(h @ w["up"]) @ w["down"]
        return jnp.mean((h - batch["y"]) ** 2)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        value, gradient = jax.value_and_grad(loss)(state["params"], batch)
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradient)}, {"loss": value}

    def shapes() -> tuple[Tree, Tree]:
        rows = jnp.zeros((sizes.rows, sizes.length, d))
        blocks = [{name: jnp.zeros(shape) for name, shape in matrices.items()} for _ in range(sizes.blocks)]
        return {"params": blocks}, {"x": rows, "y": rows}

    return step, *jax.eval_shape(shapes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if all figures of every row agree, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel.closed_forms", description=__doc__)
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--small", action="store_true", help="width 64 instead of 512")
    given = parser.parse_args(arguments)
    if given.backend == "gpu" and not compilers.has_gpu():
        print(f"no compiler for GPUs: run benchmarks.parallel.install_compiler FOLDER, set {compilers.FOLDER}=FOLDER")
        return 1
    topology, sizes = Topology.named("h100x8"), SMALL if given.small else Sizes()
    compiler = compilers.gpu(topology) if given.backend == "gpu" else compilers.cpu(topology.size)
    print(f"P = {sizes.parameters:,} B, A = {sizes.activations:,} B, the {compiler.name.upper()}'s compiler\n")
    print("| plan | closed form | collective | by arithmetic | predicted | compiled |\n| --- " + "| ---: " * 5 + "|")
    right = True
    for name, form in FORMS.items():
        found = moved(form, compiler, topology, sizes)
        for kind in sorted({*found.closed, *found.foretold, *found.compiled}):
            three = [each.get(kind, 0) for each in (found.closed, found.foretold, found.compiled)]
            right &= len({*three}) == 1
            print(" | ".join((f"| {name}", form.text, kind, *(f"{bytes:,} B" for bytes in three))) + " |", flush=True)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
