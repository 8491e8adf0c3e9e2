"""Explanations beside Captum's, on four networks trained here; and how faithful each method is on real data.

    python -m benchmarks.explanations --python PYTHON_WITH_CAPTUM --data DIR --json FILE [--samples 8] [--compared 20]

Networks: two convolutions and two dense layers on MNIST, ResNet-8 (residual sums, batch norm) on MNIST, convolutions
over nine inertial signals, a vision transformer on MNIST. `--python` is an interpreter with torch
and captum, which rebuilds the layers from arrays in a process of its own. Captum has no relevance for attention: the
transformer's is compared with that of lxt, by the authors of AttnLRP, if `--lxt` names a folder with it (`pip install
--no-deps --target FOLDER lxt==2.1`). Printed: the largest difference of attributions, relative to the largest
attribution of each sample, for LRP and Integrated Gradients also that of both from Captum in float64: LRP's rules
divide by what is nearly 0, and at a point of the path a ReLU's input may be 0 but for rounding; CPU seconds
of an explanation, after a first one that is not counted; and, for msedge's methods, the mean figures of faithfulness
over test samples, asked of the bundle.
3 minutes; needs the extras `convert` and `cloud`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import optax

import converter
import lite_runtime
from benchmarks.accuracy.examples import motion
from cloud import zoo
from cloud.audit.victim import from_bundle, from_onnx
from cloud.explain import Composite, GraphSubject, Rule, channel_map, graph_subject, lrp, methods
from cloud.train import Trainer
from edge.measuring.explain import Opened
from lite_runtime._files import write_atomically
from lite_runtime.explaining import (
    blocks,
    infidelity,
    input_x_gradient,
    integrated_gradients,
    kernel_shap,
    occlusion,
    saliency,
    sensitivity_max,
    smoothgrad,
    subject_of,
    wish_for,
)
from lite_runtime.explaining.integrated import Rule as Integral
from lite_runtime.graph import Array

__all__ = ["main"]

INTEGRALS: Mapping[Integral, str] = {
    "gauss_legendre": "gausslegendre", "middle": "riemann_middle", "left": "riemann_left", "right": "riemann_right",
}  # fmt: skip
"""Our rules and Captum's; its trapezoid leaves out a part of the weight, and is not compared."""
POINTS, NOISY, SHAP = 32, 16, 2000
EPSILON = 1e-9
_PEER = Path(__file__).with_name("_explanations_captum.py")


class Case(NamedTuple):
    """A trained network with test samples, and what is occluded together."""

    name: str
    model: ir.Model
    x: Array
    layer: str
    window: tuple[int, ...]
    stride: tuple[int, ...]
    parts: Array
    signed: bool
    """Whether inputs are below 0 too: Captum's rule of positive weights then differs from ours in the first layer."""
    transformer: bool = False
    """Rebuilt as a graph of functions; without Grad-CAM, with relevance by the epsilon rule alone."""


def _trained(
    model: ir.Model, x: Array, y: Array, epochs: int, optimizer: optax.GradientTransformation | None = None
) -> ir.Model:
    trainer = Trainer(model, seed=0, optimizer=optimizer)
    trainer.fit((x, y), epochs, 64)
    found = trainer.export()
    assert isinstance(found, ir.Model)
    return found


def _digits(data: Path) -> tuple[Array, Array, Array]:
    """Images and labels for training, test images."""
    with np.load(data / "mnist.npz") as file:
        x, y = file["x_train"][:12000, None].astype(np.float32) / 255, file["y_train"][:12000].astype(np.int32)
        return x, y, file["x_test"][:200, None].astype(np.float32) / 255


_WINDOW, _STRIDE = (1, 4, 4), (1, 2, 2)


def digits(data: Path) -> Case:
    """Two convolutions and two dense layers."""
    x, y, test = _digits(data)
    b = zoo.Builder("digits", 0)
    h = b.relu(b.conv(b.input("x", ("batch", 1, 28, 28)), 8, 3, stride=2, bias=True, name="first"), name="one")
    h = b.relu(b.conv(h, 16, 3, stride=2, bias=True, name="second"), name="two")
    h = b.relu(b.dense(b.op("Flatten", h, shape=("batch", 784), axis=1), 32, name="hidden"), name="three")
    model = _trained(b.model(logits=b.dense(h, 10, name="head")), x, y, 3)
    return Case("digits", model, test, "two", _WINDOW, _STRIDE, blocks((1, 28, 28), (1, 14, 7)), signed=False)


