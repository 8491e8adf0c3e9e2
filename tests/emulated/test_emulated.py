"""On emulated processors: operations and models give what they give here, and processors say what they are.

`python -m tests.emulated` runs more there, for all targets, which takes minutes for each.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from converter import convert
from lite_runtime.bundle.layout import BUNDLE, NEEDS, REQUIRED, Row, packed_version, table_of
from lite_runtime.native import build
from lite_runtime.native.target import host
from lite_runtime.native.wheel import device_files
from lite_runtime.targets import named
from tests.converter.support import Builder
from tests.emulated import lists, systems, working
from tests.emulated.lists import TARGETS
from tests.emulated.systems import SYSTEMS, System
from tests.fuzz.bundles import case
from tests.fuzz.mutate import pack, unpack
from tests.fuzz.seeds import seed_bundles
from tests.integers.digests import digest_of, recorded, write_bundles
from tests.registries import registries

BEST = {"aarch64": "aarch64-i8mm", "armv7": "armv7", "riscv64": "riscv64-v256"}
"""The target with most instructions of its own, by system."""
pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


def needs(system: System) -> None:
    """Skip the test if the system cannot be emulated here."""
    if problem := systems.missing(system):
        pytest.skip(problem)


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system.debian], ids=lambda system: system.name)
def test_operations_of_a_device_give_numpys_results(system: System, tmp_path: Path) -> None:
    """In their generic form, and by the processor's own instructions. The system, asked, must name a target at least as
    good."""
    needs(system)
    for path in device_files(build.ROOT):
        into = tmp_path / "site" / "lite_runtime" / path
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_bytes((Path(build.ROOT) / path).read_bytes())
    working.compiled_operations(tmp_path / "operations", named(BEST[system.name]))
    found = working.report(system, BEST[system.name], tmp_path, operations=tmp_path / "operations")
    assert found["failed"] == {}
    assert found["target"] == BEST[system.name]
    assert len(found["ran"]) >= 20


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_integer_models_on_a_device_give_the_recorded_bits(system: System, tmp_path: Path) -> None:
    """With the files of a device's wheel."""
    needs(system)
    target = TARGETS.get(system.name, "windows-x86-64-v3")
    if target not in system.targets:
        pytest.skip(f"this processor is not of {target}")
    working.device_files(tmp_path / "site", [target])
    write_bundles(tmp_path / "bundles")
    found = working.report(system, target, tmp_path, bundles=tmp_path / "bundles")
    assert (found["target"], found["failed"]) == (target, {})
    assert {name: digest_of(one) for name, one in found["ran"].items()} == recorded()


HOSTILE = 300
"""Files of the fuzzer."""
LARGE: tuple[dict[int, object], ...] = (
    {1: [0, 1 << 33], 3: 0},
    {1: [1 << 33, 0, 3], 3: 0},
    {1: [1 << 31]},
    {1: [1 << 16, 1 << 16], 3: 0},  # 0 elements, if 32 bits counted them
    *({at: value} for at in (2, 3) for value in (1 << 31, (1 << 32) - 64, 1 << 32, 1 << 63)),
)
"""Other words of a tensor's row: its shape, its offset, its bytes."""


def with_large_tensors(data: bytes) -> Iterator[bytes]:
    """A bundle with one row of its tensors changed, and right digests."""
    parts = unpack(data)
    manifest = json.loads(dict((name, content) for name, content, _ in parts)["manifest"])
    rows = manifest["tensors"]["weights"]
    for i, row in enumerate(rows):
        for changes in LARGE if len(row) == 5 else ():
            rows[i] = [changes.get(at, value) for at, value in enumerate(row)]
            text = json.dumps(manifest).encode()
            yield pack([(name, text if name == "manifest" else content, flags) for name, content, flags in parts])
        rows[i] = row


def test_sizes_beyond_32_bits_are_refused_by_a_32_bit_system(tmp_path: Path) -> None:
    """Hostile bundles have the same end there and here, but for tensors and files that only 64 bits can count. The two
    largest files have whole tables, sections beyond 2 GiB, and no contents."""
    needs(systems.named("armv7"))
    files, seeds = tmp_path / "files", seed_bundles()
    files.mkdir()
    hostile = [*(case(31, number, seeds) for number in range(HOSTILE)), *with_large_tensors(seeds[0])]
    for number, content in enumerate(hostile):
        (files / f"{number:03}.mslite").write_bytes(content)
    for name, size in (("3 GiB", 3 << 30), ("6 GiB", 6 << 30)):
        rows = [Row("manifest", 64, REQUIRED, 0, bytes(32)), Row("more", size, 0, 0, bytes(32))]
        rows.append(Row("weights", 4096, REQUIRED, 0, bytes(32)))
        table, offsets = table_of(rows, packed_version(NEEDS), BUNDLE)
        with (files / f"{name}.mslite").open("wb") as file:
            file.write(table)
            file.truncate(offsets[-1] + 4096)  # takes no room on the disk
    working.device_files(tmp_path / "site", ["armv7"])
    there = working.report(systems.named("armv7"), "armv7", tmp_path, hostile=files)
    here = working.report_here(hostile=files)
    assert (there["failed"], here["failed"]) == ({}, {})
    ends = {name: (here["ran"][name]["refused"], one["refused"]) for name, one in there["ran"].items()}
    large = {name: ends.pop(name) for name in ("3 GiB", "6 GiB")}
    for name, (wide, narrow) in large.items():
        assert "section 'manifest'" in wide
        assert narrow.startswith(f"cannot read '{name}.mslite': ") and narrow.endswith("; use a 64-bit system")
    limit, lacks = f"at most {2**31 - 1} bytes", "needs the package ml_dtypes"
    others = [(wide, narrow) for wide, narrow in ends.values() if wide != narrow and lacks not in narrow]
    assert [(wide, narrow) for wide, narrow in others if limit not in narrow] == []
    assert len(ends) == len(hostile) > HOSTILE + 20
    assert sum(narrow == "" for _, narrow in ends.values()) > 50 and len(others) > 3


