"""Kernels as shared libraries for macOS and Windows: what is linked, what is refused, how the runtime loads one."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lite_runtime.native import build, target, trust, wheel
from lite_runtime.native.images import BuildError, ImageFile
from lite_runtime.native.libraries import coff, linking, loading, macho
from lite_runtime.targets import TARGETS, Target, named

FAMILIES = ("copy", "walker")
LIBRARIES = [t for t in TARGETS if t.library]
CHECKED = ("macos", "macos-x86-64", "windows-x86-64-v3", "windows-arm64")
"""One target of each processor and system."""
MINGW = shutil.which("x86_64-w64-mingw32-gcc")


def there(name: str) -> bool:
    try:
        return bool(linking.linker(name))
    except BuildError:
        return False


needs_lld = pytest.mark.skipif(not (there("ld64.lld") and there("lld-link")), reason="LLVM's lld is not installed")


def objects(of: Target) -> dict[str, tuple[bytes, dict[str, int]]]:
    """Two families' object files."""
    build.prepare(FAMILIES, target=of)
    found = {}
    for family in FAMILIES:
        with trust.opened(build._path(family, of)) as file:
            code, kernels = ImageFile(file, family).code(family)
            found[family] = bytes(code), dict(kernels)
    return found


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries of `CHECKED`."""
    folder = tmp_path_factory.mktemp("prebuilt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "families", lambda: FAMILIES)
        wheel.pack(str(folder), CHECKED)
    return folder


# -- what is linked ----------------------------------------------------------------------------------------------------


@needs_lld
@pytest.mark.parametrize("name", CHECKED)
def test_a_library_has_the_kernels_and_asks_nothing_of_the_system(packed: Path, name: str) -> None:
    """The allow-lists: no symbol from outside, no place that needs an address, and of libraries the one that macOS
    demands."""
    of = named(name)
    whole = (packed / f"{name}{of.library}").read_bytes()
    found = (macho if of.library == ".dylib" else coff).contents(whole)
    assert found.processor == of.processor
    assert {"walker.alone", "walker.lead", "walker.serve", "walker.tick", "copy.rows"} <= found.exports
    assert all(symbol.partition(".")[0] in FAMILIES for symbol in found.exports)
    assert (found.imports, found.fixed) == (frozenset(), 0)
    assert found.libraries == (("/usr/lib/libSystem.B.dylib",) if of.library == ".dylib" else ())
    assert found.system == {"macos": "11.0", "macos-x86-64": "10.13"}.get(name, "")
    if of.library == ".dylib":
        assert macho.signature(whole) == f"{name}.dylib"
        assert f"@rpath/{name}.dylib\0".encode() in whole


@needs_lld
@pytest.mark.parametrize("name", CHECKED)
def test_a_library_is_the_same_bits_every_time(packed: Path, name: str) -> None:
    of = named(name)
    assert linking.linked(of, objects(of)) == (packed / f"{name}{of.library}").read_bytes()


@needs_lld
@pytest.mark.parametrize("name", CHECKED)
def test_code_that_needs_a_library_is_refused(name: str) -> None:
    import llvmlite.binding as llvm

    from lite_runtime.native.codegen import retarget

    of = named(name)
    retarget.llvm()
    text = "declare void @puts()\ndefine void @a.run() {\n call void @puts()\n ret void\n}"
    machine = llvm.Target.from_triple(of.triple).create_target_machine(reloc="pic")
    made = machine.emit_object(llvm.parse_assembly(text))
    with pytest.raises(BuildError, match=rf"linking {name}{of.library} failed:\n(.|\n)*undefined symbol: puts|_puts"):
        linking.linked(of, {"a": (made, {"run": 0})})


@needs_lld
def test_a_constant_with_an_address_is_refused() -> None:
    """The system would have to write to the library's memory."""
    import llvmlite.binding as llvm

    from lite_runtime.native.codegen import retarget

    retarget.llvm()
    text = "@table = internal constant [1 x ptr] [ptr @a.run]\ndefine ptr @a.run(i64 %i) {\n"
    text += " %p = getelementptr [1 x ptr], ptr @table, i64 0, i64 %i\n %v = load volatile ptr, ptr %p\n ret ptr %v\n}"
    for name in CHECKED:
        of = named(name)
        machine = llvm.Target.from_triple(of.triple).create_target_machine(reloc="pic")
        made = machine.emit_object(llvm.parse_assembly(text))
        with pytest.raises(BuildError, match=r"expected bytes of places to write addresses to 0, got \d"):
            linking.linked(of, {"a": (made, {"run": 0})})


