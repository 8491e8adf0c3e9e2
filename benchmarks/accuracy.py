"""`python -m benchmarks.accuracy --models DIR --data DIR [--only WORD…] [--json]`: accuracy of int8 models.

The contenders are all calibrated on the same rows and evaluated on other rows:

    fp32           the source
    msedge         convert(quantize="int8") with its defaults
    onnxruntime    quantize_static, QDQ, per channel, min-max, after its own pre-processing
    minmax         plain min-max int8, as LiteRT's converter does: the .tflite that its authors published if there is
                   one, else our quantiser with every refinement switched off
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tasks import Rows, Task, tasks
from edge.cli.output import emit
from lite_runtime.graph import Array

__all__ = ["Score", "contenders", "markdown", "scores"]

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


def scores(task: Task) -> Iterator[Score]:
    """The scores of all contenders, fp32 first."""
    expected: Outputs = {}
    for name, size, run in contenders(task):
        outputs = run(task.evaluation)
        expected = expected or outputs
        figure = task.metric.of(outputs) if task.metric else None
        yield Score(task.name, name, size, _snr(expected, outputs), figure, task.metric.unit if task.metric else "SNR")


def contenders(task: Task) -> Iterator[tuple[str, int, Run]]:
    """(name, bytes of its file, how to run it)."""
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
    import onnxruntime as ort

    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda rows: _gathered([dict(zip(names, session.run(None, row), strict=True)) for row in _one_by_one(rows)])


def _quantize_static(model: bytes, calibration: Rows) -> bytes:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
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
        try:
            quantize_static(prepared, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
        except ValueError:  # onnxruntime 1.31 fails for some biases of MatMuls
            quantize_static(prepared, out, Reader(), quant_format=QuantFormat.QDQ)
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
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    args = parser.parse_args()
    results: list[Score] = []
    for task in tasks(args.models, args.data):
        if args.only and not any(word in task.name for word in args.only):
            continue
        for score in scores(task):
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
