"""Operations on emulated processors give what they give here, and processors say what they are.

`python -m tests.emulated` runs whole models there, which takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lite_runtime.native import build
from lite_runtime.native.target import host
from lite_runtime.native.wheel import device_files
from lite_runtime.targets import named
from tests.emulated import systems, working
from tests.emulated.systems import SYSTEMS, System

BEST = {"aarch64": "aarch64-i8mm", "armv7": "armv7", "riscv64": "riscv64-v256"}
"""The target with most instructions of its own, by system."""
pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_operations_of_a_device_give_numpys_results(system: System, tmp_path: Path) -> None:
    """In their generic form, and by the processor's own instructions. The system, asked, must name a target at least as
    good."""
    if problem := systems.missing(system):
        pytest.skip(problem)
    if not systems.folder(system).is_dir():
        pytest.skip(f"{system.name} is not prepared: python -m tests.emulated prepare")
    for path in device_files(build.ROOT):
        into = tmp_path / "site" / "lite_runtime" / path
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_bytes((Path(build.ROOT) / path).read_bytes())
    working.compiled_operations(tmp_path / "operations", named(BEST[system.name]))
    found = working.report(system, BEST[system.name], tmp_path, operations=tmp_path / "operations")
    assert found["failed"] == {}
    assert found["target"] == BEST[system.name]
    assert len(found["ran"]) >= 20
