"""A script that `benchmarks/explanations.py` runs as a process: the same explanations by Captum.

Arguments: a folder with case.json (steps of the network, methods) and case.npz (weights, samples, noise, changes).
Writes captum.npz (attributions by method) and captum.json (CPU seconds of an explanation by method).
"""

from __future__ import annotations

import json
import sys
import warnings
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


def main(folder: str) -> None:
    """The process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    case = json.loads((Path(folder) / "case.json").read_text())
    with np.load(Path(folder) / "case.npz") as file:
        arrays = {name: file[name] for name in file.files}
    network = Network(case["steps"], arrays).eval()
    samples = torch.from_numpy(arrays["samples"])
    noise = torch.from_numpy(arrays["noise"])
    parts = torch.from_numpy(arrays["parts"])[None]
    window, stride = tuple(case["window"]), tuple(case["stride"])
    integrate = IntegratedGradients(network)
    methods = {
        "saliency": lambda x, t: Saliency(network).attribute(x, t, abs=False),
        "input_x_gradient": lambda x, t: InputXGradient(network).attribute(x, t),
        **{
            f"integrated_gradients {rule}": partial(
                lambda x, t, how: integrate.attribute(x, target=t, n_steps=case["points"], method=how), how=how
            )
            for rule, how in case["integrals"].items()
        },
        "smoothgrad": lambda x, t: Saliency(network).attribute(x + noise, t, abs=False).mean(0, keepdim=True),
        "grad_cam": lambda x, t: LayerGradCam(network, network.layers[case["layer"]]).attribute(x, t),
        "occlusion": lambda x, t: Occlusion(network).attribute(
            x, window, strides=stride, target=t, perturbations_per_eval=64
        ),
        "kernel_shap": lambda x, t: KernelShap(network).attribute(
            x, target=t, feature_mask=parts, n_samples=case["shap_samples"], perturbations_per_eval=64
        ),
    }
    for name, rules in case["lrp"].items():
        methods[f"lrp {name}"] = partial(lambda x, t, rules: LRP(_ruled(network, rules)).attribute(x, t), rules=rules)
    found, seconds = {"scores": network(samples).detach().numpy()}, {}
    for name, method in methods.items():
        torch.manual_seed(0)
        method(samples[:1], case["targets"][0])
        begin = process_time()
        rows = [method(samples[i : i + 1], target) for i, target in enumerate(case["targets"])]
        seconds[name] = (process_time() - begin) / len(rows)
        found[name] = torch.cat(rows).detach().numpy()
    double = Network(case["steps"], arrays).eval().double()
    for name, rules in case["lrp"].items():
        rows = [
            LRP(_ruled(double, rules)).attribute(samples[i : i + 1].double(), target)
            for i, target in enumerate(case["targets"])
        ]
        found[f"lrp {name} float64"] = torch.cat(rows).detach().numpy()
    found.update(_measured(network, samples[:1], case["targets"][0], arrays))
    np.savez(Path(folder) / "captum.npz", **found)
    (Path(folder) / "captum.json").write_text(json.dumps(seconds))


def _measured(network: Network, x: torch.Tensor, target: int, arrays: dict) -> dict:
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
