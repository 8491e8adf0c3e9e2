"""Models built as ONNX IR, newly initialised for training. Each has one input `x` with a symbolic batch size first."""

from __future__ import annotations

from cloud.zoo.build import Builder
from cloud.zoo.ds_cnn import ds_cnn
from cloud.zoo.mlp import mlp
from cloud.zoo.resnet import resnet8
from cloud.zoo.transformer import transformer
from cloud.zoo.window_cnn import window_cnn

__all__ = ["Builder", "ds_cnn", "mlp", "resnet8", "transformer", "window_cnn"]
