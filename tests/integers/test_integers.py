"""Integer models give the recorded bits for every target of this processor, and in WebAssembly.

Emulated processors are asked by `tests/emulated`, with the same bundles and the same record.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from converter import build
from lite_runtime.errors import UnsupportedOpError
from lite_runtime.native.target import host, runnable
from tests.converter.ahead import node
from tests.emulated.device import inputs_of, sha256_of
from tests.integers.digests import found_here, recorded, write_bundles
from tests.integers.models import MODELS

ON_REFERENCE = {"conv_integer"}
"""Models of operators that have no kernel."""
pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    write_bundles(folder)
    return folder


def test_all_models_are_recorded() -> None:
    assert set(recorded()) == set(MODELS)
    assert len(MODELS) >= 30


@pytest.mark.parametrize("target", [target.name for target in runnable()])
def test_every_target_here_gives_the_recorded_bits(bundles: Path, target: str) -> None:
    assert found_here(bundles, target) == recorded()


@node.needs_node
def test_webassembly_gives_the_recorded_bits(bundles: Path, tmp_path: Path) -> None:
    found = {}
    for name in MODELS:
        path = bundles / f"{name}.mslite"
        try:
            build(path, tmp_path / name)
        except UnsupportedOpError:
            assert name in ON_REFERENCE
            continue
        inputs = inputs_of(lite_runtime.load(str(path)).inputs())
        (outputs,) = node.run(tmp_path / name, inputs).outputs
        (digest,) = (sha256_of(np.ascontiguousarray(array)) for array in outputs.values())
        found[name] = digest
    assert found == {name: digest for name, digest in recorded().items() if name not in ON_REFERENCE}