def residual(data: Path) -> Case:
    """ResNet-8."""
    x, y, test = _digits(data)
    model, parts = _trained(zoo.resnet8(), x[:6000], y[:6000], 2), blocks((1, 28, 28), (1, 14, 7))
    return Case("residual digits", model, test, "stack2.relu", _WINDOW, _STRIDE, parts, signed=False)


def inertial(data: Path) -> Case:
    """Convolutions over time."""
    (x, y), (test, _) = motion(data)
    model, parts = _trained(zoo.window_cnn(), x, y, 3), blocks((9, 1, 128), (9, 1, 16))
    return Case("motion", model, test[::20], "relu_1", (1, 1, 16), (1, 1, 8), parts, signed=True)


def vision(data: Path) -> Case:
    """The zoo's vision transformer and its recipe, smaller: two layers of width 32, patches of 7 pixels."""
    x, y, test = _digits(data)
    epochs, batch = 3, 64
    rate = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 30, epochs * len(x) // batch)
    model = zoo.vit((1, 28, 28), 10, patch=7, width=32, layers=2, heads=4)
    model = _trained(model, x, y, epochs, optax.adamw(rate, weight_decay=0.01))
    parts = blocks((1, 28, 28), (1, 14, 7))
    return Case("vision transformer", model, test, "", _WINDOW, _STRIDE, parts, signed=False, transformer=True)


CASES: Mapping[str, Callable[[Path], Case]] = {
    "digits": digits, "residual": residual, "motion": inertial, "vision": vision,
}  # fmt: skip


# -- the network for the other process ---------------------------------------------------------------------------------


def _steps(model: ir.Model, arrays: dict[str, Array]) -> list[dict[str, Any]]:
    """The graph as steps; the weights go to `arrays`. Raises KeyError for operators that the networks do not have."""
    steps: list[dict[str, Any]] = []
    renamed = {"x": "x"}
    for node in model.graph:
        inputs = [value for value in node.inputs if value is not None]
        own = [value for value in inputs if value.const_value is None]
        if node.op_type == "Flatten":
            steps[-1]["flat"] = True
            renamed[node.outputs[0].name or ""] = steps[-1]["out"]
            continue
        out = (node.outputs[0].name or "").replace(".", "_")
        renamed[node.outputs[0].name or ""] = out
        held = {f"{out}.{i}": v.const_value.numpy() for i, v in enumerate(inputs) if v.const_value is not None}
        arrays |= held
        given = {name: attr.value for name, attr in node.attributes.items() if name in ("strides", "pads", "epsilon")}
        known = {"in": [renamed[value.name or ""] for value in own], "out": out, "weights": list(held), **given}
        steps.append({"op": _KNOWN[node.op_type], **known})
    return steps


def _nodes(model: ir.Model, arrays: dict[str, Array]) -> list[dict[str, Any]]:
    """The graph as it is: operators with the names of their operands; the constants go to `arrays`."""
    held = [value for value in model.graph.initializers.values() if value.const_value is not None]
    arrays |= {f"#{value.name}": value.const_value.numpy() for value in held if value.const_value is not None}
    known = {value.name: f"#{value.name}" for value in held}
    return [
        {
            "op": node.op_type, "out": node.outputs[0].name,
            "in": [known.get(value.name, value.name) for value in node.inputs if value is not None],
            "attributes": {name: _plain(attribute.value) for name, attribute in node.attributes.items()},
        }
        for node in model.graph
    ]  # fmt: skip


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else list(value)


_KNOWN = {op: op for op in ("Add", "BatchNormalization", "Conv", "Gemm", "GlobalAveragePool", "Relu")}


def _mixes(case: Case) -> Mapping[str, Composite]:
    """The mixes of rules that both sides have."""
    if case.transformer:
        return {"epsilon": Composite(Rule("epsilon", EPSILON), Rule("epsilon", EPSILON))}
    epsilon, gamma, plus = Rule("epsilon", EPSILON), Rule("gamma", EPSILON), Rule("z_plus", EPSILON)
    first = epsilon if case.signed else None
    return {
        "epsilon": Composite(epsilon, epsilon), "gamma": Composite(gamma, gamma, first),
        "z_plus": Composite(plus, plus, first), "composite": Composite(plus, epsilon, first),
    }  # fmt: skip


