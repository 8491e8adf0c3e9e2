"""Explanations of one answer of a model: how much each element of the sample contributed to the score of one output.

    subject = subject_of(lite_runtime.load("model.mslite"))
    found = explain(subject, x, "integrated_gradients", wish_for(subject, x))

`subject` is what is asked, and how much; one method a file, NumPy alone; `methods` is the table of them; `faithfulness`
compares them. Methods that need the inside of a graph are in `cloud.explain`.
"""

from __future__ import annotations

from lite_runtime.explaining.bundles import subject_of
from lite_runtime.explaining.explanation import Explanation
from lite_runtime.explaining.faithfulness import Curves, curves, infidelity, sensitivity_max
from lite_runtime.explaining.integrated import integrated_gradients
from lite_runtime.explaining.kernel_shap import kernel_shap
from lite_runtime.explaining.layout import Layout, blocks, layout_of, superpixels
from lite_runtime.explaining.methods import METHODS, Method, Wish, available, wish_for
from lite_runtime.explaining.methods import run as explain
from lite_runtime.explaining.occlusion import occlusion
from lite_runtime.explaining.rise import rise
from lite_runtime.explaining.saliency import input_x_gradient, saliency
from lite_runtime.explaining.smooth import smoothgrad
from lite_runtime.explaining.subject import Embedding, Limits, Subject

__all__ = [
    "METHODS",
    "Curves",
    "Embedding",
    "Explanation",
    "Layout",
    "Limits",
    "Method",
    "Subject",
    "Wish",
    "available",
    "blocks",
    "curves",
    "explain",
    "infidelity",
    "input_x_gradient",
    "integrated_gradients",
    "kernel_shap",
    "layout_of",
    "occlusion",
    "rise",
    "saliency",
    "sensitivity_max",
    "smoothgrad",
    "subject_of",
    "superpixels",
    "wish_for",
]
