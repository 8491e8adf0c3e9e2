"""Targets of compilation: what kernels and the planner need to know of a processor and its system, one row each.

Rows are data: programs are planned, and kernels compiled, for any row on any machine. Which of them this machine can
run, `lite_runtime.native.target` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple

__all__ = ["AHEAD", "PLAIN", "ROWS", "TARGETS", "WASM_PARTS", "Shape", "Target", "named", "with_bases"]


class Shape(NamedTuple):
    """What the code that Numba makes depends on; targets of one shape share it.

    lanes: float32 elements in a vector. vectors: vector registers, which bound the tiles of products; with 0, vectors
    are in registers of one number each. fused: whether a * b + c is rounded once; all targets that do give the same
    bits. indexed: whether an instruction multiplies by one lane of a register, so that several factors are loaded at
    once; otherwise each is repeated from memory. small: whether memory for code and stacks is counted in KB, so that
    kernels have few tiles, and short blocks. outer: whether vectors of bytes are multiplied by one number, so that the
    weights of neighbouring columns are adjacent; otherwise those of four rows.
    """

    lanes: int
    vectors: int
    fused: bool
    indexed: bool = False
    small: bool = False
    outer: bool = False

    def __str__(self) -> str:
        facts = [name for name in ("fused", "indexed", "small", "outer") if getattr(self, name)]
        return "-".join([f"{self.lanes}x{self.vectors}", *facts])

    @classmethod
    def read(cls, text: str) -> Shape:
        """The shape with this text."""
        size, *facts = text.split("-")
        lanes, vectors = map(int, size.split("x"))
        return cls(lanes, vectors, "fused" in facts, "indexed" in facts, "small" in facts, "outer" in facts)


class Target(NamedTuple):
    """One instruction set on one system.

    triple, cpu, features: LLVM's names. dot: the instruction that sums products of bytes (`codegen`), "" for none; the
    sums are the same with all of them. needs: what the machine must have, by the names in `machine.py`. base: the
    target without this one's last feature, with which it shares code that is the same for both. linked: whether code
    has no open references, or is linked once for the runtime (`library`); otherwise it is an object file, which is
    linked for each model (`converter.ahead`).
    """

    name: str
    triple: str
    cpu: str
    features: str
    shape: Shape
    dot: str
    needs: frozenset[str] = frozenset()
    base: str = ""
    linked: bool = True

    @property
    def lanes(self) -> int:
        """float32 elements in a vector."""
        return self.shape.lanes

    @property
    def sums_four(self) -> bool:
        """Whether one instruction sums four products of bytes."""
        return self.dot in _FOURS

    def shape_of(self, family: str) -> Shape:
        """The shape that a family is compiled for: wider than the target's where the order of sums must not depend on
        it. With widening products alone, outer products of bytes; sums of four products take six registers besides, and
        get a tile for 16 (that for 32 took three times as many instructions)."""
        if self.dot == "vwmul" and family in _BYTE_FAMILIES:
            return self.shape._replace(outer=True) if family == "qgemm" else self.shape._replace(vectors=16)
        return Shape(ROWS, 32, fused=True) if self.shape.fused and family in _ROW_FAMILIES else self.shape

    @property
    def signed(self) -> bool:
        """Whether bytes of inputs are multiplied as signed ones; otherwise as unsigned ones."""
        return self.dot in _SIGNED

    @property
    def processor(self) -> str:
        """LLVM's name of the architecture."""
        return self.triple.partition("-")[0]

    @property
    def library(self) -> str:
        """The suffix of the shared library with all kernels, where the system runs no others; "" where code is an image
        that the runtime maps."""
        return next((suffix for system, suffix in _LIBRARIES.items() if f"-{system}" in self.triple), "")

    @property
    def bodies(self) -> str:
        """The module of `native/codegen` with the processor's own functions."""
        return "cortex_m" if self.processor.startswith("thumb") else self.processor


