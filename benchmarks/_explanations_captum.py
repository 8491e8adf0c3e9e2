"""A script that `benchmarks/explanations.py` runs as a process: the same explanations by Captum.

Arguments: a folder with case.json (steps of the network, methods) and case.npz (weights, samples, noise, changes).
Writes captum.npz (attributions by method) and captum.json (CPU seconds of an explanation by method).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import torch
from captum.attr import (
    LRP,
    InputXGradient,
    IntegratedGradients,
    KernelShap,
    LayerGradCam,
    Occlusion,
    Saliency,
)
from captum.attr._utils.custom_modules import Addition_Module
from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, GammaRule
from captum.metrics import infidelity, sensitivity_max
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """The steps of a graph, each a layer with the name of its result."""

    def __init__(self, steps: list, arrays: dict) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleDict({step["out"]: _layer(step, arrays) for step in steps})
        self.pads = nn.ModuleDict({step["out"]: _pad(step) for step in steps if any(step.get("pads", ()))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores."""
        values = {"x": x}
        for step in self.steps:
            given = [values[name] for name in step["in"]]
            if step["out"] in self.pads:
                given = [self.pads[step["out"]](*given)]
            value = self.layers[step["out"]](*given)
            values[step["out"]] = torch.flatten(value, 1) if step.get("flat") else value
        return values[self.steps[-1]["out"]]


def _pad(step: dict) -> nn.Module:
    top, left, bottom, right = step["pads"]
    return nn.ZeroPad2d((left, right, top, bottom))


def _layer(step: dict, arrays: dict) -> nn.Module:
    held = [torch.from_numpy(arrays[name]) for name in step["weights"]]
    op = step["op"]
    if op == "Relu":
        return nn.ReLU()
    if op == "Add":
        return Addition_Module()
    if op == "GlobalAveragePool":
        return nn.AdaptiveAvgPool2d(1)
    if op == "BatchNormalization":
        made = nn.BatchNorm2d(len(held[0]), eps=step["epsilon"])
        for target, value in zip((made.weight, made.bias, made.running_mean, made.running_var), held, strict=True):
            target.data.copy_(value)
        return made
    weight, bias = held[0], held[1] if len(held) > 1 else None
    if op == "Conv":
        made = nn.Conv2d(
            weight.shape[1], weight.shape[0], weight.shape[2:], stride=step["strides"], bias=bias is not None
        )
    else:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight.data.copy_(weight)
    if bias is not None:
        made.bias.data.copy_(bias)
    return made


def _ruled(network: Network, rules: dict) -> Network:
    """The rule of each layer for LRP, which removes them afterwards: "conv", "dense" and "first" of `rules`."""
    made = {
        "epsilon": lambda: EpsilonRule(rules["epsilon"]),
        "gamma": lambda: GammaRule(0.25, set_bias_to_zero=True),
        "z_plus": lambda: Alpha1_Beta0_Rule(set_bias_to_zero=True),
    }
    first = True
    for layer in network.layers.values():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.rule = made[rules["first"] if first else rules["conv" if isinstance(layer, nn.Conv2d) else "dense"]]()
            if not isinstance(layer.rule, EpsilonRule):
                layer.rule.STABILITY_FACTOR = rules["epsilon"]
            first = False
        elif not isinstance(layer, nn.ReLU):
            layer.rule = EpsilonRule(1e-9)
    for layer in network.pads.values():
        layer.rule = EpsilonRule(1e-9)
    return network


