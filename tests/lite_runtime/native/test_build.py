"""Kernels are compiled once, stored completely, and found again without the compiler."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lite_runtime.errors import MissingExtraError
from lite_runtime.native import build, compile, trust
from lite_runtime.native.codegen.link import link
from lite_runtime.native.images import Image, ImageFile
from lite_runtime.native.target import host
from lite_runtime.targets import TARGETS

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


def test_every_family_is_kept_after_prepare() -> None:
    build.prepare()
    assert build.prepare() == []


def test_a_family_gives_addresses() -> None:
    assert {"lead", "serve", "alone"} <= set(build.image("walker").addresses)


def test_threads_that_load_a_family_at_once_get_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that nothing refers to is unmapped, while plans have only its addresses."""
    both, load = threading.Barrier(2), ImageFile.image

    def slow(self: ImageFile, family: str) -> Image:
        found = load(self, family)
        both.wait(30)  # each has an image of its own now
        return found

    build.image("walker")
    monkeypatch.setattr(build, "_images", {})
    monkeypatch.setattr(ImageFile, "image", slow)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(build.image, ["walker", "walker"])
    assert one is other is build.image("walker")


def test_a_family_depends_on_the_declarations_of_its_steps() -> None:
    assert {"steps.declaration", "steps.gemm", "native.simd"} <= set(build._sources("kernels.gemm"))
    assert {"steps.qwide", "steps.qgemm", "steps.qdepthwise"} <= set(build._sources("kernels.qwide"))
    assert "steps.gemm" not in build._sources("kernels.copy")


def test_kept_kernels_load_without_numba(tmp_path: Path) -> None:
    """A process that runs native code has imported neither numba nor llvmlite."""
    code = (
        "import sys; from lite_runtime.native import build; build.image('gemm');"
        "print([m for m in ('numba', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_kept_and_no_compiler_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_compiler", lambda: "")
    named_by_the_compiler = (build._path, build._portable_path)
    for each in named_by_the_compiler:
        each.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"pip install 'numba"):
            build.prepare(["walker"])
        assert not build.available()
    finally:
        for each in named_by_the_compiler:
            each.cache_clear()


def test_an_image_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "some.img"
    compile._keep(str(path), TARGETS[0], "some", b"\xc3", {"f": 0})
    with path.open("rb") as file:
        assert build.ImageFile(file, "some").image("some").addresses.keys() == {"f"}
    assert [p.name for p in path.parent.iterdir()] == ["some.img"]


def test_an_image_file_holds_many_families(tmp_path: Path) -> None:
    path = tmp_path / "many.img"
    images = {"a": (b"\x90" * 100, {"f": 0, "g": 64}), "b": (b"\xc3" * 5000, {"h": 4999}), "c": (b"", {})}
    path.write_bytes(build.image_file(images, "identity"))
    with path.open("rb") as file:
        held = build.ImageFile(file, "many")
    assert held.identity == "identity"
    assert {f: (bytes(code), ks) for f in held.families for code, ks in [held.code(f)]} == images
    assert {address % 64 for name, address in held.image("a").addresses.items()} == {0}


def test_an_image_file_has_no_more_space_between_families_than_vectors_need(tmp_path: Path) -> None:
    path = tmp_path / "some.img"
    images = {"a": (b"\x90" * 100, {"f": 4}), "b": (b"\xc3" * 5000, {"h": 4999})}
    path.write_bytes(build.image_file(images))
    with path.open("rb") as file:
        held = build.ImageFile(file, "some")
    assert 128 + 5000 < path.stat().st_size < 128 + 5000 + 256
    assert held.image("a").addresses["f"] % 64 == 4 and held.image("b").addresses["h"] % 64 == 4999 % 64


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["checked", "optimised"])
def test_damaged_images_are_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Every field of the header, every byte, every length: also where Python compiles no assert."""
    done = subprocess.run(
        [sys.executable, *flags, "-m", "tests.lite_runtime.native.damaged_images", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.strip().endswith("all refused")


def test_a_damaged_image_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found too short or changed, it is made anew; here by copying the kept one, which costs no compiling."""
    target = host()
    assert target is not None
    build.prepare(["walker"])
    whole = Path(build._path("walker", target)).read_bytes()
    path = tmp_path / "walker.img"
    monkeypatch.setattr(build, "_path", lambda family, target: str(path))
    monkeypatch.setattr(build, "prepare", lambda wanted: trust.write(str(path), whole))
    trust.write(str(path), b"")
    cut, changed = whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])
    for damaged in (cut, changed, b"", build.MAGIC + bytes(5000)):
        monkeypatch.setattr(build, "_images", {})
        path.write_bytes(damaged)
        assert {"lead", "serve", "alone"} <= set(build.image("walker").addresses)
        assert path.read_bytes() == whole


def test_the_runtimes_own_kernels_are_unpacked_once(native: Path) -> None:
    assert {"lead", "serve", "alone"} <= set(build.image("walker").addresses)
    (unpacked,) = (native / "cache" / "kernels").iterdir()
    assert unpacked.stem.endswith(build.identity()) and len(build.identity()) == 32
    written = unpacked.stat().st_mtime_ns
    build._native.cache_clear()
    assert build.identity() and unpacked.stat().st_mtime_ns == written
    assert build.kept()["walker"] == "wheel"
    assert build.prepare(["walker"]) == [] and build.available()


def test_a_damaged_or_foreign_unpacked_file_is_unpacked_again(native: Path) -> None:
    build.image("walker")
    (unpacked,) = (native / "cache" / "kernels").iterdir()
    whole = unpacked.read_bytes()
    for damaged in (b"", whole[:100], whole.replace(build.identity().encode(), bytes(32), 1)):
        unpacked.write_bytes(damaged)
        build._native.cache_clear()
        build._images.clear()
        assert "lead" in build.image("walker").addresses
        assert unpacked.read_bytes() == whole


def test_kernels_load_where_nothing_can_be_written(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_CACHE", "/proc/no/such/folder")
    assert {"lead", "serve", "alone"} <= set(build.image("walker").addresses)


def test_damaged_kernels_of_the_runtime_are_an_error(native: Path) -> None:
    (packed,) = (native / "native").iterdir()
    whole = packed.read_bytes()
    for damaged in (b"", whole[:10], whole[:200], b"x" + whole[1:], whole[:60] + b"\0\0\0" + whole[63:]):
        packed.write_bytes(damaged)
        build._native.cache_clear()
        with pytest.raises(build.BuildError, match="install the runtime again"):
            build.image("walker")


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
        link(machine.emit_object(module), ["f"])
