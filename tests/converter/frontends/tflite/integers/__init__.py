"""Random models of one operator each, for every operator and type of which LiteRT has integer kernels: `CASES`."""

from __future__ import annotations

from tests.converter.frontends.tflite.integers import elements, images, moving, products, recurrent
from tests.converter.frontends.tflite.integers.drafts import CASES, Case

__all__ = ["CASES", "Case", "elements", "images", "moving", "products", "recurrent"]
