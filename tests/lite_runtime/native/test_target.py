"""The table of targets, what this machine says of itself, and which target it uses."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from lite_runtime import targets
from lite_runtime.errors import MsedgeError
from lite_runtime.native import machine, target


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    target.host.cache_clear()
    yield
    target.host.cache_clear()


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose processor and features the test sets; nothing is asked for."""
    monkeypatch.delenv("MSEDGE_TARGET", raising=False)
    monkeypatch.setattr(machine, "triple", lambda: "x86_64-unknown-linux-gnu")
    return monkeypatch


def test_names_are_distinct_and_bases_come_later() -> None:
    names = [t.name for t in targets.TARGETS]
    assert len(set(names)) == len(names)
    for t in targets.TARGETS:
        assert not t.base or names.index(t.base) > names.index(t.name)
        if t.base:
            base = targets.named(t.base)
            assert (base.triple, base.shape) == (t.triple, t.shape)
            assert base.needs < t.needs


@pytest.mark.parametrize("wanted", [t for t in targets.TARGETS if t.needs], ids=lambda t: t.name)
def test_a_machine_takes_the_best_target_it_has_the_features_for(
    only: pytest.MonkeyPatch, wanted: targets.Target
) -> None:
    only.setattr(machine, "triple", lambda: wanted.triple)
    only.setattr(machine, "features", lambda: wanted.needs)
    assert target.host() is wanted


def test_a_better_target_never_needs_less_than_a_worse_one() -> None:
    """Else the machine that has what both need would take the first and not the best."""
    for i, better in enumerate(targets.TARGETS):
        for worse in targets.TARGETS[i + 1 :]:
            assert better.triple != worse.triple or not better.needs < worse.needs


def test_dot_products_take_one_instruction_where_the_machine_says_so() -> None:
    for t in targets.TARGETS:
        assert (t.dot == "vpdpbusd") == bool(t.needs & {"avx512_vnni", "avx_vnni"})
        assert (t.dot == "usdot") == ("i8mm" in t.needs)
        assert (t.dot in ("sdot", "usdot")) == ("asimddp" in t.needs)


def test_llvm_knows_every_triple_processor_and_feature() -> None:
    """An unknown name would only be a warning of LLVM's on stderr."""
    code = (
        "import llvmlite.binding as llvm\n"
        "from lite_runtime.targets import TARGETS\n"
        "llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()\n"
        "for t in TARGETS:\n"
        "    module = llvm.parse_assembly('define void @f() { ret void }')\n"
        "    made = llvm.Target.from_triple(t.triple).create_target_machine(cpu=t.cpu, features=t.features)\n"
        "    module.triple = t.triple\n"
        "    assert made.emit_object(module), t\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_target_without_features_or_if_disabled(only: pytest.MonkeyPatch) -> None:
    only.setattr(machine, "features", lambda: frozenset())
    assert target.host() is None
    target.host.cache_clear()
    only.setattr(machine, "features", lambda: targets.TARGETS[0].needs)
    only.setenv("MSEDGE_TARGET", "none")
    assert target.host() is None


def test_a_target_beyond_the_machine_is_refused_with_those_it_runs(only: pytest.MonkeyPatch) -> None:
    only.setattr(machine, "features", lambda: targets.named("x86-64-v2").needs)
    for wanted in ("x86-64-v4", "aarch64", "z80"):
        only.setenv("MSEDGE_TARGET", wanted)
        with pytest.raises(MsedgeError, match=r"this machine runs x86-64-v2;"):
            target.host()


def test_an_unknown_name_is_refused_with_those_known() -> None:
    with pytest.raises(MsedgeError, match=r"expected a target of x86-64-v4-vnni, .*riscv64, .*, got z80"):
        targets.named("z80")


# -- this machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "pointer", "system", "wanted"),
    [
        ("x86_64", 8, "linux", "x86_64-unknown-linux-gnu"),
        ("win-amd64", 8, "win32", "x86_64-w64-windows-gnu"),
        ("win-arm64", 8, "win32", "aarch64-w64-windows-gnu"),
        ("mingw_x86_64", 8, "win32", "x86_64-w64-windows-gnu"),
        ("win32", 4, "win32", ""),
        ("arm64", 8, "darwin", "aarch64-apple-macosx11.0"),
        ("x86_64", 8, "darwin", "x86_64-apple-macosx10.13"),  # also what a process for x86-64 sees on 64-bit Arm
        ("aarch64", 8, "android", "aarch64-unknown-linux-gnu"),
        ("armv7l", 4, "linux", "armv7-unknown-linux-gnueabihf"),
        ("aarch64", 4, "linux", "armv7-unknown-linux-gnueabihf"),  # a 32-bit system on a 64-bit kernel
        ("x86_64", 4, "linux", ""),
        ("riscv64", 8, "linux", "riscv64-unknown-linux-gnu"),
        ("s390x", 8, "linux", ""),
        ("x86_64", 8, "sunos5", ""),
    ],
)
def test_a_processs_triple(monkeypatch: pytest.MonkeyPatch, said: str, pointer: int, system: str, wanted: str) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: said if system != "win32" else "ARM64")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: said)
    monkeypatch.setattr(machine.ctypes, "sizeof", lambda kind: pointer)
    monkeypatch.setattr(machine.sys, "platform", system)
    assert machine.triple() == wanted
    assert wanted == "" or wanted in {t.triple for t in targets.TARGETS}