def _ask(
    case: Case, given: Mapping[str, Array], targets: list[int], python: str, lxt: str, folder: Path
) -> tuple[Any, Any]:
    """What Captum says, and lxt of relevance in a transformer: arrays and CPU seconds by method."""
    arrays = dict(given)
    kinds = {
        name: {"conv": mix.convolution.kind, "dense": mix.dense.kind, "first": (mix.first or mix.convolution).kind,
               "epsilon": EPSILON}
        for name, mix in _mixes(case).items()
    }  # fmt: skip
    document = {
        "steps": (_nodes if case.transformer else _steps)(case.model, arrays), "targets": targets,
        "transformer": case.transformer, "relevance": bool(lxt) or not case.transformer,
        "points": POINTS, "integrals": INTEGRALS,
        "window": case.window, "stride": case.stride, "layer": case.layer.replace(".", "_"), "shap_samples": SHAP,
        "lrp": kinds,
    }  # fmt: skip
    (folder / "case.json").write_text(json.dumps(document))
    np.savez(folder / "case.npz", **arrays)  # type: ignore[arg-type]
    environment = {"OMP_NUM_THREADS": "1", **({"PYTHONPATH": lxt} if lxt else {})}
    subprocess.run([python, "-P", "-W", "ignore", str(_PEER), str(folder)], check=True, env=environment)
    with np.load(folder / "captum.npz") as file:
        return {name: file[name] for name in file.files}, json.loads((folder / "captum.json").read_text())


# -- both sides --------------------------------------------------------------------------------------------------------


def _ours(case: Case, subject: GraphSubject, given: Mapping[str, Array]) -> dict[str, Callable[[Array, int], Array]]:
    zeros = np.zeros_like(given["samples"][0])
    made: dict[str, Callable[[Array, int], Array]] = {
        "saliency": lambda x, t: saliency(subject, x, t).attributions,
        "input_x_gradient": lambda x, t: input_x_gradient(subject, x, t).attributions,
        "smoothgrad": lambda x, t: smoothgrad(subject, x, t, noise=given["noise"]).attributions,
        "occlusion": lambda x, t: occlusion(
            subject, x, t, baseline=zeros, window=case.window, stride=case.stride
        ).attributions,
        "kernel_shap": lambda x, t: kernel_shap(
            subject, x, t, baseline=zeros, parts=case.parts, samples=SHAP
        ).attributions * np.bincount(case.parts.reshape(-1))[case.parts],
    }  # fmt: skip
    if not case.transformer:
        made["grad_cam"] = lambda x, t: channel_map(subject, x, t, case.layer)[0][None]
    for rule in INTEGRALS:
        made[f"integrated_gradients {rule}"] = partial(_integral, subject, zeros, rule)
    for name, mix in _mixes(case).items():
        made[f"lrp {name}"] = partial(_relevance, subject, mix)
    return made


def _integral(subject: GraphSubject, zeros: Array, rule: Integral, x: Array, target: int) -> Array:
    return integrated_gradients(subject, x, target, baselines=zeros, steps=POINTS, rule=rule).attributions


def _relevance(subject: GraphSubject, mix: Composite, x: Array, target: int) -> Array:
    return lrp(subject, x, target, rules=mix).attributions


