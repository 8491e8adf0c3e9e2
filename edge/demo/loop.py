"""The demo on real data: train in the cloud engine, convert, run the bundle as on a device, compare the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lite_runtime.graph import Array

if TYPE_CHECKING:
    from cloud.train import DigitsRun, EpochReport
    from cloud.train.inputs.digits import DigitsSplit
    from edge.demo.fleet_loop import FleetOutcome
    from edge.demo.serve_loop import ServeOutcome
    from edge.measuring.measure import Ratio

__all__ = ["ACCURACY", "LOGITS", "Outcome", "run_loop"]

ACCURACY, LOGITS, LOST = 0.97, 1e-4, 0.01
"""Criteria of success: the lowest accuracy on held-out digits, the largest difference between the device's and the
cloud's logits, and the largest loss of accuracy by int8."""
CALIBRATION = 200
"""Number of training digits used for calibration."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The demo's results; those of ONNX Runtime are None if it is not installed. Times are seconds for one image."""

    parameters: int
    trained_on: int
    held_out: int
    accuracy_cloud: float
    accuracy_device: float
    accuracy_onnxruntime: float | None
    difference_device: float
    difference_onnxruntime: float | None
    onnx_bytes: int
    bundle_bytes: int
    arena_bytes: int
    latency_device: float
    latency_onnxruntime: float | None
    ratio: Ratio | None
    accuracy_int8: float
    int8_bytes: int
    arena_int8: int
    latency_int8: float
    ratio_int8: Ratio | None
    """Ratios of ONNX Runtime's time for the float model to our time for the int8 model."""
    fleet: FleetOutcome
    served: ServeOutcome

    @property
    def ok(self) -> bool:
        """Whether the device's and the cloud's models are accurate, the fleet learned, and the gateway answered
        correctly."""
        return self._model_ok and self.fleet.ok and self._served_ok

    @property
    def _model_ok(self) -> bool:
        good = min(self.accuracy_cloud, self.accuracy_device) >= ACCURACY and self.difference_device <= LOGITS
        return good and self.accuracy_int8 >= self.accuracy_device - LOST

    @property
    def _served_ok(self) -> bool:
        """Whether answers over HTTP equal the device's, and those of personal versions are better than the common
        model's."""
        return self.served.ok and abs(self.served.everybody.accuracy - self.accuracy_device) < LOST

    def as_dict(self) -> dict[str, Any]:
        """All results and whether the demo succeeded, as plain values."""
        figures = {"ok": self.ok, **asdict(self)}
        verdicts = {"fleet": self.fleet.ok, "served": self._served_ok}
        return figures | {name: {"ok": verdict, **figures[name]} for name, verdict in verdicts.items()}


def run_loop(
    folder: Path,
    *,
    epochs: int,
    seed: int,
    threads: int,
    say: Callable[[str], None],
    progress: Callable[[EpochReport], None],
    compiled: Callable[[int, int], None] = lambda done, count: None,
) -> Outcome:
    """Train ResNet-8 on scikit-learn's digits, convert it and run it as on a device. Writes to `folder`: digits.onnx,
    digits.mslite, digits.int8.mslite and its report digits.int8.html; and from the fleet: fleet.mslite, fleet.json,
    fleet.html, global.mslite and personal.sqlite. Missing kernels are compiled at the same time; `compiled` is called
    from another thread with the number of kernel families done and the total."""
    from edge.demo.kernels import preparing

    with preparing(compiled) as wait:
        say("cloud: training ResNet-8 on handwritten digits")
        from cloud.train import train_digits

        run = train_digits(seed, epochs=epochs, progress=progress)
        wait()
    return _to_device(run, folder, threads, say)


def _to_device(run: DigitsRun, folder: Path, threads: int, say: Callable[[str], None]) -> Outcome:
    import onnx_ir as ir

    import lite_runtime
    from converter import convert
    from converter.report import page
    from edge.demo.fleet_loop import askew, run_fleet
    from edge.demo.serve_loop import run_serve
    from edge.measuring.measure import interleave, ratio

    say("converter: ONNX to one bundle")
    source, bundle, small = folder / "digits.onnx", folder / "digits.mslite", folder / "digits.int8.mslite"
    ir.save(run.trainer.export(), source)
    convert(source, output=bundle)
    say("converter: the same in int8, calibrated on digits it was trained on")
    quantized = convert(
        source, output=small, quantize="int8", calibration=np.asarray(run.split.x)[:CALIBRATION], explain=True
    )
    (folder / "digits.int8.html").write_text(page(quantized.report))
    say("device: loading the bundles, running the held-out digits")
    device, integer = (lite_runtime.load(path, threads=threads) for path in (bundle, small))
    runners = {"device": device.run, "int8": integer.run, **_peer(source, threads)}
    x, y = run.split.held_out_x, run.split.held_out_y
    (name,) = (value.name for value in device.inputs())
    results = {who: next(iter(call({name: x}).values())) for who, call in runners.items()}
    say("device: timing one image")
    one = {name: x[:1]}
    timings = interleave({who: partial(call, one) for who, call in runners.items()}, seconds=5.0)
    learned_from, aside = askew(*_everything(run.split), name)
    fleet = run_fleet(source, learned_from, folder, say)
    served = run_serve(folder, (x, y), aside, threads, say)
    logits = run.trainer.predict(x)
    peer = "onnxruntime" if "onnxruntime" in runners else None
    return Outcome(
        parameters=sum(int(np.size(array)) for array in run.trainer.params.values()),
        trained_on=len(run.split.x),
        held_out=len(x),
        accuracy_cloud=_accuracy(logits, y),
        accuracy_device=_accuracy(results["device"], y),
        accuracy_onnxruntime=_accuracy(results[peer], y) if peer else None,
        difference_device=_difference(results["device"], logits),
        difference_onnxruntime=_difference(results[peer], logits) if peer else None,
        onnx_bytes=source.stat().st_size,
        bundle_bytes=bundle.stat().st_size,
        arena_bytes=device.cost(one).arena_bytes,
        latency_device=timings["device"].median,
        latency_onnxruntime=timings[peer].median if peer else None,
        ratio=ratio(timings["device"], timings[peer]) if peer else None,
        accuracy_int8=_accuracy(results["int8"], y),
        int8_bytes=small.stat().st_size,
        arena_int8=integer.cost(one).arena_bytes,
        latency_int8=timings["int8"].median,
        ratio_int8=ratio(timings["int8"], timings[peer]) if peer else None,
        fleet=fleet,
        served=served,
    )


def _everything(split: DigitsSplit) -> tuple[Array, Array]:
    """All images and labels."""
    return np.concatenate([split.x, split.held_out_x]), np.concatenate([split.y, split.held_out_y])


def _peer(source: Path, threads: int) -> dict[str, Callable[[Mapping[str, Array]], dict[str, Any]]]:
    """ONNX Runtime on the trained model; empty if it is not installed."""
    if find_spec("onnxruntime") is None:
        return {}
    from edge.peers.oracle import Oracle

    return {"onnxruntime": Oracle(source, threads=threads).run}


def _accuracy(logits: Array, labels: Array) -> float:
    return float((logits.argmax(axis=-1) == labels).mean())


def _difference(a: Array, b: Array) -> float:
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
