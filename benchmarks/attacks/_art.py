"""A script that `benchmarks.attacks` runs as a process: one attack of the Adversarial Robustness Toolbox on PyTorch.

Arguments: a .npz file with the network and examples, a JSON object with the attack, the processor to use, where to
write what was found (.npz). Each line on standard input, a seed, asks for a turn; the reply is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

import numpy as np

NORMS: Mapping[str, float] = {"Linf": np.inf, "L2": 2}
LOSSES = {"ce": "cross_entropy", "dlr": "difference_logits_ratio"}


def network(data: Any) -> Any:
    """The layers of the file, as PyTorch computes them."""
    import torch

    def shaped(kind: Callable[..., Any], layer: Mapping[str, Any], weight: Any, bias: Any) -> list[Any]:
        if kind is torch.nn.Linear:
            made, before = torch.nn.Linear(weight.shape[1], weight.shape[0]), []
        else:
            top, left, bottom, right = layer["pads"]
            made = torch.nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:], layer["strides"])
            before = [torch.nn.ZeroPad2d((left, right, top, bottom))] if any(layer["pads"]) else []
        with torch.no_grad():
            made.weight.copy_(torch.from_numpy(weight))
            made.bias.copy_(torch.from_numpy(bias))
        return [*before, made]

    plain = {"Relu": torch.nn.ReLU, "GlobalAveragePool": lambda: torch.nn.AdaptiveAvgPool2d(1),
             "Flatten": torch.nn.Flatten}  # fmt: skip
    found: list[Any] = []
    for layer in json.loads(str(data["layers"])):
        arrays = [data[name] for name in layer["arrays"]]
        kinds = {"Conv": torch.nn.Conv2d, "Gemm": torch.nn.Linear}
        found += shaped(kinds[layer["op"]], layer, *arrays) if arrays else [plain[layer["op"]]()]
    return torch.nn.Sequential(*found).eval()


def after(change: Callable[[Any], Any], model: Any) -> Any:
    """The same for inputs that are changed before."""
    import torch

    class Changed(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return model(change(x))

    return Changed()


def attack_of(classifier: Any, name: str, said: Mapping[str, Any], rows: int) -> Any:
    """The attack with the same settings."""
    evasion = import_module("art.attacks.evasion")

    common: dict[str, Any] = {"batch_size": rows}
    quiet = {**common, "verbose": False}
    if "epsilon" in said:
        common |= {"norm": NORMS[said["norm"]], "eps": said["epsilon"]}
        quiet |= common
    if name == "fgsm":
        return evasion.FastGradientMethod(classifier, **common)
    if name == "pgd":
        restarts = said.get("restarts", 1)
        return evasion.ProjectedGradientDescentPyTorch(
            classifier, eps_step=2.5 * said["epsilon"] / said["steps"], max_iter=said["steps"],
            num_random_init=0 if restarts == 1 else restarts, **quiet,
        )  # fmt: skip
    if name == "auto_pgd":
        return evasion.AutoProjectedGradientDescent(
            classifier, eps_step=2 * said["epsilon"], max_iter=said["steps"], nb_random_init=1,
            loss_type=LOSSES[said["loss"]], **quiet,
        )  # fmt: skip
    if name == "square":
        first = 0.05 if said["norm"] == "Linf" else 0.1
        return evasion.SquareAttack(classifier, max_iter=said["steps"], p_init=first, **quiet)
    if name == "deepfool":
        return evasion.DeepFool(classifier, said["steps"], said["overshoot"], said["classes"] + 1, **quiet)
    if name == "carlini_wagner":
        return evasion.CarliniL2Method(
            classifier, said["confidence"], learning_rate=said["rate"], binary_search_steps=said["searches"],
            max_iter=said["steps"], initial_const=said["weight"], **quiet,
        )  # fmt: skip
    return evasion.HopSkipJump(
        classifier, norm=NORMS[said["norm"]], max_iter=said["iterations"], max_eval=1000,
        init_eval=said["directions"], verbose=False,
    )  # fmt: skip


def main(given: str, told: str, processor: str, found: str) -> None:
    """The process."""
    os.sched_setaffinity(0, [int(processor)])
    import torch

    torch.set_num_threads(1)
    PyTorchClassifier = import_module("art.estimators.classification").PyTorchClassifier

    data, case = np.load(given), json.loads(told)
    x, y = data["x"][: case["rows"]], data["y"][: case["rows"]].astype(np.int64)
    model = network(data)
    if case["attack"] == "square" and x.shape[2] == 1:
        # This Square attack places squares in images of more than one row: channels become rows.
        model, x = after(lambda x: x.transpose(1, 2), model), x.swapaxes(1, 2)
    if case["attack"] == "hop_skip_jump":
        model = after(lambda x: x.float(), model)  # it asks with float64
    with torch.no_grad():
        logits = model(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    classifier = PyTorchClassifier(
        model, torch.nn.CrossEntropyLoss(), x.shape[1:], logits.shape[1], clip_values=tuple(case["clip"]),
        device_type="cpu",
    )  # fmt: skip
    attack = attack_of(classifier, case["attack"], case["settings"], len(x))
    for line in sys.stdin:
        np.random.seed(int(line))
        torch.manual_seed(int(line))
        wall, cpu = perf_counter(), process_time()
        moved = attack.generate(x, y)
        cpu, wall = process_time() - cpu, perf_counter() - wall
        with torch.no_grad():
            answers = model(torch.from_numpy(np.ascontiguousarray(moved, np.float32))).argmax(1).numpy()
        np.savez(found, inputs=moved.reshape(len(x), -1), success=answers != y, logits=logits)
        print(json.dumps({"cpu": cpu, "wall": wall}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