def test_the_processor_says_what_the_system_says() -> None:
    """Where nothing is emulated, /proc/cpuinfo agrees."""
    if machine.triple() != "x86_64-unknown-linux-gnu" or not Path("/proc/cpuinfo").exists():
        pytest.skip("x86-64 Linux alone names its features as we do")
    said = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    known = {name for names in machine._LEAVES.values() for name in names}
    assert machine.features() == known & set(said.split())


def test_a_process_that_may_map_no_code_reads_what_linux_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    if machine.triple() != "x86_64-unknown-linux-gnu":
        pytest.skip("only x86-64 asks the processor itself")
    asked = machine.features()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(machine.mmap, "mmap", refused)
    assert asked and asked <= machine.features()


def test_code_in_memory_runs_where_a_file_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(machine.os, "memfd_create", refused)
    if machine.triple() == "x86_64-unknown-linux-gnu":
        xgetbv = machine._code(machine._XGETBV, ctypes.c_uint64)
        assert xgetbv is not None and xgetbv() & 3 == 3


# -- other systems, whose answers are replaced -------------------------------------------------------------------------


MAC = {
    "machdep.cpu.features": "FPU SSE SSE2 SSE3 SSSE3 FMA CX16 SSE4.1 SSE4.2 x2APIC MOVBE POPCNT AES XSAVE AVX1.0 F16C",
    "machdep.cpu.leaf7_features": "RDWRFSGS TSC_THREAD_OFFSET BMI1 AVX2 SMEP BMI2 ERMS",
}


@pytest.mark.parametrize(
    ("without", "wanted"),
    [("", "macos-x86-64"), ("AVX2", None), ("FMA", None), ("MOVBE", None), ("BMI2", None), ("F16C", None)],
)
def test_a_mac_with_intels_processor_is_asked_by_sysctl(
    only: pytest.MonkeyPatch, without: str, wanted: str | None
) -> None:
    only.setattr(machine, "triple", lambda: "x86_64-apple-macosx10.13")
    said = {name: " ".join(word for word in text.split() if word != without) for name, text in MAC.items()}
    only.setattr(machine, "_sysctl", lambda name: said.get(name, ""))
    found = target.host()
    assert (found and found.name) == wanted


def test_a_mac_that_says_nothing_has_no_target(only: pytest.MonkeyPatch) -> None:
    """Either list may be absent."""
    only.setattr(machine, "triple", lambda: "x86_64-apple-macosx10.13")
    only.setattr(machine, "_sysctl", lambda name: MAC["machdep.cpu.features"] if name == "machdep.cpu.features" else "")
    assert target.host() is None


def test_macs_with_apples_processors_have_one_target(only: pytest.MonkeyPatch) -> None:
    only.setattr(machine, "triple", lambda: "aarch64-apple-macosx11.0")
    assert target.host() is targets.named("macos")


def test_sysctl_is_called_with_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the signature of sysctlbyname(3)."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *[ctypes.c_void_p] * 3, ctypes.c_size_t)

    @kind
    def sysctlbyname(name: bytes, out: int, size: int, new: int | None, more: int) -> int:
        if (name, new, more) != (b"a.name", None, 0) or ctypes.c_size_t.from_address(size).value != 4096:
            return -1
        ctypes.memmove(out, b"AVX2 FMA\0", 9)
        return 0

    class Library:
        pass

    library = Library()
    library.sysctlbyname = sysctlbyname  # type: ignore[attr-defined]
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: library)
    assert machine._sysctl("a.name") == "AVX2 FMA"
    assert machine._sysctl("another") == ""


@pytest.mark.parametrize(
    ("triple", "present", "wanted"),
    [
        ("aarch64-w64-windows-gnu", {19, 34, 43}, "windows-arm64"),
        ("aarch64-w64-windows-gnu", {19, 34}, None),  # the first processors for Windows on Arm had no DotProd
        ("x86_64-w64-windows-gnu", {36, 37, 38, 40}, "windows-x86-64-v2"),  # does not tell all that AVX2's target needs
        ("x86_64-w64-windows-gnu", set(), None),
    ],
)
def test_windows_says_what_a_processor_has(
    only: pytest.MonkeyPatch, triple: str, present: set[int], wanted: str | None
) -> None:
    """On x86-64 where the process may map no code of its own; else CPUID is read, as everywhere."""
    only.setattr(machine, "triple", lambda: triple)
    only.setattr(machine, "_is_present", lambda: lambda number: int(number in present))
    only.setattr(machine, "_code", lambda *_: None)
    only.setattr(machine.sys, "platform", "win32")
    found = target.host()
    assert (found and found.name) == wanted