_AVX512, _AVX2, _RVV, _RVV256 = (Shape(*size, fused=True) for size in ((16, 32), (8, 16), (4, 32), (8, 32)))
_NEON = Shape(4, 32, fused=True, indexed=True)
_SIMD128, _NEON32, _SMALL = Shape(4, 16, fused=False), Shape(4, 16, fused=True), Shape(4, 8, fused=True)
_DSP, _MVE = Shape(4, 0, fused=True, small=True), Shape(4, 8, fused=True, small=True)


ROWS = 16
"""Lanes of the families that add up the lanes of a vector, on all fused targets: a sum's order decides its bits."""
_ROW_FAMILIES = frozenset({"layernorm", "normalize", "reduce"})
_BYTE_FAMILIES = frozenset({"qdepthwise", "qgemm", "qrecurrent", "qwide"})
_LIBRARIES = {"apple-macosx": ".dylib", "w64-windows": ".dll"}
"""Suffixes of shared libraries, by system in the triple."""
_FOURS = frozenset({"vpdpbusd", "usdot", "sdot"})
"""Forms of `Target.dot` that sum four products in one instruction."""
_SIGNED = frozenset({"sdot", "usdot", "smull", "smlad", "vmull", "vwmul"})
"""Forms of `Target.dot` with which inputs are read as signed bytes. Those of most models are: where two signed factors
are as fast as others, their bits need not be flipped."""


def _x86(name: str, cpu: str, features: str, shape: Shape, dot: str, needs: str, base: str = "") -> Target:
    return Target(name, "x86_64-unknown-linux-gnu", cpu, features, shape, dot, frozenset(needs.split()), base)


_V3 = "avx2 fma bmi1 bmi2 f16c movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_V4_VNNI, _V3_VNNI = f"{_V4} avx512_vnni", f"{_V3} avx_vnni"
# LLVM's x86-64-v4 prefers 256-bit vectors because Skylake lowers its clock for wider ones; the kernels here use 512.
_WIDE = "-prefer-256-bit"
_X86 = (
    _x86("x86-64-v4-vnni", "x86-64-v4", f"{_WIDE},+avx512vnni", _AVX512, "vpdpbusd", _V4_VNNI, "x86-64-v4"),
    _x86("x86-64-v4", "x86-64-v4", _WIDE, _AVX512, "vpmaddwd", _V4),
    _x86("x86-64-v3-vnni", "x86-64-v3", "+avxvnni", _AVX2, "vpdpbusd", _V3_VNNI, "x86-64-v3"),
    _x86("x86-64-v3", "x86-64-v3", "", _AVX2, "vpmaddwd", _V3),
    _x86("x86-64-v2", "x86-64-v2", "", _SIMD128, "vpmaddwd", "sse4_1 sse4_2 ssse3 popcnt"),
)


def _arm64(name: str, features: str, dot: str, needs: str, base: str = "") -> Target:
    return Target(name, "aarch64-unknown-linux-gnu", "generic", features, _NEON, dot, frozenset(needs.split()), base)


_ARM64 = (
    _arm64("aarch64-i8mm", "+dotprod,+lse,+i8mm", "usdot", "asimd asimddp atomics i8mm", "aarch64-dotprod"),
    _arm64("aarch64-dotprod", "+dotprod,+lse", "sdot", "asimd asimddp atomics", "aarch64"),
    _arm64("aarch64", "+neon", "smull", "asimd"),
)


def _riscv(name: str, features: str, shape: Shape, needs: str, base: str = "") -> Target:
    triple, features = "riscv64-unknown-linux-gnu", f"+m,+a,+f,+d,+c,+zihintpause{features}"
    needed = frozenset(needs.split())
    return Target(name, triple, "generic-rv64", features, shape, "vwmul" if "v" in needed else "", needed, base)


