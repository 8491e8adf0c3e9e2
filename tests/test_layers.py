"""Allowed imports, as in ARCHITECTURE.md: a layer imports the layers below it and the libraries named here."""

from __future__ import annotations

import sys
from functools import cache

import pytest

from tests.sources import LAYERS as FLOORS
from tests.sources import ROOT, parsed, sources

CONVERT = {"google", "ml_dtypes", "onnx", "onnx_ir", "onnxscript"}
LIBRARIES = {
    "edge": {
        "ai_edge_litert",
        "cryptography",
        "google",
        "numpy",
        "onnx",
        "onnx_ir",
        "onnxruntime",
        "openvino",
        "onnxruntime_genai",
        "openvino_genai",
        "ray",
        "rich",
        "starlette",
        "tuf",
        "typer",
        "PIL",
        "aiohttp",
        "grpc",
        "jwt",
        "msgspec",
        "obstore",
        "opentelemetry",
        "orjson",
    },
    "cloud": {
        "PIL",
        "aiohttp",
        "array_record",
        "cloudpickle",
        "cryptography",
        "flax",
        "grain",
        "jax",
        "jax2onnx",
        "jaxlib",
        "ml_dtypes",
        "mlflow",
        "msgspec",
        "numpy",
        "obstore",
        "onnx",
        "onnx_ir",
        "opentelemetry",
        "optax",
        "optuna",
        "orbax",
        "psycopg",
        "pyarrow",
        "ray",
        "scipy",
        "securesystemslib",
        "sklearn",
        "tensorboardX",
        "tuf",
        "wandb",
    },
    "federated": {"aiohttp", "cryptography", "flwr", "msgspec", "numpy"},
    "converter": {"PIL", "numpy", "skl2onnx", "sklearn", "torch", *CONVERT},
    "lite_runtime": {"cryptography", "jinja2", "llguidance", "llvmlite", "ml_dtypes", "numba", "numpy"},
}
# A device has no compiler: these alone may name one. compile.py does so inside functions only.
BUILD = "lite_runtime/native/compile.py"
COMPILING = (
    *("lite_runtime/kernels/", "lite_runtime/native/codegen/", "lite_runtime/native/portable.py"),
    *("lite_runtime/native/simd.py", "lite_runtime/native/user.py", BUILD),
)
# Flower changes between versions: one folder knows it. A device that learns installs Flower, but no converter.
TRANSPORT = "federated/transport/"
# A machine that serves needs neither converter nor trainer; one folder knows HTTP's library, one gRPC's.
GATEWAY, HTTP, GRPC = "edge/gateway/", "edge/gateway/http/", "edge/gateway/grpc/"
AGENT = "edge/agent/"
# What `import lite_runtime` may load at once; the rest of LIBRARIES only inside functions.
DEVICE = {"numpy"}

THERE = [floor for floor in FLOORS if (ROOT / floor).is_dir()]


def allowed(floor: str) -> set[str]:
    return {*sys.stdlib_module_names, *FLOORS[FLOORS.index(floor) :], *LIBRARIES[floor]}


@cache
def imports(floor: str) -> tuple[tuple[str, int, str], ...]:
    """Every import of a layer, at any level of nesting: path, line, module."""
    return tuple((s.path, one.line, name) for s in sources(floor) for one in s.imports for name in one.modules())


@pytest.mark.parametrize("floor", THERE)
def test_a_layer_imports_only_what_it_may(floor: str) -> None:
    may = allowed(floor)
    found = imports(floor)
    assert [f"{path}:{line} imports {name}" for path, line, name in found if name.partition(".")[0] not in may] == []


def test_only_kernels_and_the_build_name_a_compiler() -> None:
    found = (row for row in imports("lite_runtime") if not row[0].startswith(COMPILING))
    assert [f"{p}:{line} imports {n}" for p, line, n in found if n.partition(".")[0] in ("numba", "llvmlite")] == []


def test_the_gateway_imports_only_the_runtime_and_federated() -> None:
    rooms = (row for row in imports("edge") if row[0].startswith(GATEWAY))
    found = [(f"{path}:{line} imports {name}", name) for path, line, name in rooms]
    assert [where for where, name in found if name.partition(".")[0] in ("cloud", "converter", "msedge")] == []
    assert [where for where, name in found if name.startswith("edge.") and not name.startswith("edge.gateway.")] == []


def test_the_agent_imports_only_the_runtime_and_federated() -> None:
    """A device needs no converter, no trainer and no gateway. Of libraries, only what is in ONLY."""
    files = [row for row in imports("edge") if row[0].startswith(AGENT)]
    found = [(f"{path}:{line} imports {name}", path, name) for path, line, name in files]
    assert [where for where, _, name in found if name.partition(".")[0] in ("cloud", "converter", "msedge")] == []
    assert [where for where, _, name in found if name.startswith("edge.") and not name.startswith("edge.agent")] == []
    may = {*sys.stdlib_module_names, "edge", "federated", "lite_runtime", "numpy"}
    own = {"tuf": "trust.py", "cryptography": "identity.py"}
    others = [(where, path, name.partition(".")[0]) for where, path, name in found if name.partition(".")[0] not in may]
    assert [where for where, path, name in others if path != f"{AGENT}{own.get(name)}"] == []


def test_one_folder_imports_aiohttp() -> None:
    others = (row for row in imports("edge") if not row[0].startswith(HTTP))
    assert [f"{p}:{line}" for p, line, n in others if n.partition(".")[0] == "aiohttp"] == []


