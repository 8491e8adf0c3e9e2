"""Per operator: validate, infer result types, choose kernels, bind operands. Importing this registers every family."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("*.py")):
    if not _path.stem.startswith("_"):
        import_module(f"{__name__}.{_path.stem}")
