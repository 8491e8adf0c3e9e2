"""What a device loads for codecs and privacy: NumPy, msgspec, and cryptography only for secure sums."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import federated.messages.transforms
heavy = {"cryptography", "flwr", "jax", "onnx", "onnx_ir", "scipy", "converter", "cloud"} & set(sys.modules)
assert not heavy, heavy
"""


def test_update_transforms_load_nothing_heavy() -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, check=True, timeout=300)