_V = ",+v,+unaligned-scalar-mem"
"""Processors with V load words from any address; for others Linux's firmware does it, slowly."""
_RISCV = (
    _riscv("riscv64-v256", f"{_V},+zvl256b", _RVV256, "i m a f d c v vlen256"),
    _riscv("riscv64-v", _V, _RVV, "i m a f d c v"),
    _riscv("riscv64", "", _SMALL, "i m a f d c"),
)
_LINUX = (
    *_X86,
    *_ARM64,
    Target(
        "armv7",
        "armv7-unknown-linux-gnueabihf",
        "generic",
        "+neon,+vfp4,+hwdiv-arm",
        _NEON32,
        "smull",
        frozenset({"neon", "vfpv4", "idiva"}),
    ),
    *_RISCV,
)


def _apple(name: str, system: str, cpu: str) -> Target:
    triple, features = f"aarch64-apple-{system}", "+dotprod,+lse"
    return Target(name, triple, cpu, features, _NEON, "sdot", frozenset({"asimd", "asimddp", "atomics"}))


def _elsewhere(name: str, triple: str, of: Target) -> Target:
    """The instruction set of a target for Linux, with another system's calls and object files."""
    return of._replace(name=name, triple=triple, base="")


def _windows(of: Target) -> Target:
    made = _elsewhere(f"windows-{of.name}", f"{of.processor}-w64-windows-gnu", of)
    return made._replace(base=of.base and f"windows-{of.base}")


TARGETS: tuple[Target, ...] = (
    *_LINUX,
    _apple("macos", "macosx11.0", "apple-m1"),
    _elsewhere("macos-x86-64", "x86_64-apple-macosx10.13", _X86[3]),
    *map(_windows, _X86),
    _windows(_ARM64[1])._replace(name="windows-arm64", base=""),
)
"""Those whose kernels the runtime loads; of one system: best first."""

_SIMD = "+simd128,+bulk-memory,+bulk-memory-opt,+sign-ext,+nontrapping-fptoint,+mutable-globals"


def _cortex(name: str, processor: str, features: str, shape: Shape, dot: str) -> Target:
    # A triple of three parts would lose the calling convention of Arm's embedded ABI.
    return Target(name, f"{processor}-none-none-eabihf", name, features, shape, dot, linked=False)


def _wasm(name: str, dot: str, more: str = "") -> Target:
    return Target(name, "wasm32-unknown-unknown", "generic", f"{_SIMD}{more}", _SIMD128, dot, linked=False)


AHEAD: tuple[Target, ...] = (
    _wasm("wasm32", "wasm.dot"),
    _cortex("cortex-m55", "thumbv8.1m.main", "", _MVE, "vmull"),
    # Floats of one precision: some Cortex-M7 have no instructions for float64. LLVM's scheduler for these processors
    # loads early what then has no register: the inner loop of int8 products is 39 instructions with it, 34 without.
    _cortex("cortex-m7", "thumbv7em", "-fp64,-use-misched", _DSP, "smlad"),
    _cortex("cortex-m4", "thumbv7em", "-use-misched", _DSP, "smlad"),
    _apple("ios", "ios14.0", "apple-a13"),
    _apple("ios-simulator", "ios14.0-simulator", "apple-m1"),
)
"""Those for which models are built ahead of time (`converter.ahead`)."""
WASM_PARTS: tuple[Target, ...] = (
    _wasm("wasm32-relaxed", "wasm.relaxed_dot", ",+relaxed-simd"),
    _wasm("wasm32-threads", "wasm.dot", ",+atomics"),
)
"""For some families of kernels, beside those of wasm32: where engines have relaxed SIMD instructions, and threads."""
PLAIN = Target("plain", "", "", "", _SIMD128, "")
"""Where there are no kernels: programs are planned for it only to be shown."""


def named(name: str, among: Sequence[Target] = TARGETS) -> Target:
    """The target with this name; raises MsedgeError, with all names, if there is none."""
    for target in among:
        if target.name == name:
            return target
    raise MsedgeError(f"expected a target of {', '.join(t.name for t in among)}, got {name}")


def with_bases(target: Target) -> list[Target]:
    """The target, its base, that one's base and so on."""
    return [target, *(with_bases(named(target.base)) if target.base else [])]
