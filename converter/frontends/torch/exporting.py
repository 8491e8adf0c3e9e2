"""PyTorch modules and programs as models: examples, sizes that stay open, and calls of PyTorch's exporter."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.loaded import Loaded
from converter.frontends.onnx import load
from converter.frontends.torch.operators import operators, torch_library
from converter.frontends.torch.training import captured, in_training
from converter.ir import build
from converter.weights import saved
from lite_runtime.errors import MsedgeError

__all__ = ["Open", "from_torch", "of_module", "of_program"]

_OPSET = 18

Open: TypeAlias = str | Mapping[str, Mapping[int, str]]
"""Sizes that stay open: "batch", the first of every input; "all", every one that the module allows; or names of sizes
by input and axis, beside the batch. Sizes of one name are equal."""


def from_torch(
    module: Any, examples: Mapping[str, Any], *, outputs: tuple[str, ...] = (), training: bool = True,
    dynamic: Open = "batch",
) -> ir.Model:  # fmt: skip
    """`module` as ONNX. `examples`: a tensor or NumPy array for each argument of its `forward`, in order, by the name
    of the model's input. `outputs`: optional names. `dynamic`: which sizes stay open, such as
    `{"tokens": {1: "length"}}`; by default the first one, the batch.

    With `training`, the graph is what the module computes when it trains: BatchNormalization and Dropout stay nodes,
    which trainers move and draw, and which compute as in inference elsewhere. Running variances then follow PyTorch's
    rule. Layers that are in inference mode (`.eval()`) while the module trains keep their statistics. Without, it is
    what the module computes after `.eval()`, optimised by PyTorch's exporter.

    The module's parameters keep their names, so that `Trainer(model, trainable=["encoder.*"])` finds them. What
    PyTorch does not train, buffers and parameters without `requires_grad`, are results of Constant nodes. The module
    is not changed. Raises ConvertError where PyTorch cannot export it, and for what has no form in training: random
    numbers other than dropout's and stochastic depth's, buffers that change, and batch normalisation without running
    statistics or with momentum=None.
    """
    torch = torch_library()
    if not isinstance(module, torch.nn.Module):
        raise ConvertError(f"expected a torch.nn.Module, got {type(module).__name__}")
    values = {name: _tensor(torch, name, value) for name, value in examples.items()}
    shapes = _shapes(torch, values, dynamic)
    names = {"input_names": list(examples), "output_names": list(outputs) or None}
    if training:
        with in_training(module):
            model = _exported(module, tuple(values.values()), shapes, optimize=False, **names)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        build.fix(model.graph, {name for name, value in parameters.items() if value.requires_grad})
        saved(model.graph, list(module.state_dict()), _tied(parameters, model.graph.initializers))
    else:
        was_training = module.training
        module.eval()
        try:
            model = _exported(module, tuple(values.values()), shapes, **names)
        finally:
            module.train(was_training)
    _name_sizes(model, values, dynamic)
    return model


def _tensor(torch: Any, name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        got = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ConvertError(f"expected a tensor or an array of numbers as example of input {name!r}, got {got}")
    return value


def _shapes(torch: Any, values: Mapping[str, Any], dynamic: Open) -> tuple[Any, ...]:
    """torch.export's description of sizes, an entry for each argument. Raises ConvertError."""
    if isinstance(dynamic, str):
        if dynamic not in ("batch", "all"):
            raise ConvertError(f'expected dynamic as "batch", "all" or names by input and axis, got {dynamic!r}')
        if dynamic == "all":
            return tuple({axis: torch.export.Dim.AUTO for axis in range(value.ndim)} for value in values.values())
    asked = {} if isinstance(dynamic, str) else dynamic
    if unknown := [name for name in asked if name not in values]:
        raise ConvertError(f"dynamic: expected inputs of {list(values)}, got {unknown}")
    for name, axes in asked.items():
        for axis, size in axes.items():
            if not (isinstance(axis, int) and 0 <= axis < values[name].ndim and str(size).isidentifier()):
                shape = list(values[name].shape)
                raise ConvertError(
                    f"dynamic: expected an axis of {name!r}, whose example is {shape}, and a name of letters and "
                    f"digits, got {axis!r}: {size!r}"
                )
    known: dict[str, Any] = {}

    def named(text: str) -> Any:
        return known.setdefault(text, torch.export.Dim(text))

    rows = {name: {**({0: "batch"} if v.ndim else {}), **asked.get(name, {})} for name, v in values.items()}
    return tuple({axis: named(text) for axis, text in axes.items()} or None for axes in rows.values())


