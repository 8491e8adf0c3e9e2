"""The PyTorch frontend: a module and example inputs to `onnx_ir.Model`, by PyTorch's own exporter."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.onnx import load
from lite_runtime.errors import MissingExtraError

__all__ = ["from_torch"]

_OPSET = 18


def from_torch(module: Any, examples: Mapping[str, Any], *, outputs: tuple[str, ...] = ()) -> ir.Model:
    """`module` in inference form. `examples`: a tensor for each argument of its `forward`, in order, by the name of
    the model's input; the first dimension is the batch, which stays open in the model. `outputs`: optional names.

    The module's parameters keep their names, so that `Trainer(model, trainable=["encoder.*"])` finds them. Raises
    ConvertError where PyTorch cannot export it.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "it exports PyTorch modules") from None
    if not isinstance(module, torch.nn.Module):
        raise ConvertError(f"expected a torch.nn.Module, got {type(module).__name__}")
    batch = torch.export.Dim("batch")
    was_training = module.training
    module.eval()
    try:
        with _quiet():
            program = torch.onnx.export(
                module, tuple(examples.values()), dynamo=True, opset_version=_OPSET, verbose=False,
                input_names=list(examples), output_names=list(outputs) or None,
                dynamic_shapes=tuple({0: batch} for _ in examples),
            )  # fmt: skip
    except Exception as error:  # library: PyTorch's exporter promises no type and runs the user's module
        raise ConvertError(f"PyTorch cannot export {type(module).__name__}: {_first_line(error)}") from error
    finally:
        module.train(was_training)
    return load(program.model_proto)


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
