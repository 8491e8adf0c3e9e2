"""A function of one byte as a table of its 256 results; one of 16 bits as a table of every 128th."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Interpolated", "Lookup"]


@step(*(f"lookup.x8_lookup__{size}" for size in (1, 2, 4)))
class Lookup(Step):
    """y = table[x]; results of 1, 2 or 4 bytes. y of one byte may be x."""

    x: In
    table: In
    y: Out
    total: int  # elements


@step("lookup.i16_interpolated")
class Interpolated(Step):
    """y = table[x / 128], linear between the entries; y may be x."""

    x: In
    table: In
    y: Out
    total: int  # elements
