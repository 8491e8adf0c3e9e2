"""Lowering of the IR to a lite graph: operator names by one table, attributes as Python values, constants as arrays."""

from __future__ import annotations

from converter.lowering.gates import gate_products
from converter.lowering.graph import lower, need_storable
from converter.lowering.narrow_products import narrow_products
from converter.lowering.panels import in_panels
from converter.lowering.weights import halve_weights, pack_narrow

__all__ = ["gate_products", "halve_weights", "in_panels", "lower", "narrow_products", "need_storable", "pack_narrow"]
