"""Explanations that need the inside of a model: Grad-CAM and layer-wise relevance propagation.

    subject = graph_subject(from_bundle("model.mslite"))       # cloud.audit.victim
    found = explain(subject, x, "lrp", wish_for(subject, x), table=METHODS)

The methods of `lite_runtime.explaining` work with the same subjects. `text_from_bundle` and `text_from_onnx` make those
of models of token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloud.explain.grad_cam import channel_map, grad_cam, layers_of
from cloud.explain.graphs import GraphSubject, graph_subject
from cloud.explain.lrp import RULES, Composite, Rule, lrp
from cloud.explain.texts import text_from_bundle, text_from_onnx, text_subject
from lite_runtime.explaining.methods import METHODS as OUTSIDE
from lite_runtime.explaining.methods import Method

__all__ = [
    "METHODS",
    "RULES",
    "Composite",
    "GraphSubject",
    "Rule",
    "channel_map",
    "grad_cam",
    "graph_subject",
    "layers_of",
    "lrp",
    "methods",
    "text_from_bundle",
    "text_from_onnx",
    "text_subject",
]


def methods(*, layer: str = "", rules: str = "composite") -> Mapping[str, Method]:
    """All methods by name, with a layer for Grad-CAM and the rules of LRP."""
    inside: dict[str, Any] = {
        "grad_cam": lambda s, x, target, wish: grad_cam(s, x, target, layer=layer),
        "lrp": lambda s, x, target, wish: lrp(s, x, target, rules=rules),
    }
    return {**OUTSIDE, **{name: Method(run, "graph") for name, run in inside.items()}}


METHODS = methods()