def test_without_a_linker_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking.shutil, "which", lambda name: None)
    monkeypatch.setattr(linking, "_LLVM", "/nowhere")
    with pytest.raises(BuildError, match=r"expected ld64\.lld, .*: install LLVM's lld"):
        linking.linker("ld64.lld")


# -- what is read ------------------------------------------------------------------------------------------------------


@needs_lld
def test_a_changed_page_is_not_signed(packed: Path) -> None:
    whole = (packed / "macos.dylib").read_bytes()
    at = whole.index(b"\xc0\x03\x5f\xd6")  # ret
    with pytest.raises(BuildError, match="page 0 with another digest"):
        macho.signature(whole[:at] + b"\0" + whole[at + 1 :])
    with pytest.raises(BuildError, match="valid signature"):
        macho.signature(whole[:-100])


@needs_lld
def test_other_files_and_parts_of_files_are_no_libraries(packed: Path) -> None:
    for read, name in ((macho.contents, "macos.dylib"), (coff.contents, "windows-arm64.dll")):
        whole = (packed / name).read_bytes()
        for other in (b"", b"\x7fELF" * 20, whole[:20], whole[:200], whole[:60] + bytes(4000)):
            with pytest.raises(BuildError, match="expected a whole"):
                read(other)


@needs_lld
def test_readers_of_damaged_libraries_fail_as_meant(packed: Path) -> None:
    """Whatever bytes change: contents, or BuildError."""
    rng = np.random.default_rng(7)
    for read, name in ((macho.contents, "macos.dylib"), (coff.contents, "windows-x86-64-v3.dll")):
        whole, refused = (packed / name).read_bytes(), 0
        for _ in range(300):
            changed = bytearray(whole)
            for at in rng.integers(0, 1200, 3):
                changed[at] = rng.integers(256)
            try:
                read(bytes(changed))
            except BuildError:
                refused += 1
        assert refused > 10


@pytest.mark.skipif(MINGW is None, reason="no MinGW")
def test_what_a_dll_imports_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int puts(const char *); __declspec(dllexport) int run(void) { return puts(\"a\"); }")
    subprocess.run([str(MINGW), "-shared", "a.c", "-o", "a.dll"], cwd=tmp_path, check=True)
    found = coff.contents((tmp_path / "a.dll").read_bytes())
    assert found.exports == {"run"} and found.processor == "x86_64"
    assert "puts" in found.imports and "msvcrt.dll" in found.libraries


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_the_object_file_that_probes_stacks_is_whole(processor: str) -> None:
    name, code = linking._PROBES[processor]
    made = coff.object_with(processor, name, bytes.fromhex(code))
    assert coff.outside(made) == set() and coff.MACHINES[made[:2]] == processor
    import llvmlite.binding as llvm

    found = llvm.ObjectFileRef.from_data(made)
    assert [section.data() for section in found.sections()] == [bytes.fromhex(code)]


# -- what the runtime loads --------------------------------------------------------------------------------------------


@needs_lld
def test_a_description_tells_what_a_library_has(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system that would load it is not asked before a kernel is used."""
    monkeypatch.setattr(build, "NATIVE", str(packed))
    for name in CHECKED:
        monkeypatch.setattr(build, "host", lambda name=name: named(name))
        (held,) = build._natives(named(name))
        assert set(held.families) == set(FAMILIES) and "alone" in held.families["walker"]
        assert len(build.identity()) == 32
        assert build.available() and build.kept()["walker"] == "wheel"


def test_no_library_is_made_where_it_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one there, models run on references, also where there is a compiler."""
    monkeypatch.setattr(build, "NATIVE", str(tmp_path))
    monkeypatch.setattr(build, "host", lambda: named("windows-x86-64-v3"))
    assert build._compiler() and not build.available()
    assert build.remedy().startswith("install the wheel of msedge-runtime for ")


@pytest.fixture
def library(tmp_path: Path) -> loading.Library:
    """This machine's walker, in a shared library of this system."""
    here = target.host()
    compiler = shutil.which("cc")
    if here is None or compiler is None:
        pytest.skip("no native kernels on this processor, or no linker")
    from lite_runtime.native.codegen.retarget import object_of

    build.prepare(["walker"], target=here, portable=True)
    bitcode = build.read_portable("walker", here.shape_of("walker"))
    assert bitcode is not None
    made, kernels = object_of(bitcode, here, "walker")
    (tmp_path / "walker.o").write_bytes(made)
    words = [compiler, "-shared", "-nostdlib", "walker.o", "-o", "some.so"]
    subprocess.run(words, cwd=tmp_path, check=True)
    names = {"walker": [kernel.partition(".")[2] for kernel in kernels]}
    text = loading.description("identity", (tmp_path / "some.so").read_bytes(), names)
    (tmp_path / "some.txt").write_bytes(text)
    return loading.Library(text, str(tmp_path / "some"), ".so")


def test_kernels_of_a_library_run(library: loading.Library) -> None:
    assert library.identity == "identity"
    addresses = library.image("walker").addresses
    assert {"lead", "serve", "alone", "tick"} <= set(addresses)
    out = np.zeros(2, np.int64)
    tick = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses["tick"])
    tick(out.ctypes.data)
    first = out[0]
    tick(out.ctypes.data)
    assert 0 < first < out[0]


def test_a_damaged_library_is_refused(library: loading.Library, tmp_path: Path) -> None:
    path = tmp_path / "some.so"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"\0", whole[:500] + bytes([whole[500] ^ 1]) + whole[501:]):
        path.write_bytes(damaged)
        with pytest.raises(BuildError, match=r"some\.so is damaged: expected .*; install the runtime again"):
            library.image("walker")


