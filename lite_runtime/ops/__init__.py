"""Operator families: each validates operands, infers result types, chooses kernels and binds operands. Importing this
package registers all of them."""

from __future__ import annotations

import os
from importlib import import_module

from lite_runtime._inside import modules

for _name in modules(os.path.dirname(__file__)):
    import_module(f"{__name__}.{_name}")