@pytest.mark.slow
def test_other_processors_compute_what_their_lists_say(tmp_path: Path) -> None:
    """What the runtime's tests run here, recorded and replayed there. A row that is new, gone, or equal less or more
    often than it was is shown."""
    if (target := host()) is not None and not target.shape.fused:
        pytest.skip(f"{target.name} rounds products and sums apart, and other bits are recorded")
    for name in TARGETS:
        needs(systems.named(name))
    changed = list[str]()
    for target, found in lists.replayed(tmp_path):
        assert found["target"] == target
        changed += [f"{target}, {name}: {why.strip()}" for name, why in found["failed"].items()]
        before = lists.path(target).read_text().splitlines()
        changed += difflib.unified_diff(before, lists.listed(found).splitlines(), target, "now", "", "", 0, "")
    assert not changed, "\n".join([*changed, "if these are meant: python -m tests.emulated lists"])


@pytest.mark.parametrize("target", TARGETS.values())
def test_every_operator_with_kernels_is_in_the_lists(target: str) -> None:
    """But those that run as others: an operator whose tests gave no record would be checked on no other processor."""
    assert registries()["native"] - lists.operators(target) == {"ConvInteger", "CumSum", "Dropout", "OneHot"}


def write_extremes(path: Path, seed: int, dtype: str, rows: int, depth: int, columns: int) -> None:
    """A record of products by constant and by computed weights, most of whose bytes are the lowest there are: sums of
    two such products do not fit 16 bits."""
    b, lowest = Builder(opset=20, seed=seed), np.iinfo(dtype).min
    x, y = b.input("x", (rows, depth), dtype), b.input("y", (depth, columns), "int8")
    few, many = (
        b.rng.choice([-128, 127, 5], (depth, columns), p=shares).astype(np.int8)
        for shares in ((0.1, 0.5, 0.4), (0.8, 0.1, 0.1))
    )
    few[::2] = np.maximum(few[::2], -127)  # no neighbours
    given = np.where(b.rng.random((rows, depth)) < 0.8, lowest, 255 + lowest).astype(dtype)
    computed = b.rng.choice([-128, 127], (depth, columns)).astype(np.int8)
    zero, held = (b.const(np.asarray(value, kind)) for value, kind in ((lowest + 3, dtype), (many, np.int8)))
    outputs = [b("MatMulInteger", x, by, zero, b.const(np.int8(0))) for by in (b.const(few), held, y)]
    outputs.append(b("MatMulInteger", x, held, zero, b.const(np.int8(7))))
    left = given.astype(np.int32) - (lowest + 3)
    wanted = [left @ by.astype(np.int32) for by in (few, many, computed, many.astype(np.int32) - 7)]
    np.savez(
        path,
        bundle=np.frombuffer(convert(b.model(*outputs)).bundle, np.uint8),
        **{"i:x": given, "i:y": computed},
        **{f"o:{name}": value for name, value in zip(outputs, wanted, strict=True)},
    )


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system.debian], ids=lambda system: system.name)
def test_products_of_the_lowest_bytes_are_exact(system: System, tmp_path: Path) -> None:
    needs(system)
    (tmp_path / "records").mkdir()
    sizes = [(1, 37, 19), (9, 64, 16), (6, 3, 5), (5, 130, 33), (13, 8, 8)]
    for seed, (rows, depth, columns) in enumerate(sizes):
        for dtype in ("int8", "uint8"):
            write_extremes(tmp_path / "records" / f"{seed}-{dtype}.npz", seed, dtype, rows, depth, columns)
    target = TARGETS[system.name]
    working.device_files(tmp_path / "site", [target])
    found = working.report(system, target, tmp_path, records=tmp_path / "records")
    assert found["failed"] == {}
    assert all(one["equal"] and not one["reference"] for one in found["ran"].values())
    assert len(found["ran"]) == 2 * len(sizes)
