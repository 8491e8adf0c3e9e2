"""`python -m lite_runtime run|inspect|bench|verify model.mslite`: a command line for the runtime alone, by argparse."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array, Value, numpy_dtype
from lite_runtime.running.golden import difference, sampled, tolerance_of
from lite_runtime.running.session import BACKENDS, Model, load


def random_inputs(values: Sequence[Value], seed: int) -> dict[str, Array]:
    """Standard normal or small integer arrays of the declared shapes; unknown sizes are 1."""
    rng = np.random.default_rng(seed)
    return {v.name: _random(v, rng) for v in values}


def _random(value: Value, rng: np.random.Generator) -> Array:
    shape = tuple(d if isinstance(d, int) else 1 for d in value.shape or ())
    dtype = numpy_dtype(value.dtype)
    if dtype.kind == "O":
        return np.full(shape, "", object)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _given(pairs: Sequence[str]) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals:
            raise InputError(f"expected NAME=FILE.npy, got {pair!r}")
        try:
            with open(path, "rb") as file:
                inputs[name] = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not a readable .npy file ({error})") from None
    return inputs


def _run(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    inputs = _given(args.input) if args.input else random_inputs(model.inputs(args.signature), args.seed)
    outputs = model.run(inputs, args.signature)
    if args.save_state:
        model.save_state(args.save_state)
    if args.output:
        import io

        from lite_runtime._files import write_atomically

        held = io.BytesIO()
        np.savez(held, **outputs)  # type: ignore[arg-type]
        write_atomically(Path(args.output), held.getvalue())
    return {
        name: {"dtype": str(a.dtype), "shape": list(a.shape), "first": a.ravel()[:8].tolist()}
        for name, a in outputs.items()
    }


def _program(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    """The native program of a signature, step by step; open sizes are 1."""
    from lite_runtime.native import tuning
    from lite_runtime.native.target import host
    from lite_runtime.planning.listing import listed, planned
    from lite_runtime.targets import PLAIN

    if args.signature not in model.bundle.signatures:
        raise InputError(f"no signature {args.signature!r}; this model has {', '.join(model.bundle.signatures)}")
    graph = model.bundle.signatures[args.signature]
    made = planned(graph, {}, target=host() or PLAIN, choose=tuning.Choices(tuning.kept()))
    steps = [step.plain() for step in listed(made)]
    return {args.signature: {"steps": steps, "arena_bytes": made.arena_bytes, "words": len(made.program)}}


def _inspect(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    if args.program:
        return _program(model, args)

    def described(values: Sequence[Value]) -> dict[str, Any]:
        return {v.name: {"dtype": v.dtype, "shape": None if v.shape is None else list(v.shape)} for v in values}

    report: dict[str, Any] = {}
    held = model.bundle
    for name, graph in held.signatures.items():
        counts: dict[str, int] = {}
        for node in graph.walk():
            counts[node.op] = counts.get(node.op, 0) + 1
        use = held.uses.get(name)
        report[name] = {
            "inputs": described(model.inputs(name)),
            "outputs": described(model.outputs(name)),
            "reads": sorted(use.reads.values()) if use else [],
            "writes": sorted(use.writes.values()) if use else [],
            "operators": dict(sorted(counts.items())),
            "constant_bytes": sum(a.nbytes for a in graph.constants.values()),
        }
    return report


def _bench(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    inputs = _given(args.input) if args.input else random_inputs(model.inputs(args.signature), args.seed)
    start = time.perf_counter()
    model.run(inputs, args.signature)
    first = time.perf_counter() - start
    times: list[float] = []
    until = time.perf_counter() + args.seconds
    while len(times) < 10 or time.perf_counter() < until:
        start = time.perf_counter()
        model.run(inputs, args.signature)
        times.append(time.perf_counter() - start)
    cost = model.cost(inputs, args.signature)
    return {
        "first_ms": round(first * 1e3, 3),
        "median_us": round(statistics.median(times) * 1e6, 2),
        "best_us": round(min(times) * 1e6, 2),
        "runs": len(times),
        "arena_bytes": cost.arena_bytes,
        "native_nodes": cost.native,
        "reference_nodes": list(cost.reference),
    }


def _verify(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    """The golden samples of all signatures: by output, the largest difference of what this machine computes. Raises
    MsedgeError for one that is larger than is allowed."""
    if not model.bundle.golden:
        raise InputError("this bundle holds no golden sample; convert the model again")
    allowed, report = tolerance_of(model.bundle), dict[str, Any]()
    for name, got, expected in sampled(model, model.signatures):
        for output, array in expected.items():
            if problem := difference(got[output], array, allowed):
                raise MsedgeError(
                    f"output {output!r} of {name!r} differs from the golden sample: {problem}; the file was changed, or"
                    " this machine computes wrongly"
                )
            if array.dtype.kind in "iuf":
                at = np.isfinite(array)
                apart = np.abs(got[output][at].astype(np.float64) - array[at])
                report.setdefault(name, {})[output] = float(apart.max(initial=0))
    return {"allowed": allowed, "backend": args.backend, "largest_difference": report}


_COMMANDS = {"run": _run, "inspect": _inspect, "bench": _bench, "verify": _verify}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lite_runtime", description="Run, inspect, time or verify a bundle."
    )
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("model", help="a .mslite file")
    parser.add_argument("-i", "--input", action="append", metavar="NAME=FILE.npy", help="an input (default: random)")
    parser.add_argument("-o", "--output", metavar="FILE.npz", help="run: save the outputs")
    parser.add_argument("--signature", default="predict")
    parser.add_argument("--state", metavar="FILE", help="initial state, saved by an earlier run")
    parser.add_argument("--save-state", metavar="FILE", help="run: save the final state")
    parser.add_argument("--program", action="store_true", help="inspect: the planned program of --signature by name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    parser.add_argument("--seconds", type=float, default=1.0, help="bench: how long to measure")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 success, 3 the model could not run; argparse exits with 2 on usage errors. JSON on
    stdout."""
    args = _parser().parse_args(arguments)
    try:
        model = load(args.model, threads=args.threads, backend=args.backend, state=args.state)
        report = _COMMANDS[args.command](model, args)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
