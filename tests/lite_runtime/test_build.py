"""Kernels are compiled once, kept whole, and found again without the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lite_runtime import build
from lite_runtime.errors import MissingExtraError
from lite_runtime.target import TARGETS, host

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


def test_every_family_is_kept_after_prepare() -> None:
    build.prepare()
    assert build.prepare() == []


def test_a_family_gives_addresses() -> None:
    assert {"run", "serve", "ring"} <= set(build.image("walker").addresses)


def test_kept_kernels_load_without_numba(tmp_path: Path) -> None:
    """A process that runs native code has imported neither numba nor llvmlite."""
    code = (
        "import sys; from lite_runtime import build; build.image('gemm');"
        "print([m for m in ('numba', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_kept_and_no_compiler_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_compiler", lambda: "")
    build._path.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"msedge\[jit\]"):
            build.prepare(["walker"])
        assert not build.available()
    finally:
        build._path.cache_clear()


def test_an_image_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = TARGETS[0]
    path = tmp_path / "kernels" / "some.img"
    build._keep(str(path), b"\xc3", {"f": 0}, target)
    assert build.Image(str(path)).addresses.keys() == {"f"}
    assert [p.name for p in path.parent.iterdir()] == ["some.img"]


def test_a_damaged_image_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found too short or changed, it is made anew; here by copying the kept one, which costs no compiling."""
    target = host()
    assert target is not None
    build.prepare(["walker"])
    whole = Path(build._path("walker", target)).read_bytes()
    path = tmp_path / "walker.img"
    monkeypatch.setattr(build, "_path", lambda family, target: str(path))
    monkeypatch.setattr(build, "prepare", lambda wanted: path.write_bytes(whole))
    for damaged in (whole[:5000], whole[:-1] + b"\x90", b"", b"MSKIMG01" + bytes(5000)):
        monkeypatch.setattr(build, "_images", {})
        path.write_bytes(damaged)
        assert {"run", "serve", "ring"} <= set(build.image("walker").addresses)
        assert path.read_bytes() == whole


def test_code_that_needs_a_library_is_refused() -> None:
    """An object with an undefined symbol never becomes an image."""
    import llvmlite.binding as llvm

    target = host()
    assert target is not None
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly("declare void @outside()\ndefine void @f() {\n call void @outside()\n ret void\n}\n")
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, reloc="pic", codemodel="small"
    )
    with pytest.raises(build.BuildError, match="outside"):
        build._link(machine.emit_object(module), ["f"])
