"""`python -m benchmarks.accuracy --models DIR --data DIR [--only WORD…] [--json]`: accuracy of int8 models.

The contenders are all calibrated on the same rows and evaluated on other rows:

    fp32           the source
    msedge         convert(quantize="int8") with its defaults
    onnxruntime    quantize_static, QDQ, per channel, min-max, after its own pre-processing
    minmax         plain min-max int8, as LiteRT's converter does: the .tflite that its authors published if there is
                   one, else our quantiser with every refinement switched off

`--peers` adds what is installed of onnxruntime's other methods, NNCF (on OpenVINO) and ai-edge-quantizer (for .tflite
sources); `--seeds N` repeats with N calibration sets, drawn from the calibration rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tasks import Rows, Task, tasks
from edge.cli.output import emit
from edge.peers.oracle import Oracle
from lite_runtime.graph import Array

__all__ = ["Score", "contenders", "markdown", "sampled", "scores"]

Outputs = dict[str, Array]
Run = Callable[[Rows], Outputs]


@dataclass(frozen=True)
class Score:
    """One contender on one task. `snr`: the signal-to-noise ratio relative to fp32's outputs in decibels, the mean over
    outputs."""

    task: str
    contender: str
    size: int
    """Bytes of the file."""
    snr: float
    metric: float | None
    unit: str


def scores(task: Task, *, peers: bool = False) -> Iterator[Score]:
    """The scores of all contenders, fp32 first."""
    expected: Outputs = {}
    for name, size, run in contenders(task, peers=peers):
        outputs = run(task.evaluation)
        expected = expected or outputs
        figure = task.metric.of(outputs) if task.metric else None
        yield Score(task.name, name, size, _snr(expected, outputs), figure, task.metric.unit if task.metric else "SNR")


def sampled(task: Task, seed: int) -> Task:
    """The task with three quarters of its calibration rows, drawn at random; all of them for seed 0."""
    count = len(next(iter(task.calibration.values())))
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[: count * 3 // 4]) if seed else np.arange(count)
    return replace(task, calibration={name: array[chosen] for name, array in task.calibration.items()})


def contenders(task: Task, *, peers: bool = False) -> Iterator[tuple[str, int, Run]]:
    """(name, bytes of its file, how to run it). `peers`: also those that need further packages, if installed."""
    from converter import convert
    from converter.quantize import Options

    plain = convert(task.model).bundle
    yield "fp32", task.model.stat().st_size, _ours(plain)
    ours = convert(task.model, quantize="int8", calibration=task.calibration).bundle
    yield "msedge", len(ours), _ours(ours)
    theirs = _quantize_static(convert(task.model, to="onnx").bundle, task.calibration)
    yield "onnxruntime", len(theirs), _onnxruntime(theirs)
    if task.peer is not None and task.peer.exists():
        yield "minmax", task.peer.stat().st_size, _litert(task.peer)
    else:
        options = Options(mode="int8", method="minmax", equalize=False, bias_correction=False, gptq=False)
        bare = convert(task.model, quantize=options, calibration=task.calibration).bundle
        yield "minmax", len(bare), _ours(bare)
    if peers:
        yield from _peers(task)


def _peers(task: Task) -> Iterator[tuple[str, int, Run]]:
    from converter import convert

    exported = convert(task.model, to="onnx").bundle
    for method in ("Entropy", "Percentile"):
        try:
            made = _quantize_static(exported, task.calibration, method)
        except ValueError as error:  # NumPy's histogram, for a tensor that hardly varies
            print(f"{task.name}: onnxruntime {method.lower()} fails: {error}", file=sys.stderr)
            continue
        yield f"onnxruntime {method.lower()}", len(made), _onnxruntime(made)
    if find_spec("nncf") and find_spec("openvino"):
        for fast in (True, False):
            name = f"nncf {'fast' if fast else 'full'} bias correction"
            try:
                yield name, 0, _nncf(exported, task.calibration, fast)
            except RuntimeError as error:  # OpenVINO 2026.4 refuses some networks that NNCF quantised
                print(f"{task.name}: {name} fails: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
    if find_spec("ai_edge_quantizer") and task.model.suffix == ".tflite":
        try:
            made = _ai_edge(task.model, task.calibration)
        except ValueError as error:  # a model without signatures, for example
            print(f"{task.name}: ai-edge-quantizer fails: {error}", file=sys.stderr)
            return
        with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
            file.write(made)
            file.flush()
            yield "ai-edge-quantizer", len(made), _litert(Path(file.name))


def _nncf(model: bytes, calibration: Rows, fast: bool) -> Run:
    """Post-training quantisation with preset MIXED; weights of 7 bits, which NNCF documents for processors without
    VNNI, on which OpenVINO's products saturate."""
    import nncf  # type: ignore[import-not-found]
    import onnx
    import openvino as ov

    proto = onnx.load_from_string(model)
    attends = sum(node.op_type in ("Softmax", "Attention") for node in proto.graph.node) > 1
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.onnx"
        onnx.save_model(proto, source)
        made = nncf.quantize(
            ov.Core().read_model(source),
            nncf.Dataset(list(_one_by_one(calibration))),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(next(iter(calibration.values()))),
            fast_bias_correction=fast,
            model_type=nncf.ModelType.TRANSFORMER if attends else None,
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE),
        )
        compiled = ov.compile_model(made, "CPU")
    names = [output.any_name for output in compiled.outputs]

    def run(rows: Rows) -> Outputs:
        found = [compiled(row) for row in _one_by_one(rows)]
        return {name: np.concatenate([one[i] for one in found]) for i, name in enumerate(names)}

    return run


