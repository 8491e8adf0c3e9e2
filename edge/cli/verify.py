"""`msedge verify`: compare a bundle with its source model, which the reference runtime of its format runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import BackendName, Custom, InputShapes, Json, Seed, Threads, read_shapes
from edge.cli.output import console, emit, say, shape_text, table

if TYPE_CHECKING:
    from onnx import ModelProto

    from edge.measuring.layers import Layer
    from edge.measuring.parity import Difference, Divergence
    from lite_runtime import Model
    from lite_runtime.bundle import Bundle
    from lite_runtime.graph import Array, Graph

__all__ = ["verify"]


_Data: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE.npz",
        help="Inputs by name, of a language model a text in UTF-8; default: random inputs, or a text of msedge's.",
    ),
]
_Samples: TypeAlias = Annotated[
    int, typer.Option("--samples", min=1, metavar="K", help="Largest number of runs, or of windows of a text.")
]
_Tolerance: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0.0,
        help="Largest allowed difference, relative to an output's range; default: by the bundle's precision.",
    ),
]
_Absolute: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--absolute",
        min=0.0,
        help="Differences up to this one are allowed whatever the range; default: 4.8e-07, rounding of float32.",
    ),
]


def verify(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="The bundle's source: what `convert` reads, or another bundle. Alone: the bundle."
        ),
    ],
    bundle: Annotated[Path | None, typer.Argument(metavar="[M.mslite]", help="The bundle.")] = None,
    data: _Data = None,
    samples: _Samples = 3,
    tolerance: _Tolerance = None,
    absolute: _Absolute = None,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Also compare every layer that both have: signal-to-noise ratio, cosine."),
    ] = False,
    seed: Seed = 0,
    input_shape: InputShapes = None,
    threads: Threads = 1,
    backend: BackendName = "auto",
    custom: Custom = None,
    as_json: Json = False,
) -> None:
    """Compare a bundle with its source model, element by element; a bundle alone, with the golden sample that it holds.

    If they differ, shows the first operator with a different result; exit code 1. In quantised outputs, one integer
    in a thousand may differ by one quantisation step. Larger differences are rounding if the source differs from
    itself by as much where its inputs change in their last bits. Language models: their logits beside those of the
    source's numbers in float32.
    """
    if bundle is None:
        _need_none("a bundle alone has its golden sample", data=data, layers=layers, input_shape=input_shape)
        from edge.cli.verify_sample import verify_sample

        verify_sample(source, threads, backend, tolerance, as_json)
        return
    import lite_runtime

    model = lite_runtime.load(bundle, threads=threads, backend=backend)
    if "language" in model.bundle.metadata:
        _need_none("logits of a language model are compared", absolute=absolute, layers=layers, input_shape=input_shape)
        from edge.cli.verify_language import Asked, verify_language

        verify_language(source, model, Asked(data, samples, tolerance, seed, threads, as_json))
        return
    inputs = _inputs(data, model.bundle.at_first("predict"), seed, read_shapes(input_shape), samples)
    found, along = _compared(source, model, inputs, (tolerance, absolute), layers and bundle, (threads, backend))
    if as_json:
        emit(_as_json(found, along))
    else:
        _print(found, along)
    if not found.same:
        raise typer.Exit(CHECK_FAILED)


def _compared(
    source: Path,
    model: Model,
    runs: Sequence[dict[str, Array]],
    bounds: tuple[float | None, float | None],
    layered: Path | Literal[False],
    where: tuple[int, str],
) -> tuple[Verdict, tuple[list[Layer], Layer | None] | None]:
    """bounds: the relative and the absolute one, None for the usual one; layered: the bundle's path, to compare its
    layers as well; where: threads and backend."""
    from edge.measuring.parity import ROUNDING, compare_all, first_divergence, worst
    from edge.measuring.rounding import is_rounding
    from edge.peers.oracle import Oracle
    from edge.peers.stream import carrying, with_initial

    (relative, absolute), (threads, backend), held = bounds, where, model.bundle
    allowed = Allowed(
        _tolerance(held.provenance) if relative is None else relative, ROUNDING if absolute is None else absolute
    )
    oracle = _oracle(source, threads, backend)
    names = frozenset(v.name for v in oracle.inputs) if isinstance(oracle, Oracle) else frozenset()
    wanted = carrying(oracle.run, held, names)
    compared = [compare_all(model.run(inputs), wanted(inputs), steps=1) for inputs in _told(runs)]
    failed = next((i for i, run in enumerate(compared) if not all(d.within(*allowed) for d in run)), None)
    far = [d for run in compared for d in run if not d.within(*allowed)]
    own = _moved_alone(source, runs, held, names, threads, backend) if far else {}
    same = is_rounding(far, own)
    divergence = None
    if failed is not None and not same and isinstance(oracle, Oracle):
        say("searching for the first operator with a different result")
        divergence = first_divergence(
            oracle.model, held.at_first("predict"), runs[failed], allowed.relative,
            given=with_initial(runs[failed], held, names), threads=threads, backend=backend,
        )  # fmt: skip
    row, along = runs[failed or 0], None
    if layered:
        along = _layers(((source, with_initial(row, held, names)), (layered, row)), threads, backend)
    return Verdict(worst(compared), allowed, len(runs), same, own, divergence), along


def _need_none(why: str, **given: object) -> None:
    """Refuse options that have no effect."""
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False, [])]
    if used:
        raise typer.BadParameter(f"{', '.join(used)}: {why}; omit it")


class Allowed(NamedTuple):
    """A difference is allowed if it is at most `absolute`, or at most the share `relative` of the output's range."""

    relative: float
    absolute: float


