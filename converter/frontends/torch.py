"""The PyTorch frontend: modules with example inputs, and programs of torch.export, by PyTorch's own exporter."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.loaded import Loaded
from converter.frontends.onnx import load
from lite_runtime.errors import MissingExtraError

__all__ = ["from_torch", "of_module", "of_program", "torch_library"]

_OPSET = 18


def torch_library() -> Any:
    """The module torch. Raises MissingExtraError."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "it exports PyTorch modules") from None
    return torch


def from_torch(module: Any, examples: Mapping[str, Any], *, outputs: tuple[str, ...] = ()) -> ir.Model:
    """`module` in inference form. `examples`: a tensor for each argument of its `forward`, in order, by the name of
    the model's input; the first dimension is the batch, which stays open in the model. `outputs`: optional names.

    The module's parameters keep their names, so that `Trainer(model, trainable=["encoder.*"])` finds them. Raises
    ConvertError where PyTorch cannot export it.
    """
    torch = torch_library()
    if not isinstance(module, torch.nn.Module):
        raise ConvertError(f"expected a torch.nn.Module, got {type(module).__name__}")
    for name, value in examples.items():
        if not isinstance(value, torch.Tensor):
            raise ConvertError(f"expected a tensor as example of input {name!r}, got {type(value).__name__}")
    batch = torch.export.Dim("batch")
    was_training = module.training
    module.eval()
    try:
        return _exported(
            module, tuple(examples.values()), input_names=list(examples), output_names=list(outputs) or None,
            dynamic_shapes=tuple({0: batch} if value.ndim else None for value in examples.values()),
        )  # fmt: skip
    finally:
        module.train(was_training)


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
    return Loaded({"predict": from_torch(module, examples)}, format="PyTorch")


def of_program(program: Any, examples: Any = None) -> Loaded:
    """A `torch.export.ExportedProgram`, which has its shapes. Raises ConvertError."""
    if examples is not None:
        raise ConvertError("a program of torch.export has its inputs' shapes: omit examples")
    return Loaded({"predict": _exported(program)}, format="PyTorch")


def _exported(module: Any, *args: Any, **options: Any) -> ir.Model:
    torch = torch_library()
    try:
        with _quiet():
            program = torch.onnx.export(module, *args, dynamo=True, opset_version=_OPSET, verbose=False, **options)
            proto = program.model_proto
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
