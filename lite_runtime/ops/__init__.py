"""Operator families: each validates operands, infers result types, chooses kernels and binds operands. Importing this
package registers all of them."""

from __future__ import annotations

import os
from importlib import import_module

for _name in sorted(os.listdir(os.path.dirname(__file__))):
    if _name.endswith(".py") and not _name.startswith("_"):
        import_module(f"{__name__}.{_name[:-3]}")
