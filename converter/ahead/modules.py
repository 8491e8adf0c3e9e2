"""The modules of kernels of one build: the same kernels for engines that offer more or less, and the list of them.

    kernels.json                   what there is: each module's file, SHA-256, and what it needs of an engine
    kernels.wasm                   128-bit SIMD, one thread
    kernels-relaxed.wasm           sums of products of bytes by one instruction ("relaxed")
    kernels-threads.wasm           memory shared by several threads ("threads")
    kernels-relaxed-threads.wasm   both

A module is left out if it would compute as one that needs less: one without products of bytes, or threads where more
than one gain nothing. All compute the same bits; a page downloads the list and one module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256

from converter.ahead.wasm_link import ALONE, TOGETHER, link
from lite_runtime.native import build as native
from lite_runtime.targets import WASM_PARTS, Target, named

__all__ = ["LIST", "PLAIN", "modules_of"]

LIST, PLAIN = "kernels.json", "kernels.wasm"
"""The list, and the module that every engine runs."""
_WALKER = "walker"
_RELAXED = frozenset({"qdepthwise", "qgemm", "qrecurrent"})
"""Families that call the operation `dot` or `input_dot`."""


def modules_of(kernels: Sequence[str], target: Target, threads: int) -> dict[str, bytes]:
    """The files by name, for kernels named FAMILY.KERNEL. threads: the greatest number that gains, for the list."""
    families = sorted({name.partition(".")[0] for name in kernels})
    relaxed = [family for family in families if family in _RELAXED]
    plain = native.code_for(families, target)
    objects = {False: plain, True: {**plain, **native.code_for(relaxed, named("wasm32-relaxed", WASM_PARTS))}}
    walkers = {False: _walker(target)}
    if threads > 1:
        walkers[True] = _walker(named("wasm32-threads", WASM_PARTS))
    files, rows = dict[str, bytes](), []
    for several, walker in walkers.items():
        for fast in (False, True) if relaxed else (False,):
            entries = TOGETHER if several else ALONE
            content = link({**objects[fast], **walker}, kernels, entries, shared=several)
            needs = [need for need, asked in (("relaxed", fast), ("threads", several)) if asked]
            name = "-".join(["kernels", *needs]) + ".wasm"
            files[name] = content
            digest = sha256(content).hexdigest()
            rows.append({"file": name, "bytes": len(content), "sha256": digest, "needs": needs})
    return {LIST: json.dumps({"threads": threads, "modules": rows}, indent=1).encode() + b"\n", **files}


def _walker(target: Target) -> Mapping[str, bytes]:
    return native.code_for([_WALKER], target)