class Verdict(NamedTuple):
    """The worst row of each output over all runs, and whether they are the same; `own`: if an output differs by more
    than allowed, by how much the source's own outputs move where its inputs change in their last bits."""

    rows: Sequence[Difference]
    allowed: Allowed
    runs: int
    same: bool
    own: Mapping[str, float]
    divergence: Divergence | None

    def of(self, row: Difference) -> str:
        """What is said of one output."""
        if row.within(*self.allowed):
            return "ok"
        return "rounding" if self.same else f"differs at {list(row.at)} {row.why}".rstrip()


_TOLERANCES = {"none": 1e-4, "fp16": 1e-2, "w8": 5e-2, "int16x8": 5e-2}
"""Allowed rounding error by quantisation mode, relative to an output's range."""
_COARSE = 0.25
_REAL = ("float16", "float32", "float64", "bfloat16")


def _tolerance(provenance: Mapping[str, Any]) -> float:
    options = provenance.get("options")
    mode = options.get("mode", options.get("quantize", "none")) if isinstance(options, Mapping) else "none"
    return _TOLERANCES.get(str(mode), _COARSE)


def _oracle(source: Path, threads: int, backend: str) -> Any:
    """The runtime of the source: LiteRT, ONNX Runtime, or our own for a bundle. Formats that neither of them reads are
    compared as the ONNX model that they become."""
    import lite_runtime
    from edge.measuring.contest import is_bundle
    from edge.peers.litert import LiteRT, is_tflite
    from edge.peers.oracle import Oracle, is_ort

    if is_bundle(source):
        return lite_runtime.load(source, threads=threads, backend=backend)
    if source.is_file() and is_tflite(source):
        return LiteRT(source, threads=threads)
    import onnxruntime  # noqa: F401 # before the converter, whose packages are a smaller extra

    from converter.frontends import format_of

    return Oracle(source if is_ort(source) or format_of(source) is None else _as_onnx(source), threads=threads)


def _moved_alone(
    source: Path,
    runs: Sequence[Mapping[str, Array]],
    held: Bundle,
    names: frozenset[str],
    threads: int,
    backend: str,
) -> dict[str, float]:
    """By output, how far the source moves by rounding alone, in the runtime that has it."""
    from edge.measuring.rounding import own_differences
    from edge.peers.litert import PLAINER, LiteRT
    from edge.peers.oracle import Oracle
    from edge.peers.stream import Runner, carrying

    say("the outputs differ; running the source alone with inputs that change in their last bits")
    first = _oracle(source, threads, backend)

    def start() -> Runner:  # other runtimes may keep state
        again = first if isinstance(first, Oracle) else _oracle(source, threads, backend)
        return carrying(again.run, held, names)

    def plain() -> Runner:
        if isinstance(first, Oracle):
            return carrying(Oracle(first.model, threads=threads, optimised=False).run, held, names)
        return carrying(LiteRT(source, threads=threads, kernels=PLAINER[first.kernels]).run, held, names)

    return own_differences(start, runs, [plain] if isinstance(first, Oracle | LiteRT) else ())


def _as_onnx(source: Path) -> ModelProto:
    import onnx

    from converter import convert

    return onnx.load_from_string(convert(source, to="onnx").bundle)


