"""What importing costs and needs, each in a separate process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value

ROOT = Path(__file__).parents[1]
HEAVY = (
    "jax",
    "optax",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "numba",
    "llvmlite",
    "sklearn",
    "rich",
    "numpy",
)


def python(*arguments: str, path: Path = ROOT, isolated: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `path` on its path; isolated: with nothing else but the standard library."""
    command = [sys.executable, *(["-S"] if isolated else []), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **env}
    return subprocess.run(command, env=environment, cwd=path, capture_output=True, text=True, timeout=300)


def loaded(code: str) -> set[str]:
    """Which of HEAVY are loaded after `code`."""
    done = python("-c", f"{code}\nimport sys, json\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def home(package: str) -> Path:
    """The path of an installed package: its folder, or its single file."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin, package
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


def only(folder: Path, *packages: str) -> Path:
    """A folder that holds these packages and ours, as if nothing else were installed."""
    for name in (*packages, "edge", "lite_runtime", "converter", "federated", "cloud", "msedge.py"):
        source = ROOT / name if (ROOT / name).exists() else home(name)
        for there in (source, source.with_name(f"{name}.libs")):
            if there.exists():
                (folder / there.name).symlink_to(there)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of y = relu(x @ w)."""
    rng = np.random.default_rng(0)
    graph = Graph(
        inputs=(Value("x", "float32", ("n", 8)),),
        outputs=(Value("y", "float32", ("n", 4)),),
        nodes=(Node("MatMul", ("x", "w"), ("z",)), Node("Relu", ("z",), ("y",))),
        constants={"w": rng.standard_normal((8, 4)).astype(np.float32)},
    )
    path = tmp_path_factory.mktemp("bundle") / "small.mslite"
    bundle.write(path, {"predict": graph})
    return path


RUN = """
import sys, numpy as np, lite_runtime
model = lite_runtime.load(sys.argv[1], backend=sys.argv[2])
y = model.run({"x": np.ones((3, 8), np.float32)})["y"]
print(y.shape, [m for m in ("numba", "llvmlite", "ml_dtypes", "onnx", "jax", "_hashlib") if m in sys.modules])
"""


def test_importing_msedge_loads_nothing() -> None:
    assert loaded("import msedge; dir(msedge)") == set()


def test_help_loads_nothing_heavy() -> None:
    assert loaded("import edge.cli.app") == set()
    asked = "from typer.testing import CliRunner; assert 'convert' in CliRunner().invoke(app, ['--help']).output"
    assert loaded(f"from edge.cli.app import app; {asked}") == set()


def test_training_what_jax_computes_loads_no_onnx() -> None:
    """It is a third of what a worker loads, and every process of a run loads it again."""
    task = "JaxTask(lambda params, x: x @ params, np.ones((4, 2), np.float32))"
    code = f"import numpy as np; from cloud.train import Callback, Checkpoints, JaxTask, Trainer; Trainer({task})"
    assert loaded(code).isdisjoint({"onnx", "onnx_ir", "numba"})
    assert loaded("import cloud.train").isdisjoint(HEAVY)


def test_every_public_name_exists() -> None:
    code = "import msedge\nfor n in msedge.__all__: assert getattr(msedge, n).__name__.split('.')[-1] == n"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_gives_the_list_of_names() -> None:
    import msedge

    with pytest.raises(AttributeError, match="'nothing'; it offers Accuracy, BundleError"):
        _ = msedge.nothing


def test_the_runtime_runs_with_numpy_alone(tmp_path: Path, small: Path) -> None:
    done = python("-c", RUN, str(small), "reference", path=only(tmp_path, "numpy"), isolated=True)
    assert (done.returncode, done.stdout.strip()) == (0, "(3, 4) []"), done.stderr


def test_kept_kernels_run_without_importing_a_compiler(small: Path) -> None:
    from lite_runtime.native import build

    if not build.available():
        pytest.skip("this machine is no target of the native kernels")
    build.prepare()
    done = python("-c", RUN, str(small), "native")
    assert (done.returncode, done.stdout.strip()) == (0, "(3, 4) []"), done.stderr


def test_without_the_packages_of_the_command_line_msedge_says_what_to_install(tmp_path: Path) -> None:
    done = python("-m", "edge.cli", "doctor", path=only(tmp_path, "numpy"), isolated=True)
    assert done.returncode == 3
    assert "typer is not installed" in done.stderr and "pip install typer rich msgspec" in done.stderr


CLI = ("numpy", "typer", "click", "rich", "pydantic", "pydantic_core", "annotated_types", "annotated_doc",
       "typing_extensions", "typing_inspection", "shellingham", "pygments", "markdown_it", "mdurl")  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["convert", "model.onnx", "-o", "model.mslite"], "the extra 'convert' of the wheel or checkout"),
        (["verify", "model.onnx", "small.mslite"], "pip install onnxruntime ai-edge-litert"),
        (["demo"], "pip install jax optax scikit-learn"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, small: Path, arguments: list[str], line: str) -> None:
    there = only(tmp_path, *(name for name in CLI if importlib.util.find_spec(name)))
    (there / "model.onnx").write_bytes(b"")
    (there / "small.mslite").write_bytes(small.read_bytes())
    done = python("-m", "edge.cli", *arguments, path=there, isolated=True)
    assert done.returncode == 3, done.stdout + done.stderr
    assert line in done.stderr
    assert "Traceback" not in done.stderr


def test_a_public_name_names_its_missing_extra(tmp_path: Path) -> None:
    code = "import msedge\ntry: msedge.convert\nexcept msedge.MissingExtraError as e: print(e)"
    done = python("-c", code, path=only(tmp_path, "numpy"), isolated=True)
    assert "the extra 'convert' of the wheel or checkout" in done.stdout, done.stderr