def _tied(parameters: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Other name -> the graph's name of one parameter with several."""
    names = {id(value): name for name, value in parameters.items() if name in known}
    return {name: names[id(v)] for name, v in parameters.items() if names.get(id(v), name) != name}


def _name_sizes(model: ir.Model, values: Mapping[str, Any], dynamic: Open) -> None:
    """Sizes by the names that were asked for, instead of PyTorch's symbols."""
    names: dict[str, str] = {}
    asked = {} if isinstance(dynamic, str) else dynamic
    for value in model.graph.inputs:
        for axis, size in enumerate(build.dims(value) or ()):
            name = asked.get(str(value.name), {}).get(axis, f"{value.name}.{axis}" if axis else "batch")
            if isinstance(size, str):
                names.setdefault(size, name)
    made = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *made):
        shape = build.dims(value)
        if shape is not None and any(size in names for size in shape):
            value.shape = ir.Shape([names.get(size, size) if isinstance(size, str) else size for size in shape])


def of_module(module: Any, examples: Any) -> Loaded:
    """A module. `examples`: tensors by name, or a tensor or a tuple of them for the arguments of `forward`, whose names
    the inputs get. Raises ConvertError."""
    if examples is None:
        raise ConvertError(
            f"{type(module).__name__} is a PyTorch module, whose graph is recorded on example inputs: give examples, a "
            "tensor for each argument of its forward"
        )
    if not isinstance(examples, Mapping):
        values = examples if isinstance(examples, tuple | list) else (examples,)
        parameters = list(inspect.signature(module.forward).parameters.values())
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(values) > len(names) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            raise ConvertError(f"expected at most {len(names)} examples ({', '.join(names)}), got {len(values)}")
        names += [f"input_{i}" for i in range(len(names), len(values))]
        examples = dict(zip(names, values, strict=False))
    return Loaded({"predict": from_torch(module, examples, training=False)}, format="PyTorch")


def of_program(program: Any, examples: Any = None) -> Loaded:
    """A `torch.export.ExportedProgram`, which has its shapes. Raises ConvertError."""
    if examples is not None:
        raise ConvertError("a program of torch.export has its inputs' shapes: omit examples")
    return Loaded({"predict": _exported(program)}, format="PyTorch")


def _exported(module: Any, values: tuple[Any, ...] = (), shapes: Any = None, **options: Any) -> ir.Model:
    """By PyTorch's exporter; a module that trains is captured first."""
    torch, own = torch_library(), operators()
    trains = isinstance(module, torch.nn.Module) and module.training
    try:
        with _quiet():
            if trains:
                given: tuple[Any, ...] = (captured(module, values, shapes),)
            elif values:
                given, options = (module, values), {**options, "dynamic_shapes": shapes}
            else:
                given = (module,)
            with own.recurrent():
                program = torch.onnx.export(
                    *given, dynamo=True, opset_version=_OPSET, verbose=False, custom_translation_table=own.table,
                    **options,
                )  # fmt: skip
            proto = program.model_proto
    except MsedgeError:
        raise
    except Exception as error:  # library: PyTorch's exporter promises no type and runs the user's module
        raise ConvertError(f"PyTorch cannot export {type(module).__name__}: {_first_line(error)}") from error
    return load(proto)


@contextmanager
def _quiet() -> Iterator[None]:
    """The message without the exporter's internal details."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