def test_importing_the_runtime_takes_numpy_alone() -> None:
    """Whatever else it can use is imported inside the functions that use it."""
    later = LIBRARIES["lite_runtime"] - DEVICE
    loaded = (s for s in sources("lite_runtime") if not s.path.startswith(COMPILING) or s.path == BUILD)
    found = ((s.path, one.line, name) for s in loaded for one in s.imports if one.at_once for name in one.modules())
    assert [f"{path}:{line} imports {name}" for path, line, name in found if name.partition(".")[0] in later] == []


# A library that one part of the project alone may import: its interface changes, or it is heavy, or it is optional.
ONLY = {
    "PIL": ("cloud/data/", "converter/quantize/calibration/", "edge/gateway/"),
    "aiohttp": (
        HTTP,
        "cloud/hub/server/",
        "federated/transport/checkin/server.py",
        "federated/transport/checkin/window.py",
    ),
    "array_record": ("cloud/data/_grain.py",),
    "cloudpickle": ("cloud/data/reading/workers.py",),
    "cryptography": (
        "cloud/hub/repository/keys.py",
        "cloud/hub/server/authority.py",
        "cloud/hub/server/sessions.py",
        "edge/agent/identity.py",
        "federated/privacy/",
        "federated/vertical/matching.py",
        "lite_runtime/bundle/keys.py",
        "lite_runtime/bundle/signing.py",
    ),
    "flax": ("cloud/train/tasks/",),
    "flwr": (TRANSPORT,),
    "grain": ("cloud/data/_grain.py",),
    "grpc": (GRPC,),
    "jax2onnx": ("cloud/train/tasks/",),
    "jinja2": ("lite_runtime/language/template.py",),
    "llguidance": ("lite_runtime/language/constraints.py",),
    "jwt": ("edge/gateway/access/issuer.py",),
    "llvmlite": COMPILING,
    "numba": COMPILING,
    "mlflow": ("cloud/track/copies/mlflow.py",),
    "obstore": ("cloud/hub/storage/s3.py", "edge/gateway/sources/s3.py"),
    "opentelemetry": (
        "cloud/hub/server/observing.py",
        "edge/gateway/operate/",
    ),
    "optuna": ("cloud/train/tuning/history.py",),
    "orbax": ("cloud/train/keeping/checkpoint.py",),
    "onnxruntime_genai": ("edge/peers/_tokens.py",),
    "openvino_genai": ("edge/peers/_tokens.py",),
    "orjson": (GATEWAY,),
    "psycopg": ("cloud/hub/database/postgres.py",),
    "pyarrow": ("cloud/data/reading/tables.py",),
    "ray": ("cloud/train/many/ray/", "edge/ray_serve.py"),
    "securesystemslib": ("cloud/hub/repository/",),
    "starlette": ("edge/ray_serve.py",),
    "skl2onnx": ("converter/frontends/sklearn.py",),
    "sklearn": ("cloud/train/inputs/digits.py", "converter/frontends/sklearn.py"),
    "tensorboardX": ("cloud/track/tensorboard.py",),
    "tuf": ("cloud/hub/repository/", "edge/agent/trust.py"),
    "wandb": ("cloud/track/copies/wandb.py",),
    "torch": ("converter/frontends/torch/operators.py",),
}


@cache
def libraries() -> dict[str, frozenset[str]]:
    """What every file imports, by its path: the first part of each name."""
    found: dict[str, set[str]] = {}
    for floor in THERE:
        for path, _, name in imports(floor):
            found.setdefault(path, set()).add(name.partition(".")[0])
    return {path: frozenset(names) for path, names in found.items()}


@pytest.mark.parametrize("library", sorted(ONLY))
def test_a_library_is_imported_where_the_architecture_says(library: str) -> None:
    found = [path for path, names in libraries().items() if library in names]
    assert found, f"nothing imports {library}: remove its row"
    assert [path for path in found if not path.startswith(ONLY[library])] == []


def test_one_folder_imports_flower() -> None:
    found = (row for row in imports("federated") if not row[0].startswith(TRANSPORT))
    assert [f"{path}:{line} imports {name}" for path, line, name in found if name.partition(".")[0] == "flwr"] == []


def test_a_device_that_learns_needs_no_converter() -> None:
    found = imports("federated")
    assert [f"{p}:{line} imports {n}" for p, line, n in found if n.partition(".")[0] == "converter"] == []


def test_every_folder_of_code_has_its_layer() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders <= {*FLOORS, "benchmarks", "tests"}


def test_msedge_imports_nothing_eagerly() -> None:
    found = parsed((ROOT / "msedge.py").read_bytes()).imports
    names = {name.partition(".")[0] for one in found if one.at_once for name in one.modules()}
    assert names <= {"__future__", "importlib", "typing"}


def test_imports_are_found_wherever_they_stand() -> None:
    text = """
import a, a.b
from c import d
if TYPE_CHECKING:
    import e
try:
    from .f import g
except ImportError:
    import h
class C:
    import i
    def method(self):
        with open("") as file:
            match file:
                case 0:
                    from j.k import l
async def coroutine():
    for _ in ():
        pass
    else:
        import m
"""
    found = {name: one.at_once for one in parsed(text).imports for name in one.modules()}
    assert found == {"a": True, "a.b": True, "c": True, "e": False, "h": True, "i": True, "j.k": False, "m": False}
    assert parsed(text).functions == (("method", 5), ("coroutine", 5))
