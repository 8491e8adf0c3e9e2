"""The PyTorch frontend: modules with example inputs, and programs of torch.export, by PyTorch's own exporter.

`exporting` is the interface; `training` captures modules in training form; `operators` holds what is exported as one
ONNX operator where PyTorch's exporter would take it apart or drop it.
"""

from __future__ import annotations

from converter.frontends.torch.exporting import from_torch, of_module, of_program
from converter.frontends.torch.operators import torch_library

__all__ = ["from_torch", "of_module", "of_program", "torch_library"]
