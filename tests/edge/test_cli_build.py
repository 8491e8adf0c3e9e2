"""`msedge build` as users run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lite_runtime.native.target import host
from tests.edge.conftest import Small
from tests.edge.test_cli import as_json, msedge

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
SHAPE = ("--input-shape", "x=1,3,8,8")


def test_build_writes_a_folder_and_says_what_it_did(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "web"
    stdout, stderr = msedge("build", small.bundle, "--target", "wasm32", "-o", out, *SHAPE)
    assert "predict: x [1, 3, 8, 8]" in stdout and "model.msflat" in stdout
    assert "gzipped" in stdout and "README.md" in stderr
    made = as_json("build", small.bundle, "--target", "wasm32", "-o", out)
    assert made["signatures"] == {"predict": {"x": [1, 3, 8, 8]}}  # an open batch is one
    assert made["folder"] == str(out) and made["steps"] > 3
    assert {path.name: path.stat().st_size for path in out.iterdir()} == made["files"]


def test_build_writes_a_c_library(small: Small, tmp_path: Path) -> None:
    found = host()
    assert found is not None
    stdout, _ = msedge("build", small.bundle, "--target", found.name, "-o", tmp_path / "c", "--signature", "predict")
    assert "predict: x [1, 3, 8, 8]" in stdout and "kernels.o" in stdout
    assert {"msedge.h", "msedge.c", "Makefile", "kernels.o"} <= {path.name for path in (tmp_path / "c").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--target", "z80", *SHAPE), "expected a target of wasm32,"),
        (("--target", "wasm32", "--input-shape", "x=1,3,8,9"), "expected a shape like"),
        (("--target", "wasm32", "--signature", "train", *SHAPE), "expected a signature of predict"),
    ],
)
def test_mistakes_are_told_without_a_folder(
    small: Small, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    stdout, stderr = msedge("build", small.bundle, "-o", tmp_path / "web", *arguments, code=3)
    assert stdout == "" and told in stderr and "Traceback" not in stderr
    assert not (tmp_path / "web").exists()


def test_a_file_that_is_no_bundle_is_told(small: Small, tmp_path: Path) -> None:
    _, stderr = msedge("build", small.source, "--target", "wasm32", "-o", tmp_path / "web", code=3)
    assert "error: " in stderr and "bug in msedge" not in stderr


def test_build_says_what_a_microcontroller_needs(small: Small, tmp_path: Path) -> None:
    out, target = tmp_path / "firmware", ("--target", "cortex-m7")
    stdout, _ = msedge("build", small.bundle, *target, "-o", out, "--ram", "1M", *SHAPE)
    assert "RAM: " in stdout and " of arena" in stdout and " of stack" in stdout
    ram = as_json("build", small.bundle, *target, "-o", out, *SHAPE)["ram"]
    assert ram.pop("total") == sum(ram.values())
    _, stderr = msedge("build", small.bundle, *target, "-o", tmp_path / "no", "--ram", "1k", *SHAPE, code=3)
    assert "expected a model for 1024 bytes of RAM, got one that needs" in stderr
    _, stderr = msedge("build", small.bundle, *target, "-o", tmp_path / "no", "--ram", "64kb", *SHAPE, code=2)
    assert "as 65536, 64K or 1M" in " ".join(stderr.split())
    assert not (tmp_path / "no").exists()


def test_a_page_that_joins_federated_runs_gets_its_modules(small: Small, tmp_path: Path) -> None:
    one = ("--target", "wasm32", "-o", tmp_path / "web", "--federated")
    for words, told in (
        ((*one, "--signature", "predict"), "needs --signature evaluate"),
        (("--target", "x86-64-v3", "-o", tmp_path / "web", "--federated"), "only used with --target wasm32"),
    ):
        _, stderr = msedge("build", small.bundle, *words, code=2)
        assert told in stderr
    assert not (tmp_path / "web").exists()
