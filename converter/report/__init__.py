"""The report of a conversion, as data and as a page.

report.py   the facts, plain data
layers.py   the error of each layer of the quantised model against the float one
page.py     the facts as one self-contained HTML page
"""

from __future__ import annotations

from converter.report.layers import PERFECT, Layer, Sums, measure
from converter.report.page import page
from converter.report.report import Report

__all__ = ["PERFECT", "Layer", "Report", "Sums", "measure", "page"]
