"""What this machine is: its LLVM triple, and the features of its processor, asked of the processor or its system.

Of /proc/cpuinfo only where nothing else answers: under emulation it may show another processor. Features have Linux's
names.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["features", "triple"]

_PROCESSORS = {
    ("x86_64", 8): "x86_64",
    ("amd64", 8): "x86_64",
    ("aarch64", 8): "aarch64",
    ("arm64", 8): "aarch64",
    ("armv7l", 4): "armv7",
    ("armv8l", 4): "armv7",
    ("aarch64", 4): "armv7",
    ("riscv64", 8): "riscv64",
}
"""LLVM's architecture by `platform.machine()`, which is the kernel's, and the bytes of this process's pointers."""
_SYSTEMS: Mapping[str, Mapping[str, str]] = {
    "linux": {"": "unknown-linux-gnu", "armv7": "unknown-linux-gnueabihf"},  # kernels pass no floats
    "darwin": {"aarch64": "apple-macosx11.0", "x86_64": "apple-macosx10.13"},
    "win32": {"aarch64": "w64-windows-gnu", "x86_64": "w64-windows-gnu"},
}
"""The rest of a triple by `sys.platform` and architecture; "" stands for all others."""


def triple() -> str:
    """The triple of the targets that this process can use; "" if there is none."""
    system = _SYSTEMS.get("linux" if sys.platform == "android" else sys.platform, {})
    processor = _PROCESSORS.get((_said(), ctypes.sizeof(ctypes.c_void_p)), "")
    rest = system.get(processor, system.get("", ""))
    return f"{processor}-{rest}" if processor and rest else ""


def _said() -> str:
    """The processor's name. Of Windows, the one that this Python is made for: Windows on Arm runs others too."""
    if sys.platform == "win32":
        import sysconfig

        return sysconfig.get_platform().removeprefix("win-").removeprefix("mingw_")
    return platform.machine().lower()


def features() -> frozenset[str]:
    """What this processor and its system offer, as far as `target.py` asks for it."""
    here = triple()
    ask = _ASKED.get(here) or _ASKED.get(here.partition("-")[0])
    return frozenset(ask()) if ask else frozenset()


# -- x86-64: CPUID (Intel's manual, volume 2A), and XGETBV for the registers that the system saves ---------------------

_ANY, _YMM, _ZMM, _TILES = 0, 0b110, 0b11100110, 0b11 << 17
_LEAVES: Mapping[tuple[int, int, int], Mapping[str, tuple[int, int]]] = {
    (1, 0, 2): {
        "ssse3": (9, _ANY),
        "fma": (12, _YMM),
        "sse4_1": (19, _ANY),
        "sse4_2": (20, _ANY),
        "movbe": (22, _ANY),
        "popcnt": (23, _ANY),
        "f16c": (29, _YMM),
    },
    (7, 0, 1): {
        "bmi1": (3, _ANY),
        "avx2": (5, _YMM),
        "bmi2": (8, _ANY),
        "avx512f": (16, _ZMM),
        "avx512dq": (17, _ZMM),
        "avx512cd": (28, _ZMM),
        "avx512bw": (30, _ZMM),
        "avx512vl": (31, _ZMM),
    },
    (7, 0, 2): {"avx512_vnni": (11, _ZMM)},
    (7, 0, 3): {"amx_bf16": (22, _TILES), "amx_tile": (24, _TILES), "amx_int8": (25, _TILES)},
    (7, 1, 0): {"avx_vnni": (4, _YMM)},
}
"""Leaf, subleaf, register (eax, ebx, ecx, edx) -> name -> bit, registers that the system must save."""
_XSAVE = 27
"""The bit of leaf 1's ecx: the system has enabled XGETBV."""
# push rbx; r8, eax, ecx = the arguments, which Windows passes in r8, ecx, edx and others in rdx, edi, esi; cpuid;
# eax, ebx, ecx, edx to [r8]; pop rbx; ret
_CPUID_OF = {"win32": "89c8 89d1", "": "4989d0 89f8 89f1"}
_CPUID = bytes.fromhex(
    f"53 {_CPUID_OF.get(sys.platform, _CPUID_OF[''])} 0fa2 418900 41895804 41894808 4189500c 5b c3"
)
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")  # ecx = 0; xgetbv; rax |= rdx << 32; ret


def _x86() -> Iterable[str]:
    cpuid = _code(_CPUID, None, *[ctypes.c_uint32] * 2, ctypes.c_void_p)
    xgetbv = _code(_XGETBV, ctypes.c_uint64)
    if cpuid is None or xgetbv is None:
        return _present() if sys.platform == "win32" else _listed()
    found = (ctypes.c_uint32 * 4)()

    def registers(leaf: int, subleaf: int) -> list[int]:
        cpuid(leaf, subleaf, found)
        return list(found)

    most = registers(0, 0)[0]
    deepest = {1: 0, 7: registers(7, 0)[0] if most >= 7 else -1}
    saved = xgetbv() if registers(1, 0)[2] >> _XSAVE & 1 else 0
    return [
        name
        for (leaf, subleaf, register), names in _LEAVES.items()
        if leaf <= most and subleaf <= deepest[leaf]
        for name, (bit, needed) in names.items()
        if registers(leaf, subleaf)[register] >> bit & 1 and saved & needed == needed
    ]