def _layers(
    sides: Sequence[tuple[Path, Mapping[str, Array]]], threads: int, backend: str
) -> tuple[list[Layer], Layer | None]:
    """sides: the source and the bundle, each with its inputs."""
    from edge.measuring.layers import layers, parting, values_of

    found = list(layers(*(values_of(path, row, threads=threads, backend=backend) for path, row in sides)))
    return found, parting(found)


def _inputs(
    data: Path | None, graph: Graph, seed: int, shapes: Mapping[str, Sequence[int]], count: int
) -> Sequence[dict[str, Array]]:
    import numpy as np

    from edge.measuring.samples import draw, ranges_of, read_arrays, samples_in

    if data is not None:
        return list(islice(samples_in(read_arrays(data), graph.inputs), count))
    rng, ranges = np.random.default_rng(seed), ranges_of(graph)
    return [draw(graph.inputs, rng, shapes, ranges) for _ in range(count)]


def _told(runs: Sequence[dict[str, Array]]) -> Iterator[dict[str, Array]]:
    """The runs, each announced."""
    for number, inputs in enumerate(runs, 1):
        say(f"run {number} of {len(runs)}")
        yield inputs


def _as_json(found: Verdict, along: tuple[list[Layer], Layer | None] | None) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "same": found.same,
        "tolerance": found.allowed.relative,
        "absolute": found.allowed.absolute,
        "runs": found.runs,
        "outputs": [asdict(row) for row in found.rows],
        "own_differences": dict(found.own),
        "first_divergence": found.divergence and asdict(found.divergence),
        **({} if along is None else {"layers": [asdict(r) for r in along[0]], "part_at": along[1] and along[1].name}),
    }


def _print_layers(along: tuple[list[Layer], Layer | None]) -> None:
    rows, part = along
    shown = table(
        "", "value", "source", "bundle", "signal to noise", "", "cosine", right=("signal to noise", "cosine"),
        fold=("value",),
    )  # fmt: skip
    for row in rows:
        bar = "█" * max(0, min(20, round(row.snr / 3)))
        mark = " ◄" if part is not None and row.name == part.name else ""
        decibels = "equal" if row.snr >= 200 else f"{row.snr:.1f} dB"
        shown.add_row(row.name, row.reference_op, row.other_op, decibels, bar + mark, f"{row.cosine:.5f}")
    shown.caption = f"{len(rows)} values that both graphs name, in order of computation"
    shown.caption_justify = "left"
    console().print(shown)
    if part is not None:
        ops = f"{part.reference_op} in the source, {part.other_op} in the bundle"
        print(f"the quality drops at {part.name!r}: {part.snr:.1f} dB, {ops}")


def _print(found: Verdict, along: tuple[list[Layer], Layer | None] | None) -> None:
    if along is not None:
        _print_layers(along)
    shown = table(
        "", "output", "dtype", "shape", "max |difference|", "of range", "", right=("max |difference|", "of range"),
        fold=("output", ""),
    )  # fmt: skip
    for row in found.rows:
        size, share = f"{row.largest:.3g}", f"{row.relative:.2g}"
        shown.add_row(row.name, row.dtype, shape_text(row.shape), size, share, found.of(row))
    console().print(shown)
    runs, allowed = found.runs, found.allowed
    verdict = "DIFFERENT by more than" if not found.same else "rounding: more than" if found.own else "equal within"
    limits = f"{allowed.relative:g} of each output's range, or {allowed.absolute:.2g}"
    print(f"{verdict} {limits}, over {runs} run{'s' * (runs != 1)}")
    if found.same and found.own:
        own = [(row, found.own[row.name]) for row in found.rows if row.name in found.own]
        moved = ", ".join(
            f"{row.name!r} " + (f"by up to {far:.2g}" if row.dtype in _REAL else f"in up to {far:.2%} of the elements")
            for row, far in own
        )
        print(f"the source alone moves as far, where its inputs change in their last bits or in other kernels: {moved}")
    elif (divergence := found.divergence) is not None:
        first = divergence.difference
        origin = f"{divergence.source_op} {divergence.source_node}".strip()
        print(f"first difference: {first.name!r}, {first.why or f'{first.relative:.2g} of its range'}")
        print(f"  computed by {origin} in the source, by {divergence.lite_node} in the bundle")
        print(f"  shared values that agree: {divergence.agreeing}")
    elif not found.same:
        print("no value that both graphs name differs by that much: the error builds up, or starts at a renamed value")
