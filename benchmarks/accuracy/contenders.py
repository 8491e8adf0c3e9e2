"""The contenders of the accuracy table: msedge and other quantisers, calibrated on the same rows.

    fp32           the source
    msedge         convert(quantize="int8") with its defaults
    onnxruntime    quantize_static, QDQ, per channel, after its own pre-processing: min-max; with peers also entropy and
                   percentile
    minmax         plain min-max int8, as LiteRT's converter does: the .tflite that its authors published if there is
                   one, else our quantiser with every refinement switched off
    nncf           presets MIXED, fast and full bias correction, on OpenVINO
    ai-edge        ai-edge-quantizer's static int8 recipe, for .tflite sources

Others read the network as standard ONNX, exported by msedge.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.measures import Rows, Task
from edge.peers.oracle import Oracle
from lite_runtime.graph import Array

__all__ = ["CONTENDERS", "FAILURES", "USUAL", "Outputs", "Run", "contenders"]

Outputs = dict[str, Array]
Run = Callable[[Rows], Outputs]


@dataclass(frozen=True)
class _Network:
    """A task's network as contenders read it."""

    task: Task

    @cached_property
    def exported(self) -> bytes:
        """Standard ONNX."""
        from converter import convert

        return convert(self.task.model, to="onnx").bundle

    @property
    def calibration(self) -> Rows:
        """Calibration rows."""
        return self.task.calibration


def contenders(task: Task, names: Sequence[str]) -> Iterator[tuple[str, Callable[[], tuple[int, Run] | None]]]:
    """(name, a function that quantises the network: bytes of the file and how to run it, or None where this contender
    does not take the network)."""
    network = _Network(task)
    for name in names:
        yield name, partial(CONTENDERS[name], network)


def _float(network: _Network) -> tuple[int, Run]:
    from converter import convert

    return network.task.model.stat().st_size, _ours(convert(network.task.model).bundle)


def _msedge(network: _Network, **options: Any) -> tuple[int, Run]:
    from converter import convert
    from converter.quantize import Options

    how = Options(mode="int8", **options)
    made = convert(network.task.model, quantize=how, calibration=network.calibration).bundle
    return len(made), _ours(made)


def _static(network: _Network, method: str) -> tuple[int, Run]:
    made = _quantize_static(network.exported, network.calibration, method)
    return len(made), _onnxruntime(made)


def _minmax(network: _Network) -> tuple[int, Run]:
    """The authors' own .tflite if there is one."""
    peer = network.task.peer
    if peer is not None and peer.exists():
        return peer.stat().st_size, _litert(peer)
    return _msedge(network, method="minmax", equalize=False, bias_correction=False, gptq=False)


def _nncf(network: _Network, fast: bool) -> tuple[int, Run] | None:
    """Post-training quantisation with preset MIXED; weights of 7 bits, which NNCF documents for processors without
    VNNI, on which OpenVINO's products saturate."""
    if not (find_spec("nncf") and find_spec("openvino")):
        return None
    import nncf  # type: ignore[import-not-found]
    import onnx
    import openvino as ov

    proto, calibration = onnx.load_from_string(network.exported), network.calibration
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

    return 0, run


def _ai_edge(network: _Network) -> tuple[int, Run] | None:
    """Its static recipe: int8 weights per channel, int8 activations."""
    path = network.task.model
    if path.suffix != ".tflite" or not find_spec("ai_edge_quantizer"):
        return None
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe  # type: ignore[import-not-found]

    signature, details = next(iter(Interpreter(str(path)).get_signature_list().items()), (None, {"inputs": ["args_0"]}))
    entry = details["inputs"][0]
    made = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
    rows = [{entry: next(iter(row.values()))} for row in _one_by_one(network.calibration)]
    result = made.quantize(made.calibrate({signature: rows}))
    data = bytes(result.quantized_model)
    with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
        file.write(data)
        file.flush()
        return len(data), _litert(Path(file.name))


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


CONTENDERS: Mapping[str, Callable[[_Network], tuple[int, Run] | None]] = {
    "fp32": _float,
    "msedge": _msedge,
    "onnxruntime": partial(_static, method="MinMax"),
    "minmax": _minmax,
    "onnxruntime percentile": partial(_static, method="Percentile"),
    "onnxruntime entropy": partial(_static, method="Entropy"),
    "nncf": partial(_nncf, fast=True),
    "nncf full bias correction": partial(_nncf, fast=False),
    "ai-edge-quantizer": _ai_edge,
}
USUAL = ("fp32", "msedge", "onnxruntime", "minmax")
FAILURES = (ValueError, RuntimeError)
"""What peers raise for networks that they do not take: NumPy's histograms of tensors that hardly vary, OpenVINO for
some networks that NNCF quantised, ai-edge-quantizer for models without signatures."""
