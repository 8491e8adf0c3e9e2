"""Web pages and Node programs as devices of a federated run: JavaScript beside what `msedge build` writes.

federated.mjs            the device: its answers, and check-in
federated-draws.mjs      which examples it trains on: NumPy's generator
federated-messages.mjs   the bytes of messages and parameters

They import modules of `converter/ahead/web`, which lie beside them in every folder that is built.
"""

from __future__ import annotations

from importlib.resources import files

__all__ = ["MODULES", "modules"]

MODULES = ("federated.mjs", "federated.d.mts", "federated-draws.mjs", "federated-messages.mjs")


def modules() -> dict[str, bytes]:
    """The files by name."""
    return {name: (files(__package__) / name).read_bytes() for name in MODULES}