def _ai_edge(path: Path, calibration: Rows) -> bytes:
    """Its static recipe: int8 weights per channel, int8 activations."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe  # type: ignore[import-not-found]

    signature, details = next(iter(Interpreter(str(path)).get_signature_list().items()), (None, {"inputs": ["args_0"]}))
    entry = details["inputs"][0]
    made = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
    rows = [{entry: next(iter(row.values()))} for row in _one_by_one(calibration)]
    result = made.quantize(made.calibrate({signature: rows}))
    return bytes(result.quantized_model)


def _one_by_one(rows: Rows) -> Iterator[dict[str, Array]]:
    for i in range(len(next(iter(rows.values())))):
        yield {name: array[i : i + 1] for name, array in rows.items()}


def _gathered(runs: Sequence[Mapping[str, Array]]) -> Outputs:
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def _ours(bundle: bytes) -> Run:
    import lite_runtime

    model = lite_runtime.load(bundle)
    return lambda rows: _gathered([model.run(row) for row in _one_by_one(rows)])


def _onnxruntime(model: bytes) -> Run:
    """With kernels that do not saturate: those of processors without VNNI do, which says nothing of a quantiser."""
    import onnx

    oracle = Oracle(onnx.load_from_string(model))
    return lambda rows: _gathered([oracle.run(row) for row in _one_by_one(rows)])


def _quantize_static(model: bytes, calibration: Rows, method: str = "MinMax") -> bytes:
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = _one_by_one(calibration)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rows, None)

    with tempfile.TemporaryDirectory() as folder:
        source, prepared, out = (Path(folder) / f"{name}.onnx" for name in ("source", "prepared", "out"))
        source.write_bytes(model)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        how = {"quant_format": QuantFormat.QDQ, "calibrate_method": CalibrationMethod[method]}
        try:
            quantize_static(prepared, out, Reader(), per_channel=True, **how)
        except ValueError:  # onnxruntime 1.31 fails for some biases of MatMuls
            quantize_static(prepared, out, Reader(), **how)
        return out.read_bytes()


def _litert(path: Path) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    entry, result = interpreter.get_input_details()[0], interpreter.get_output_details()[0]

    def run(rows: Rows) -> Outputs:
        outputs = []
        for row in _one_by_one(rows):
            interpreter.set_tensor(entry["index"], _stored(next(iter(row.values())), entry))
            interpreter.invoke()
            outputs.append(_real(interpreter.get_tensor(result["index"]), result))
        return {result["name"]: np.concatenate(outputs)}

    return run


def _stored(x: Array, detail: Mapping[str, Any]) -> Array:
    dtype, (scale, zero) = np.dtype(detail["dtype"]), detail["quantization"]
    if dtype.kind == "f":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    stored: Array = np.clip(np.rint(x / np.float32(scale)) + zero, limits.min, limits.max).astype(dtype)
    return stored


def _real(y: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    real: Array = y.copy() if y.dtype.kind == "f" else (y.astype(np.float32) - zero) * np.float32(scale)
    return real


def _snr(expected: Outputs, got: Outputs) -> float:
    from converter.report import Sums

    found = []
    for want, have in zip(expected.values(), got.values(), strict=True):
        sums = Sums()
        sums.add(want, have.reshape(want.shape))
        found.append(sums.snr)
    return float(np.mean(found))


def markdown(results: Sequence[Score]) -> str:
    """One row per task, two columns per contender."""
    names = list(dict.fromkeys(s.contender for s in results))
    lines = [
        "| task | measure | " + " | ".join(f"{n} | KB" for n in names) + " |",
        "|" + "---|" * (2 + 2 * len(names)),
    ]
    for task in dict.fromkeys(s.task for s in results):
        row = {s.contender: s for s in results if s.task == task}
        unit = next(iter(row.values())).unit
        cells = " | ".join(f"{_cell(row[n])} | {row[n].size / 1000:.1f}" for n in names)
        lines.append(f"| {task} | {unit} | {cells} |")
    return "\n".join(lines)


def _cell(score: Score) -> str:
    decibels = "" if score.contender == "fp32" else f"{score.snr:.1f} dB"
    return f"{score.metric:.4f} ({decibels})".replace(" ()", "") if score.metric is not None else decibels or "–"


def main() -> int:
    """Exit codes as msedge's: 0, 3 when there was nothing to measure."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--only", nargs="*", default=(), metavar="WORD", help="only tasks whose names contain one of these"
    )
    parser.add_argument("--peers", action="store_true", help="also the peers that are installed")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="repeat with N calibration sets (1)")
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    args = parser.parse_args()
    results: list[Score] = []
    for task in tasks(args.models, args.data):
        if args.only and not any(word in task.name for word in args.only):
            continue
        for seed in range(args.seeds):
            for score in scores(sampled(task, seed), peers=args.peers):
                score = replace(score, task=f"{score.task}, seed {seed}" if args.seeds > 1 else score.task)
                print(f"{score.task}: {score.contender} {_cell(score)} {score.size}", file=sys.stderr, flush=True)
                results.append(score)
    if not results:
        print(f"error: expected models in {args.models} and their data in {args.data}, found none", file=sys.stderr)
        return 3
    if args.json:
        emit({"scores": [asdict(s) for s in results]})
    else:
        print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
