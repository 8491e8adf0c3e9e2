"""What a conversion did, for people and machines.

report.py   the facts, plain data
layers.py   how far each layer of the quantised model is from the float one
page.py     the facts as one self-contained HTML page
"""

from __future__ import annotations

from converter.report.layers import PERFECT, Layer, Sums, measure
from converter.report.page import page
from converter.report.report import Report

__all__ = ["PERFECT", "Layer", "Report", "Sums", "measure", "page"]
