"""The optional dependencies of pyproject.toml, as data: what each is for and how to install it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

from lite_runtime._extras import install_line

if TYPE_CHECKING:
    from lite_runtime.errors import MissingExtraError

__all__ = ["EXTRAS", "Extra", "explain_missing", "installed_version", "pip_line"]


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra. `packages` maps import names to pip's names."""

    packages: Mapping[str, str]
    why: str

    def versions(self) -> dict[str, str | None]:
        """Installed version by pip's name, None if it is not installed; imports nothing."""
        return {name: installed_version(name) for name in self.packages.values()}


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "jit": Extra({"numba": "numba"}, "it compiles the native kernels, once per machine"),
        "convert": Extra(
            {"onnx": "onnx", "onnx_ir": "onnx_ir", "onnxscript": "onnxscript", "ml_dtypes": "ml_dtypes"},
            "the converter uses it to read and rewrite ONNX graphs",
        ),
        "images": Extra({"PIL": "pillow"}, "it decodes calibration images and images in requests"),
        "cloud": Extra(
            {
                "jax": "jax",
                "optax": "optax",
                "sklearn": "scikit-learn",
                "scipy": "scipy",
                "grain": "grain",
                "orbax": "orbax-checkpoint",
                "cloudpickle": "cloudpickle",
                "msgspec": "msgspec",
            },
            "the cloud engine trains with it; the demo trains on scikit-learn's digits",
        ),
        "flax": Extra({"flax": "flax", "jax2onnx": "jax2onnx"}, "it exports models written in JAX to ONNX"),
        "torch": Extra({"torch": "torch"}, "its exporter converts PyTorch models to ONNX"),
        "sklearn": Extra({"skl2onnx": "skl2onnx"}, "it converts scikit-learn models to ONNX"),
        "parquet": Extra({"pyarrow": "pyarrow"}, "it reads Parquet files as training data"),
        "tune": Extra({"optuna": "optuna"}, "`msedge tune` chooses with it what to try next"),
        "ray": Extra({"ray": "ray"}, "it runs training inside a Ray cluster"),
        "federated": Extra(
            {"flwr": "flwr", "cryptography": "cryptography", "click": "click", "msgspec": "msgspec"},
            "the federated server and its devices communicate through Flower",
        ),
        "tensorboard": Extra(
            {"tensorboardX": "tensorboardX"}, "`msedge runs export --tensorboard` uses it to write event files"
        ),
        "mlflow": Extra(
            {"mlflow": "mlflow-skinny", "sqlalchemy": "sqlalchemy", "alembic": "alembic"},
            "runs are copied to MLflow with it: [track] mlflow, `msedge runs export --mlflow`",
        ),
        "wandb": Extra(
            {"wandb": "wandb"},
            "runs are copied to Weights & Biases with it: [track] wandb, `msedge runs export --wandb`",
        ),
        "cli": Extra({"typer": "typer", "rich": "rich", "msgspec": "msgspec"}, "the `msedge` command is built on it"),
        "hub": Extra(
            {"aiohttp": "aiohttp", "obstore": "obstore"}, "a hub serves a fleet, and keeps its files, with it"
        ),
        "serve": Extra({"aiohttp": "aiohttp", "orjson": "orjson"}, "the gateway uses it to serve HTTP"),
        "agent": Extra(
            {"tuf": "tuf", "securesystemslib": "securesystemslib", "cryptography": "cryptography"},
            "signed repositories are made and checked with it",
        ),
        "s3": Extra({"obstore": "obstore"}, "the gateway reads models in S3-compatible storage with it"),
        "language": Extra(
            {"jinja2": "jinja2", "llguidance": "llguidance"},
            "it renders the templates of chats and keeps answers to a format",
        ),
        "sign": Extra({"cryptography": "cryptography"}, "bundles are signed and their signatures checked with it"),
        "oidc": Extra({"jwt": "pyjwt"}, "the gateway verifies signed tokens with it"),
        "grpc": Extra(
            {"grpc": "grpcio", "google": "protobuf"}, "the gateway uses it to serve gRPC when grpc.port is set"
        ),
        "postgres": Extra({"psycopg": "psycopg"}, "a hub keeps its database in PostgreSQL with it"),
        "otel": Extra(
            {
                "opentelemetry": "opentelemetry-sdk",
                "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
            },
            "it sends the spans of requests when traces.endpoint is set",
        ),
        "oracle": Extra(
            {"onnxruntime": "onnxruntime", "ai_edge_litert": "ai-edge-litert"},
            "`verify` and `bench --against` use it for comparison",
        ),
        "peers": Extra({"openvino": "openvino"}, "`bench --against openvino` uses it for comparison"),
    }
)
# A package that belongs to several extras is reported under the last of them: msgspec under `cli`.
_EXTRA_OF = {module: name for name, extra in EXTRAS.items() for module in extra.packages}


def pip_line(extra: str) -> str:
    """The command that installs what `extra` lacks."""
    return install_line(extra, list(EXTRAS[extra].packages.values()))


def explain_missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error to show for a failed import; None if the module belongs to no extra."""
    module = (error.name or "").partition(".")[0]
    name = _EXTRA_OF.get(module)
    from lite_runtime.errors import MissingExtraError

    if name is None:
        return None
    extra = EXTRAS[name]
    return MissingExtraError(extra.packages[module], name, extra.why, list(extra.packages.values()))


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
