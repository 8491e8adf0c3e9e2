"""The TensorFlow frontend: SavedModel folders and Keras models, by tf2onnx in a process of its own.

tf2onnx keeps open batch sizes and recurrent layers, which TensorFlow's converter to TensorFlow Lite refuses together.
A separate process keeps TensorFlow, which takes seconds to load and prints to the terminal, out of this one.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from converter.errors import ConvertError
from converter.frontends import onnx
from converter.frontends.loaded import Loaded, read

__all__ = ["load", "of_keras"]

_OPSET = "18"
_PACKAGES = {"tensorflow": "tensorflow", "tf2onnx": "tf2onnx"}
_LIMIT = 3600
"""Seconds for a conversion."""


def load(folder: str | os.PathLike[str]) -> Loaded:
    """A SavedModel folder's default signature. Raises ConvertError: also where TensorFlow or tf2onnx is missing."""
    missing = [pip for name, pip in _PACKAGES.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ConvertError(
            f"{os.fspath(folder)}: a TensorFlow SavedModel is converted by tf2onnx, and {' and '.join(missing)} is not "
            f"installed: pip install {' '.join(missing)}, or where both are: python -m tf2onnx.convert --saved-model "
            f"DIR --opset {_OPSET} --output model.onnx, and convert that"
        )
    with tempfile.TemporaryDirectory(prefix="msedge-") as work:
        made = Path(work) / "model.onnx"
        command = [sys.executable, "-m", "tf2onnx.convert", "--saved-model", os.path.abspath(folder),
                   "--opset", _OPSET, "--output", str(made)]  # fmt: skip
        done = _run(command)
        if done.returncode or not made.is_file():
            raise ConvertError(f"tf2onnx cannot convert {os.fspath(folder)}: {_reason(done.stderr)}")
        return Loaded({"predict": onnx.load(read(made))}, format="TensorFlow")


def of_keras(model: Any, examples: Any) -> Loaded:
    """A Keras model, which knows the shapes of its inputs. Raises ConvertError."""
    if examples is not None:
        raise ConvertError("a Keras model has its inputs' shapes: omit examples")
    with tempfile.TemporaryDirectory(prefix="msedge-") as work:
        folder = Path(work) / "model"
        try:
            # `export` writes a SavedModel with Keras 3, whichever way the model was built; before, `save` did.
            model.export(str(folder), **({"verbose": False} if hasattr(model, "get_compile_config") else {}))
        except Exception as error:  # library: Keras promises no type, and runs the user's layers
            raise ConvertError(f"Keras cannot export {type(model).__name__}: {error}; build it first") from error
        return load(folder)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise ConvertError(f"tf2onnx did not finish within {_LIMIT} seconds") from None
    except OSError as error:
        raise ConvertError(f"tf2onnx cannot be started: {error}") from None


def _reason(text: str) -> str:
    """The last line of a traceback."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")