def compared(case: Case, count: int, python: str, lxt: str = "") -> dict[str, Any]:
    """Differences and CPU seconds by method, both sides on the same samples."""
    random = np.random.default_rng(0)
    x = case.x[:: max(1, len(case.x) // count)][:count]
    given = {
        "samples": x, "noise": random.standard_normal((NOISY, *x.shape[1:]), np.float32) * np.float32(0.1),
        "parts": case.parts, "removed": random.random((32, *x.shape[1:])) < 0.3,
        "changes": random.uniform(-0.02, 0.02, (8, *x.shape[1:])).astype(np.float32),
    }  # fmt: skip
    subject = graph_subject(from_onnx(case.model, case.name))
    scores = subject.scores(x)
    targets = scores.argmax(1).tolist()
    with tempfile.TemporaryDirectory() as folder:
        theirs, their_seconds = _ask(case, given, targets, python, lxt, Path(folder))
    found: dict[str, Any] = {"scores": {"difference": float(np.abs(scores - theirs["scores"]).max())}}
    for name, method in _ours(case, subject, given).items():
        if name not in theirs:
            continue
        method(x[0], targets[0])
        begin = process_time()
        rows = [method(one, target) for one, target in zip(x, targets, strict=True)]
        seconds = (process_time() - begin) / len(rows)
        far = _farthest(rows, theirs[name])
        found[name] = {"difference": far, "seconds": seconds, "captum_seconds": their_seconds[name]}
        if f"{name} float64" in theirs:
            exact = theirs[f"{name} float64"]
            found[name]["captum_rounding"] = _farthest(theirs[name], exact)
            found[name]["rounding"] = _farthest(rows, exact)
    own = saliency(subject, x[0], targets[0]).attributions
    missed = infidelity(subject, x[0], targets[0], own, given["removed"], baseline=np.zeros_like(x[0]), slopes=True)
    moved = sensitivity_max(lambda one: saliency(subject, one, targets[0]).attributions, x[0], changes=given["changes"])
    for name, value in (("infidelity", missed), ("sensitivity", moved)):
        found[name] = {"difference": abs(value / float(theirs[name][0]) - 1), "value": value}
    return found


def _farthest(rows: Iterable[Array], others: Iterable[Array]) -> float:
    """The largest difference, relative to the largest magnitude of each of the others."""
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in zip(rows, others, strict=True))


def on_device(case: Case, count: int) -> dict[str, float]:
    """CPU seconds of an explanation by the bundle's own signature, on the device runtime."""
    model = lite_runtime.load(converter.convert(case.model, explainable=True).bundle)
    subject = subject_of(model)
    x, zeros = case.x[:count], np.zeros_like(case.x[0])
    found = {}
    methods_of_it: Mapping[str, Callable[[Array], Any]] = {
        "saliency": lambda one: saliency(subject, one, 0),
        "integrated_gradients gauss_legendre": lambda one: integrated_gradients(
            subject, one, 0, baselines=zeros, steps=POINTS
        ),
    }
    for name, method in methods_of_it.items():
        method(x[0])
        begin = process_time()
        for one in x:
            method(one)
        found[name] = (process_time() - begin) / len(x)
    return found


def faithfulness(case: Case, count: int) -> dict[str, dict[str, float]]:
    """Mean figures by method over test samples, asked of the float bundle on the device runtime."""
    data = converter.convert(case.model).bundle
    deployed = subject_of(lite_runtime.load(data), case.name)
    models = Opened(deployed, graph_subject(from_bundle(data)), methods(), "by JAX")
    sums: dict[str, list[list[float]]] = {}
    for x in case.x[:: max(1, len(case.x) // count)][:count]:
        told = models.run(x, wish_for(deployed, x), ["all"], compare=True)
        for one in told.asked:
            assert one.faithful is not None
            figures = one.faithful
            row = [figures.curves.insertion_area, figures.curves.deletion_area, figures.infidelity]
            sums.setdefault(one.explanation.method, []).append([*row, figures.sensitivity or 0.0])
    names = ("insertion", "deletion", "infidelity", "sensitivity")
    return {name: dict(zip(names, np.mean(rows, 0).tolist(), strict=True)) for name, rows in sums.items()}


def _print(name: str, found: Mapping[str, Any]) -> None:
    print(
        f"\n{name}\n\n| | largest difference | ours from float64 | Captum's | CPU ms "
        "| Captum's | on the device runtime |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for method, row in found["compared"].items():
        times = [f"{1e3 * row[key]:.2f}" if key in row else "" for key in ("seconds", "captum_seconds")]
        own = found["on_device"].get(method)
        exact = [f"{row[key]:.1e}" if key in row else "" for key in ("rounding", "captum_rounding")]
        cells = [f"{row['difference']:.1e}", *exact, *times, "" if own is None else f"{1e3 * own:.2f}"]
        print(f"| {method} | {' | '.join(cells)} |")
    print("\n| | insertion | deletion | infidelity | sensitivity |\n| --- | ---: | ---: | ---: | ---: |")
    for method, row in found["faithfulness"].items():
        print(f"| {method} | {' | '.join(f'{value:.3f}' for value in row.values())} |")


def main(args: list[str] | None = None) -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter with torch and captum")
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz and har_30_subjects.npz")
    parser.add_argument("--lxt", default="", help="a folder with the package lxt")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=8, help="samples that both sides explain")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="some of the networks")
    parser.add_argument("--compared", type=int, default=20, help="samples of the figures of faithfulness")
    given = parser.parse_args(args)
    found = {}
    for make in map(CASES.__getitem__, given.only):
        case = make(given.data)
        found[case.name] = {
            "compared": compared(case, given.samples, given.python, given.lxt),
            "on_device": on_device(case, given.samples),
            "faithfulness": faithfulness(case, given.compared),
        }
        _print(case.name, found[case.name])
    write_atomically(given.json, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
