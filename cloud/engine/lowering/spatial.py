"""Window arithmetic for convolutions and pools. Pads are (begin, end) pairs, one per spatial axis."""

from __future__ import annotations

from collections.abc import Sequence

from cloud.errors import EngineError

__all__ = ["per_axis", "window_pads"]


def per_axis(values: Sequence[int] | None, rank: int, default: int = 1) -> tuple[int, ...]:
    """One value per spatial axis; all `default` if the attribute is absent."""
    if not values:
        return (default,) * rank
    if len(values) != rank:
        raise EngineError(f"expected {rank} values, one per spatial axis, got {list(values)}")
    return tuple(values)


def window_pads(
    auto_pad: str, pads: Sequence[int] | None, sizes: Sequence[int],
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Resolve ONNX's `auto_pad` and `pads` (all begins, then all ends) for an operand of spatial `sizes`."""
    rank = len(sizes)
    if auto_pad in ("NOTSET", ""):
        flat = per_axis(pads, 2 * rank, 0)
        return list(zip(flat[:rank], flat[rank:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise EngineError(f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {auto_pad!r}")
    resolved = []
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        resolved.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return resolved
