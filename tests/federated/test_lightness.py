"""What a device loads for codecs and privacy: NumPy, and cryptography only once a sum is secure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import federated.messages.pipeline
heavy = {"cryptography", "flwr", "jax", "onnx", "onnx_ir", "scipy", "converter", "cloud"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_pipeline_needs_numpy_alone() -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, check=True, timeout=300)