def test_a_library_that_the_system_does_not_load_is_told(tmp_path: Path) -> None:
    path, content = tmp_path / "some", b"MZ" + bytes(1000)
    library = loading.Library(loading.description("identity", content, {"a": ["f"]}), str(path), ".dll")
    with pytest.raises(BuildError, match=r"some\.dll: expected a library that linux loads, got: "):
        library.image("a")
    (tmp_path / "some.dll").write_bytes(content)
    with pytest.raises(BuildError, match=r"expected a library that linux loads, got: .*MSEDGE_TARGET=none"):
        library.image("a")


def test_a_kernel_that_is_not_there_is_told(library: loading.Library, tmp_path: Path) -> None:
    text = loading.description("identity", (tmp_path / "some.so").read_bytes(), {"walker": ["alone", "sideways"]})
    with pytest.raises(BuildError, match=r"expected the kernel walker\.sideways, got none of that name"):
        loading.Library(text, str(tmp_path / "some"), ".so").image("walker")


def test_a_damaged_description_is_refused() -> None:
    text = loading.description("identity", b"library", {"a": ["f", "g"], "b": ["h"]})
    assert loading.Library(text, "some", ".so").families == {"a": ["f", "g"], "b": ["h"]}
    for at in range(len(text)):
        changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        for damaged in (changed, text[:at]):
            with pytest.raises(BuildError, match=r"some\.txt is damaged"):
                loading.Library(damaged, "some", ".so")


def test_wheels_are_named_for_their_systems() -> None:
    assert wheel.platforms(["macos"]) == "macosx_11_0_arm64"
    assert wheel.platforms(["macos-x86_64"]) == "macosx_10_13_x86_64"
    assert wheel.platforms(["windows-x86_64"]) == "win_amd64"
    assert wheel.platforms(["windows-arm64"]) == "win_arm64"
    assert {t for name in wheel.SYSTEMS for t in wheel.expanded([name])} == set(TARGETS)
    assert {t.library for t in wheel.expanded(["windows-x86_64"])} == {".dll"}


# -- stacks of Windows -------------------------------------------------------------------------------------------------


def test_the_probe_of_stacks_keeps_registers_and_stack() -> None:
    """The code for x86-64, run here on a stack of its own with rax = bytes of a frame. That it reads the frame's pages
    is shown by kernels with large frames, which Wine runs (tests/emulated)."""
    if os.uname().machine != "x86_64":
        pytest.skip("code for x86-64")
    from lite_runtime.native import machine

    _, code = linking._PROBES["x86_64"]
    # push rbx, r12; rbx = rsp; rsp = rdi; rax = rsi; rcx = 0x55; call the probe;
    # [rdx] = rax, rcx, rsp; rsp = rbx; pop r12, rbx; ret
    around = bytes.fromhex("53 4154 4889e3 4889fc 4889f0 48c7c155000000")
    after = bytes.fromhex("488902 48894a08 48896210 4889dc 415c 5b c3")
    call = b"\xe8" + struct.pack("<i", len(after))
    probe = machine._code(around + call + after + bytes.fromhex(code), None, *[ctypes.c_void_p] * 3)
    assert probe is not None
    stack, out = np.zeros(1 << 16, np.uint8), np.zeros(3, np.int64)
    top = (stack.ctypes.data + stack.nbytes - 64) // 16 * 16
    for nbytes in (8, 4095, 4096, 4097, 20_000, 12 * 4096):
        probe(top, nbytes, out.ctypes.data)
        assert out.tolist() == [nbytes, 0x55, top]
