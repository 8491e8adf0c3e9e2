"""The groups of devices of a collective, which HLO writes in four forms, and the mesh axes they correspond to.

    {{0,1},{2,3}}                     explicit; {} is all devices
    [4,2]<=[2,4]T(1,0)                iota: 0..7 in shape [2,4], transposed, cut into 4 groups of 2
    mesh['a'=2,'b'=4] {'b'}           axes of XLA's own mesh; 'b':(2)2 is part of one, and
                                      `, device_ids=([2,4]T(1,0))` after the mesh is another order of its devices
    source_target_pairs={{0,1},{1,2}} permutations: devices joined by a chain of pairs
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cloud.errors import PlanError

__all__ = ["axes_of", "chains", "read_groups"]

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"(?:\[([\d,]+)\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def read_groups(text: str, devices: int) -> Groups:
    """Groups of device positions in the mesh's order. Raises `PlanError` for an unknown form."""
    text = text.strip()
    if text.startswith("mesh["):
        return _of_mesh(text)
    if iota := _IOTA.fullmatch(text):
        return _rows(_iota(iota))
    if text in ("", "{}"):
        return (tuple(range(devices)),)
    if text.startswith("{{"):
        return tuple(_numbers(group) for group in re.findall(r"\{([\d, ]*)\}", text))
    raise PlanError(f"expected replica groups as XLA prints them; got {text!r}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _rows(table: npt.NDArray[np.int64]) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in table)


def _iota(found: re.Match[str]) -> npt.NDArray[np.int64]:
    """The table `[shape]<=[source]T(order)`; without a shape, flat."""
    source = _numbers(found[2])
    table = np.arange(math.prod(source)).reshape(source)
    order = _numbers(found[3]) if found[3] else tuple(range(len(source)))
    return table.transpose(order).reshape(_numbers(found[1]) if found[1] else -1)


def _of_mesh(text: str) -> Groups:
    close = text.index("]")
    sizes = {name: int(size) for name, size in _AXIS.findall(text[:close])}
    names, chosen = text[close + 1 :].rsplit("{", 1)
    order: npt.NDArray[np.int64] = np.arange(math.prod(sizes.values()))
    if ids := re.search(r"device_ids=\((.*)\)", names):
        iota = _IOTA.fullmatch(ids[1])
        order = _iota(iota) if iota else np.array(_numbers(ids[1]))
    # An axis that is used in part is cut into (before, the part, after).
    dims: list[int] = []
    inside: list[int] = []
    parts = {name: (int(before), int(size)) for name, before, size in _PART.findall(chosen) if size}
    whole = {name for name, _, size in _PART.findall(chosen) if not size}
    for name, size in sizes.items():
        before, part = parts.get(name, (1, size))
        if name in parts or name in whole:
            inside.append(len(dims) + 1)
        dims += [before, part, size // before // part]
    outside = [dim for dim in range(len(dims)) if dim not in inside]
    table = order.reshape(dims).transpose(*outside, *inside)
    return _rows(table.reshape(-1, math.prod(dims[dim] for dim in inside)))


def chains(pairs: str) -> Groups:
    """Devices connected by `source_target_pairs`, each chain ascending."""
    groups: dict[int, set[int]] = {}
    for source, target in re.findall(r"\{(\d+),\s*(\d+)\}", pairs):
        joined = groups.get(int(source), {int(source)}) | groups.get(int(target), {int(target)})
        groups.update(dict.fromkeys(joined, joined))
    return tuple(sorted({tuple(sorted(group)) for group in groups.values()}))


def axes_of(groups: Groups, sizes: Sequence[int]) -> tuple[int, ...]:
    """The mesh axes of the groups: exactly these axes if the groups are whole rows of the mesh, else the fewest axes
    that contain the groups (parts of an axis, chains)."""
    where = [np.unravel_index(group, tuple(sizes)) for group in groups]
    return tuple(axis for axis in range(len(sizes)) if any(len(set(at[axis].tolist())) > 1 for at in where))
