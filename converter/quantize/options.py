"""The options of the quantiser, validated once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Literal, get_args

from converter.errors import QuantizeError

__all__ = ["IO", "METHODS", "MODES", "Io", "Method", "Mode", "Options", "matches"]

Mode = Literal["none", "fp16", "dynamic", "int8", "int16x8", "w8", "w4"]
MODES: tuple[Mode, ...] = get_args(Mode)
Method = Literal["auto", "minmax", "percentile", "entropy", "mse"]
METHODS: tuple[Method, ...] = get_args(Method)
Io = Literal["float32", "int8"]
IO: tuple[Io, ...] = get_args(Io)
_BLOCKS = (0, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Options:
    """How to quantise. Raises QuantizeError for values that a field does not allow."""

    mode: Mode = "int8"
    """none, fp16 (weights in half precision), dynamic (int8 weights, activations measured at run time), int8
    (everything), int16x8 (16-bit activations, 8-bit weights), w8 and w4 (weights only)."""
    method: Method = "auto"
    """How observed values become a range; mse minimises the mean squared error of each tensor. auto tries all, and
    ranges somewhat wider than the observed ones, and uses the best for each tensor on rows held out of the calibration
    data."""
    percentile: float = 99.99
    """The percentage of values that method "percentile" keeps inside the range."""
    block_size: int | None = None
    """Inputs that share a scale in w8 and w4; 0: one scale per output channel. None: 0 for w8, 32 for w4."""
    equalize: bool = True
    """Equalise ranges of neighbouring layers before observing, if a trial shows that it helps (int8, int16x8)."""
    bias_correction: bool = True
    """Correct biases by the mean error that rounded weights cause (int8, int16x8)."""
    gptq: bool = True
    """Round weights with GPTQ, by their inputs on calibration data, if there is any (all modes except dynamic)."""
    keep_float: tuple[str, ...] = ()
    """Globs of node names, op types or output names that stay in floating point."""
    weight_only: tuple[str, ...] = ()
    """Globs of nodes of which only the weights become int8, the fallback of mixed precision."""
    io: Io = "float32"
    """Element type of the graph's inputs and outputs that are quantised."""

    def __post_init__(self) -> None:
        for name, allowed in (("mode", MODES), ("method", METHODS), ("io", IO)):
            _one_of(name, getattr(self, name), allowed)
        if not isinstance(self.percentile, int | float) or not 50.0 < self.percentile <= 100.0:
            raise QuantizeError(f"percentile: expected a number above 50, at most 100, got {self.percentile!r}")
        if self.block_size is not None:
            _one_of("block_size", self.block_size, _BLOCKS)
        for name in ("keep_float", "weight_only"):
            object.__setattr__(self, name, _globs(name, getattr(self, name)))
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                raise QuantizeError(f"{field.name}: expected True or False, got {getattr(self, field.name)!r}")
        if self.io == "int8" and self.mode != "int8":
            raise QuantizeError(f"io: int8 inputs and outputs need mode 'int8', got mode {self.mode!r}")

    @property
    def static(self) -> bool:
        """Whether activations get ranges from calibration data."""
        return self.mode in ("int8", "int16x8")

    @property
    def weight_bits(self) -> int:
        """Bits of a quantised weight."""
        return 4 if self.mode == "w4" else 8

    @property
    def block(self) -> int:
        """Inputs that share a scale; 0 for all of an output channel."""
        if self.block_size is not None:
            return self.block_size
        return 32 if self.mode == "w4" else 0


def _one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    allowed = tuple(allowed)
    if value not in allowed or isinstance(value, bool):
        raise QuantizeError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def _globs(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(glob, str) and glob for glob in found):
        raise QuantizeError(f"{name}: expected globs of node names or op types, got {value!r}")
    return tuple(map(str, found))


def matches(globs: Iterable[str], *names: str | None) -> bool:
    """Whether any of the names matches any of the globs; case matters."""
    return any(name and fnmatchcase(name, glob) for glob in globs for name in names)
