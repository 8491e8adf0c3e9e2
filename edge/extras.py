"""The optional dependencies of pyproject.toml, as data: what each is for and how to get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lite_runtime.errors import MissingExtraError

__all__ = ["EXTRAS", "Extra", "explain_missing", "installed_version", "pip_line"]


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra. `packages` maps the names one imports to the names pip knows."""

    packages: Mapping[str, str]
    why: str

    def versions(self) -> dict[str, str | None]:
        """Installed version by pip's name, None where it is missing; imports nothing."""
        return {name: installed_version(name) for name in self.packages.values()}


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "jit": Extra({"numba": "numba"}, "native kernels are compiled with it, once per machine"),
        "convert": Extra(
            {"onnx": "onnx", "onnx_ir": "onnx_ir", "onnxscript": "onnxscript", "ml_dtypes": "ml_dtypes"},
            "the converter reads and rewrites ONNX graphs with it",
        ),
        "images": Extra({"PIL": "pillow"}, "folders of calibration images and pictures in requests are read with it"),
        "cloud": Extra(
            {
                "jax": "jax", "optax": "optax", "sklearn": "scikit-learn", "scipy": "scipy", "grain": "grain",
                "orbax": "orbax-checkpoint", "cloudpickle": "cloudpickle", "msgspec": "msgspec",
            },
            "the cloud engine trains with it, the demo on scikit-learn's digits",
        ),
        "flax": Extra({"flax": "flax", "jax2onnx": "jax2onnx"}, "models written in JAX become ONNX with it"),
        "torch": Extra({"torch": "torch"}, "PyTorch models become ONNX by its own exporter"),
        "ray": Extra({"ray": "ray"}, "training inside a Ray cluster"),
        "federated": Extra(
            {"flwr": "flwr", "cryptography": "cryptography", "click": "click", "msgspec": "msgspec"},
            "messages between the server and its devices go over Flower",
        ),
        "tensorboard": Extra(
            {"tensorboardX": "tensorboardX"}, "`msedge runs export --tensorboard` writes event files with it"
        ),
        "cli": Extra({"typer": "typer", "rich": "rich", "msgspec": "msgspec"}, "the `msedge` command is built on it"),
        "serve": Extra({"aiohttp": "aiohttp", "orjson": "orjson"}, "the gateway answers HTTP with it"),
        "otel": Extra(
            {
                "opentelemetry": "opentelemetry-sdk",
                "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
            },
            "spans of requests are sent with it where traces.endpoint says so",
        ),
        "oracle": Extra(
            {"onnxruntime": "onnxruntime", "ai_edge_litert": "ai-edge-litert"},
            "`verify` and `bench --against` compare with it",
        ),
        "peers": Extra({"openvino": "openvino"}, "`bench --against openvino` compares with it"),
    }
)
# Of a package that several extras have, the last one's name counts: `cli` of msgspec.
_EXTRA_OF = {module: name for name, extra in EXTRAS.items() for module in extra.packages}


def pip_line(extra: str) -> str:
    """The command that installs `extra`."""
    return f"pip install 'msedge[{extra}]'"


def explain_missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error a user should see for a failed import; None where the module belongs to no extra."""
    module = (error.name or "").partition(".")[0]
    name = _EXTRA_OF.get(module)
    from lite_runtime.errors import MissingExtraError

    return MissingExtraError(EXTRAS[name].packages[module], name, EXTRAS[name].why) if name else None


def installed_version(distribution: str) -> str | None:
    """The version pip installed, None where it did not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
