"""Gradients that cross slow links in fewer bytes: codecs, the exchange between groups of devices, and its price."""

from __future__ import annotations
