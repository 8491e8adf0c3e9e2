"""Chosen kernels as an object file: what is in it, and that a damaged one is made again."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from lite_runtime.native import build, objects
from lite_runtime.native.codegen import retarget
from lite_runtime.native.codegen.link import outside
from lite_runtime.native.libraries import macho
from lite_runtime.native.target import host
from lite_runtime.targets import TARGETS, named

KERNELS = ("elementwise.f32_chain", "copy.rows")
LOOPS = ("float32.load0", "float32.op0", "float32.op9", "float32.store0")
pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


def test_one_symbol_is_seen_and_none_is_needed() -> None:
    target = host()
    assert target is not None
    made, digest = objects.object_for(KERNELS, LOOPS, target)
    assert outside(made) == set()
    table = made.index(target.name.encode().ljust(28, b"\0") + digest)
    assert int.from_bytes(made[table - 4 : table], "little") == len(KERNELS)
    assert sha256(made.replace(digest, objects.PLACE)).digest() == digest
    assert objects.object_for(KERNELS, LOOPS, target) == (made, digest)
    one, other = objects.object_for(KERNELS[1:], (), target)
    assert len(one) < len(made) and other != digest


def test_arm_has_functions_of_its_own(tmp_path: Path) -> None:
    """What the back end calls is in the file, and nobody else sees it."""
    made, _ = objects.object_for(("elementwise.i64_chain",), (), named("armv7"))
    (tmp_path / "kernels.o").write_bytes(made)
    assert outside(made) == set() and b"__aeabi_ldivmod" in made
    shown = subprocess.run(["nm", "-g", tmp_path / "kernels.o"], capture_output=True, text=True)
    if shown.returncode == 0:
        assert [line.split()[-1] for line in shown.stdout.splitlines()] == [objects.SYMBOL]


def test_loops_of_chains_that_are_not_used_are_left_out() -> None:
    target = host()
    assert target is not None
    some, _ = objects.object_for(KERNELS[:1], LOOPS, target)
    every = [f"float32.{part}{i}" for part in ("load", "op", "store") for i in range(100)]
    whole, _ = objects.object_for(KERNELS[:1], every, target)
    assert 4 * len(some) < len(whole)


def test_apples_object_files_are_read() -> None:
    made, _ = objects.object_for(KERNELS, LOOPS, named("macos"))
    assert made.startswith(macho.MAGIC) and macho.outside(made) == set()
    retarget.llvm()
    needing = llvm.parse_assembly("declare void @puts()\ndefine void @run() {\n call void @puts()\n ret void\n}")
    machine = llvm.Target.from_triple("aarch64-apple-macosx11.0").create_target_machine()
    assert macho.outside(machine.emit_object(needing)) == {"puts"}
    for other in (b"", b"\x7fELF", made[:40], macho.MAGIC * 20):
        with pytest.raises(build.BuildError, match="expected a whole Mach-O object"):
            macho.outside(other)


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    target = named(TARGETS[-1].name)
    made, digest = objects.object_for(KERNELS[1:], (), target)
    path = Path(build.object_path(KERNELS[1:], (), target))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert objects.object_for(KERNELS[1:], (), target) == (made, digest)
    assert path.read_bytes() == whole


def test_kernels_that_are_none_are_told() -> None:
    target = host()
    assert target is not None
    with pytest.raises(build.BuildError, match=r"got none called copy\.sideways"):
        objects.object_for(("copy.rows", "copy.sideways"), (), target)
