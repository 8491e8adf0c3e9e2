"""Models built as ONNX IR, newly initialised for training. The batch size is symbolic and comes first; the input is `x`
unless a model says otherwise."""

from __future__ import annotations

from cloud.zoo.build import Builder
from cloud.zoo.ds_cnn import ds_cnn
from cloud.zoo.mlp import mlp
from cloud.zoo.relations.gcn import gcn
from cloud.zoo.relations.two_tower import two_tower
from cloud.zoo.resnet import resnet8
from cloud.zoo.signals.autoencoder import autoencoder
from cloud.zoo.signals.lstm import lstm
from cloud.zoo.signals.tc_resnet import tc_resnet
from cloud.zoo.signals.tcn import tcn
from cloud.zoo.text.bert import bert
from cloud.zoo.text.gpt import gpt
from cloud.zoo.text.t5 import t5
from cloud.zoo.transformer import transformer
from cloud.zoo.vision.alexnet import alexnet
from cloud.zoo.vision.efficientnet_lite import efficientnet_lite
from cloud.zoo.vision.lenet import lenet5
from cloud.zoo.vision.mobilenet_v2 import mobilenet_v2
from cloud.zoo.vision.mobilenet_v3 import mobilenet_v3_large, mobilenet_v3_small
from cloud.zoo.vision.residual import resnet18, resnet50
from cloud.zoo.vision.unet import unet
from cloud.zoo.vision.vit import vit
from cloud.zoo.vision.yolo import yolo
from cloud.zoo.vision.yolos import yolos
from cloud.zoo.window_cnn import window_cnn

__all__ = [
    "Builder", "alexnet", "autoencoder", "bert", "ds_cnn", "efficientnet_lite", "gcn", "gpt", "lenet5", "lstm", "mlp",
    "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "resnet8", "resnet18", "resnet50", "t5", "tc_resnet",
    "tcn", "transformer", "two_tower", "unet", "vit", "window_cnn", "yolo", "yolos",
]  # fmt: skip
