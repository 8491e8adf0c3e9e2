"""Inputs, outputs and state of a built model, as its packages show them."""

from __future__ import annotations

from collections.abc import Sequence

from lite_runtime.frozen import NamedTuple

__all__ = ["Port", "Ports", "shown", "state_table", "table"]


class Port(NamedTuple):
    """An input, output or state."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Ports(NamedTuple):
    """A signature's inputs and outputs."""

    signature: str
    inputs: Sequence[Port]
    outputs: Sequence[Port]


def shown(port: Port) -> str:
    """A port's shape."""
    return ", ".join(map(str, port.shape))


def table(signatures: Sequence[Ports], kinds: dict[str, str], kind: str) -> str:
    """All ports as a table in Markdown. kinds: what a program has for each dtype, under the title `kind`."""
    rows = [
        f"| `{_cell(name)}` | {role} | {_row(port, kinds)}"
        for name, inputs, outputs in signatures
        for role, ports in (("input", inputs), ("output", outputs))
        for port in ports
    ]
    return "\n".join([f"| signature | | name | dtype | shape | {kind} |", "|---|---|---|---|---|---|", *rows])


def state_table(ports: Sequence[Port], kinds: dict[str, str], kind: str) -> str:
    """The state as a table in Markdown."""
    rows = [f"| {_row(port, kinds)}" for port in ports]
    return "\n".join([f"| name | dtype | shape | {kind} |", "|---|---|---|---|", *rows])


def _row(port: Port, kinds: dict[str, str]) -> str:
    return f"`{_cell(port.name)}` | {port.dtype} | {shown(port) or 'scalar'} | `{kinds[port.dtype]}` |"


def _cell(name: str) -> str:
    return name.replace("|", "\\|").replace("`", "'")
