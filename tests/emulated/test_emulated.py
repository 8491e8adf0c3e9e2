"""On emulated processors: operations and models give what they give here, and processors say what they are.

`python -m tests.emulated` runs more there, for all targets, which takes minutes for each.
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
from tests.integers.digests import digest_of, recorded, write_bundles

BEST = {"aarch64": "aarch64-i8mm", "armv7": "armv7", "riscv64": "riscv64-v256"}
"""The target with most instructions of its own, by system."""
MODELS = {"aarch64": "aarch64-dotprod", "armv7": "armv7", "riscv64": "riscv64-v", "windows": "windows-x86-64-v3"}
"""The target whose wheel is installed for whole models, by system: the most common one."""
pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


def needs(system: System) -> None:
    """Skip the test if the system cannot be emulated here."""
    if problem := systems.missing(system):
        pytest.skip(problem)
    if not systems.folder(system).is_dir():
        pytest.skip(f"{system.name} is not prepared: python -m tests.emulated prepare")


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system.debian], ids=lambda system: system.name)
def test_operations_of_a_device_give_numpys_results(system: System, tmp_path: Path) -> None:
    """In their generic form, and by the processor's own instructions. The system, asked, must name a target at least as
    good."""
    needs(system)
    for path in device_files(build.ROOT):
        into = tmp_path / "site" / "lite_runtime" / path
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_bytes((Path(build.ROOT) / path).read_bytes())
    working.compiled_operations(tmp_path / "operations", named(BEST[system.name]))
    found = working.report(system, BEST[system.name], tmp_path, operations=tmp_path / "operations")
    assert found["failed"] == {}
    assert found["target"] == BEST[system.name]
    assert len(found["ran"]) >= 20


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_integer_models_on_a_device_give_the_recorded_bits(system: System, tmp_path: Path) -> None:
    """With the files of a device's wheel."""
    needs(system)
    target = MODELS[system.name]
    if target not in system.targets:
        pytest.skip(f"this processor is not of {target}")
    working.device_files(tmp_path / "site", [target])
    write_bundles(tmp_path / "bundles")
    found = working.report(system, target, tmp_path, bundles=tmp_path / "bundles")
    assert (found["target"], found["failed"]) == (target, {})
    assert {name: digest_of(one) for name, one in found["ran"].items()} == recorded()