class Plain:
    """ONNX's operators of a transformer by torch."""

    def linear(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        """x @ w.T + b."""
        return F.linear(x, w, b)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a + b."""
        return a + b

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Of two results."""
        return a @ b

    def scaled(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """By a number."""
        return x * factor

    def softmax(self, x: torch.Tensor) -> torch.Tensor:
        """Along the last axis."""
        return x.softmax(-1)

    def gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """Of single elements."""
        return F.gelu(x, approximate=approximate)

    def norm(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Along the last axis."""
        return F.layer_norm(x, w.shape, w, b, epsilon)

    def conv(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, stride: list) -> torch.Tensor:
        """Without padding."""
        return F.conv2d(x, w, b, stride)


class Relevance(Plain):
    """The same, whose gradients are relevance by the rules of AttnLRP as lxt has them."""

    def __init__(self, epsilon: float) -> None:
        from lxt.explicit import functional, rules

        self.lxt, self.rules, self.epsilon = functional, rules, epsilon

    def linear(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        """See Plain."""
        return self.lxt.linear_epsilon(x, w, b, self.epsilon)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Plain; lxt's rule needs equal shapes."""
        if not a.requires_grad and not b.requires_grad:
            return a + b
        shape = torch.broadcast_shapes(a.shape, b.shape)
        return self.lxt.add2(a.expand(shape), b.expand(shape), epsilon=self.epsilon)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Plain."""
        return self.lxt.matmul(a, b, epsilon=self.epsilon)

    def scaled(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """See Plain."""
        return self.lxt.mul2(x, factor)

    def softmax(self, x: torch.Tensor) -> torch.Tensor:
        """See Plain."""
        return self.lxt.softmax(x, -1)

    def gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """See Plain."""
        return self.rules.identity(partial(F.gelu, approximate=approximate), x)

    def norm(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See Plain."""
        return self.lxt.layer_norm_grad_fn.apply(x, w, b, epsilon, self.epsilon)

    def conv(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, stride: list) -> torch.Tensor:
        """See Plain."""
        return self.rules.epsilon_lrp(lambda x: F.conv2d(x, w, b, stride), self.epsilon, x)


class Graph(nn.Module):
    """A transformer's graph, node by node."""

    def __init__(self, nodes: list, arrays: dict, functions: Plain) -> None:
        super().__init__()
        self.nodes, self.functions, self.given = nodes, functions, nodes[0]["in"][0]
        self.held = {name: torch.from_numpy(array.copy()) for name, array in arrays.items() if name.startswith("#")}

    def double(self) -> Graph:
        """In float64."""
        self.held = {name: v.double() if v.is_floating_point() else v for name, v in self.held.items()}
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores."""
        values = {**self.held, self.given: x}
        for node in self.nodes:
            values[node["out"]] = self._value(node["op"], [values[name] for name in node["in"]], node["attributes"])
        return values[self.nodes[-1]["out"]]

    def _value(self, op: str, given: list, attributes: dict) -> torch.Tensor:
        do, x = self.functions, given[0]
        if op == "Conv":
            return do.conv(*given, attributes["strides"])
        if op == "Reshape":
            return x.reshape([size or x.shape[i] for i, size in enumerate(given[1].tolist())])
        if op == "Transpose":
            return x.permute(attributes["perm"])
        if op == "Pad":
            pads, rank = given[1].tolist(), x.ndim
            return F.pad(x, [pads[i] for axis in reversed(range(rank)) for i in (axis, axis + rank)])
        if op == "Add":
            return do.add(*given)
        if op == "LayerNormalization":
            return do.norm(*given, attributes["epsilon"])
        if op == "MatMul":
            return do.linear(x, given[1].T)
        if op == "Attention":
            return self._attention(*given, attributes["q_num_heads"])
        if op == "Gelu":
            return do.gelu(x, attributes.get("approximate", "none"))
        if op == "Gather":
            return x.select(attributes["axis"], int(given[1]))
        if op == "Gemm":
            return do.linear(x, given[1] if attributes.get("transB") else given[1].T, given[2])
        raise KeyError(op)

    def _attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
        q, k, v = (one.reshape(*one.shape[:2], heads, -1).transpose(1, 2) for one in (q, k, v))
        do = self.functions
        scores = do.scaled(do.matmul(q, k.transpose(-1, -2)), q.shape[-1] ** -0.5)
        return do.matmul(do.softmax(scores), v).transpose(1, 2).flatten(2)


def _by_lxt(network: Graph, x: torch.Tensor, target: int) -> torch.Tensor:
    x = x.clone().requires_grad_()
    score = network(x)[0, target]
    score.backward(score.detach())
    return x.grad


def _network(case: dict, arrays: dict, functions: Plain | None = None) -> nn.Module:
    make = partial(Graph, functions=functions or Plain()) if case["transformer"] else Network
    return make(case["steps"], arrays).eval()


def main(folder: str) -> None:
    """The process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    case = json.loads((Path(folder) / "case.json").read_text())
    with np.load(Path(folder) / "case.npz") as file:
        arrays = {name: file[name] for name in file.files}
    network, transformer = _network(case, arrays), case["transformer"]
    samples = torch.from_numpy(arrays["samples"])
    noise = torch.from_numpy(arrays["noise"])
    parts = torch.from_numpy(arrays["parts"])[None]
    window, stride = tuple(case["window"]), tuple(case["stride"])
    methods = {
        "saliency": lambda x, t: Saliency(network).attribute(x, t, abs=False),
        "input_x_gradient": lambda x, t: InputXGradient(network).attribute(x, t),
        **_integrals(case, network),
        "smoothgrad": lambda x, t: Saliency(network).attribute(x + noise, t, abs=False).mean(0, keepdim=True),
        "occlusion": lambda x, t: Occlusion(network).attribute(
            x, window, strides=stride, target=t, perturbations_per_eval=64
        ),
        "kernel_shap": lambda x, t: KernelShap(network).attribute(
            x, target=t, feature_mask=parts, n_samples=case["shap_samples"], perturbations_per_eval=64
        ),
    }
    if not transformer:
        methods["grad_cam"] = lambda x, t: LayerGradCam(network, network.layers[case["layer"]]).attribute(x, t)
    kinds = case["lrp"] if case["relevance"] else {}
    for name, rules in kinds.items():
        methods[f"lrp {name}"] = _relevance(case, arrays, rules, network)
    found, seconds = {"scores": network(samples).detach().numpy()}, {}
    for name, method in methods.items():
        torch.manual_seed(0)
        method(samples[:1], case["targets"][0])
        begin = process_time()
        rows = [method(samples[i : i + 1], target) for i, target in enumerate(case["targets"])]
        seconds[name] = (process_time() - begin) / len(rows)
        found[name] = torch.cat(rows).detach().numpy()
    double = _network(case, arrays).double()
    exact = _integrals(case, double)
    exact |= {f"lrp {name}": _relevance(case, arrays, rules, double, double=True) for name, rules in kinds.items()}
    for name, method in exact.items():
        rows = [method(samples[i : i + 1].double(), target) for i, target in enumerate(case["targets"])]
        found[f"{name} float64"] = torch.cat(rows).detach().numpy()
    found.update(_measured(network, samples[:1], case["targets"][0], arrays))
    np.savez(Path(folder) / "captum.npz", **found)
    (Path(folder) / "captum.json").write_text(json.dumps(seconds))


def _integrals(case: dict, network: nn.Module) -> dict[str, Callable]:
    integrate = IntegratedGradients(network)
    return {
        f"integrated_gradients {rule}": partial(
            lambda x, t, how: integrate.attribute(x, target=t, n_steps=case["points"], method=how), how=how
        )
        for rule, how in case["integrals"].items()
    }


def _relevance(case: dict, arrays: dict, rules: dict, network: nn.Module, *, double: bool = False) -> Callable:
    """Relevance of a sample and a target: by Captum, or of a transformer by lxt."""
    if not case["transformer"]:
        return lambda x, t: LRP(_ruled(network, rules)).attribute(x, t)
    ruled = _network(case, arrays, Relevance(rules["epsilon"]))
    ruled = ruled.double() if double else ruled
    return lambda x, t: _by_lxt(ruled, x, t)


def _measured(network: nn.Module, x: torch.Tensor, target: int, arrays: dict) -> dict:
    removed, base = torch.from_numpy(arrays["removed"]), 0.0
    changes = torch.from_numpy(arrays["changes"])

    def remove(inputs: torch.Tensor) -> tuple:
        assert len(inputs) == len(removed)
        change = removed * (inputs - base)
        return change, inputs - change

    slope = Saliency(network).attribute(x, target, abs=False)
    missed = infidelity(
        network, remove, x, slope, target=target, n_perturb_samples=len(removed), max_examples_per_batch=len(removed)
    )

    def one(given: torch.Tensor | tuple) -> torch.Tensor:
        return given[0] if isinstance(given, tuple) else given

    moved = sensitivity_max(
        lambda inputs: (Saliency(network).attribute(one(inputs), target, abs=False),),
        x,
        perturb_func=lambda inputs, radius: one(inputs) + changes,
        n_perturb_samples=len(changes),
        max_examples_per_batch=len(changes),
    )
    return {"infidelity": missed.detach().numpy(), "sensitivity": moved.detach().numpy()}


if __name__ == "__main__":
    main(*sys.argv[1:])
