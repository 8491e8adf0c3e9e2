"""The models that plans are compared on, as plain training steps for one device. Importing allocates nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.parallel.models.dlrm import dlrm
from benchmarks.parallel.models.gpt import Sizes, gpt, moe
from benchmarks.parallel.models.long import long
from benchmarks.parallel.models.mlp import mlp
from benchmarks.parallel.models.model import Field, Model
from benchmarks.parallel.models.resnet import resnet50
from benchmarks.parallel.models.scanned import SCANNED
from benchmarks.parallel.models.t5 import t5
from benchmarks.parallel.models.towers import towers
from benchmarks.parallel.models.unet import unet
from benchmarks.parallel.models.vit import vit
from benchmarks.parallel.models.volumes import volumes

__all__ = ["BY_HAND", "MODELS", "Field", "Model", "Sizes", "dlrm", "gpt", "mlp", "moe", "resnet50", "unet"]

MODELS: Mapping[str, Callable[..., Model]] = {
    "mlp": mlp,
    "gpt": gpt,
    "moe": moe,
    "resnet50": resnet50,
    "dlrm": dlrm,
    "unet": unet,
}
"""Name to `make(small=False, bfloat16=False, optimizer=None)`."""

BY_HAND: Mapping[str, Callable[..., Model]] = {
    **SCANNED,
    "t5": t5,
    "vit": vit,
    "towers": towers,
    "volumes": volumes,
    "long": long,
}
"""The models that are compared with shardings written by hand: name to `make(small=False)`."""