def _listed() -> Iterable[str]:
    """What Linux lists, for processes that may map no code of their own."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ())
    except OSError:
        return ()


# -- macOS and Windows: what the system says ---------------------------------------------------------------------------

_SYSCTL: Mapping[str, Mapping[str, str]] = {
    "machdep.cpu.features": {
        "ssse3": "SSSE3",
        "fma": "FMA",
        "sse4_1": "SSE4.1",
        "sse4_2": "SSE4.2",
        "movbe": "MOVBE",
        "popcnt": "POPCNT",
        "f16c": "F16C",
    },
    "machdep.cpu.leaf7_features": {"bmi1": "BMI1", "avx2": "AVX2", "bmi2": "BMI2"},
}
"""Name of a list of macOS, which may be absent -> name -> what the list calls it. A hardened process maps no code of
its own, so the processor is not asked."""
_APPLE = ("asimd", "asimddp", "atomics")
"""What every processor of Apple's computers has; compilers for macOS on 64-bit Arm assume it."""
_PF: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"ssse3": 36, "sse4_1": 37, "sse4_2": 38, "popcnt": 38},
    "aarch64": {"asimd": 19, "atomics": 34, "asimddp": 43},
}
"""Name -> number of `IsProcessorFeaturePresent` (winnt.h). Every processor with SSE4.2 has POPCNT."""


def _listed_by_sysctl() -> Iterable[str]:
    return [
        name
        for words, names in _SYSCTL.items()
        for said in (_sysctl(words).split(),)
        for name, word in names.items()
        if word in said
    ]


def _sysctl(name: str) -> str:
    """A text that macOS has under a name; "" for none."""
    ask = ctypes.CDLL(None).sysctlbyname
    size = ctypes.c_size_t(4096)
    text = ctypes.create_string_buffer(size.value)
    failed = ask(name.encode(), text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode()


def _present() -> Iterable[str]:
    ask = _is_present()
    return [name for name, number in _PF[triple().partition("-")[0]].items() if ask(number)]


def _is_present() -> Callable[[int], int]:
    """Windows' function that says whether the processor has a feature, by its number."""
    found: Callable[[int], int] = ctypes.CDLL("kernel32").IsProcessorFeaturePresent
    return found


# -- Arm and RISC-V: what the system says ------------------------------------------------------------------------------

_HWCAP, _HWCAP2 = 16, 26
_AUXILIARY: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "aarch64": {"asimd": (_HWCAP, 1), "atomics": (_HWCAP, 8), "asimddp": (_HWCAP, 20), "i8mm": (_HWCAP2, 13)},
    "armv7": {"neon": (_HWCAP, 12), "vfpv4": (_HWCAP, 16), "idiva": (_HWCAP, 17)},
    "riscv64": {letter: (_HWCAP, ord(letter) - ord("a")) for letter in "imafdcv"},
}
"""Name -> entry of the auxiliary vector (Linux's uapi/asm/hwcap.h), bit."""
_VLENB = bytes.fromhex("732520c2 67800000")  # csrr a0, vlenb; ret


def _auxiliary(processor: str) -> Iterable[str]:
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return [name for name, (entry, bit) in _AUXILIARY[processor].items() if ask(entry) >> bit & 1]


def _riscv() -> Iterable[str]:
    found = set(_auxiliary("riscv64"))
    if "v" in found and (vlenb := _code(_VLENB, ctypes.c_uint64)) is not None and vlenb() >= 32:
        found.add("vlen256")
    return found


_ASKED: Mapping[str, Callable[[], Iterable[str]]] = {
    "x86_64": _x86,
    "aarch64": lambda: _auxiliary("aarch64"),
    "armv7": lambda: _auxiliary("armv7"),
    "riscv64": _riscv,
    "x86_64-apple-macosx10.13": _listed_by_sysctl,
    "aarch64-apple-macosx11.0": lambda: _APPLE,
    "aarch64-w64-windows-gnu": _present,
}
"""Who answers, by triple or the processor in it."""


# -- a few instructions as a function ----------------------------------------------------------------------------------

_HELD: list[Any] = []
"""Keeps mapped code in place as long as the process lives."""


def _code(code: bytes, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """Machine code as a function; None where the system maps no code that comes from no file."""
    address = _mapped(code)
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None


def _mapped(code: bytes) -> int:
    """The address of code in memory that cannot be written; where there is none, in memory that can."""
    if sys.platform == "win32":
        return _allocated(code)
    try:
        file = os.memfd_create("msedge-code")
        try:
            os.write(file, code)
            memory = mmap.mmap(file, len(code), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        finally:
            os.close(file)
    except (AttributeError, OSError):
        try:
            memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        except OSError:
            return 0
        memory.write(code)
    _HELD.append(memory)
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


_COMMIT, _WRITE, _EXECUTE = 0x1000, 0x04, 0x20
"""Numbers of VirtualAlloc: MEM_COMMIT, PAGE_READWRITE, PAGE_EXECUTE_READ."""


def _allocated(code: bytes) -> int:
    """The address of code in memory of Windows, which a process keeps until it ends; 0 if it may map none."""
    kernel = ctypes.CDLL("kernel32")
    allocate, protect = kernel.VirtualAlloc, kernel.VirtualProtect
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_uint32] * 2]
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p]
    address = allocate(None, len(code), _COMMIT, _WRITE)
    if not address:
        return 0
    ctypes.memmove(address, code, len(code))
    return int(address) if protect(address, len(code), _EXECUTE, ctypes.byref(ctypes.c_uint32())) else 0
