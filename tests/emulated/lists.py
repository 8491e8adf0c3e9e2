"""Lists of what other processors compute as this one does, row by row of operators: conformance/TARGET.txt.

One run of each combination of operators and types that the runtime's tests run here is replayed there. The tests that
conformance/tests.txt names are run for it: the others add no combination. Property tests are left out: what they draw
changes from one version to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.emulated import systems, working

__all__ = ["RECORDED", "TARGETS", "TESTS", "choose", "listed", "operators", "path", "replayed"]

RECORDED = ("tests/conformance", "tests/lite_runtime/ops", "tests/lite_runtime/kernels")
TARGETS = {"aarch64": "aarch64-dotprod", "armv7": "armv7", "riscv64": "riscv64-v"}
"""The target whose wheel is installed for whole models, by system: the most common one."""
FOLDER = Path(__file__).parent / "conformance"
TESTS = FOLDER / "tests.txt"


def path(target: str) -> Path:
    """The committed list of a target."""
    return FOLDER / f"{target}.txt"


def operators(target: str) -> frozenset[str]:
    """All that are in the rows of a target's list."""
    rows = [line.partition(":")[0] for line in path(target).read_text().splitlines()]
    return frozenset(name for row in rows for name in row.split("-"))


def choose(scratch: Path) -> None:
    """Write which tests give records: about 200 s of a processor."""
    working.record(scratch / "chosen", (*RECORDED, "-m", "not hypothesis"), each=1)
    names = (scratch / "chosen" / "tests.txt").read_text().splitlines()
    TESTS.write_text("".join(f"{name}\n" for name in dict.fromkeys(names)))


def replayed(scratch: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each target, and its report. About 60 s of a processor to record, and 60 s for each target."""
    working.record(scratch / "records", (f"@{TESTS}", "-m", "not hypothesis"), each=1)
    for system, target in TARGETS.items():
        working.device_files(scratch / target / "site", [target])
        yield target, working.report(systems.named(system), target, scratch / target, records=scratch / "records")


def listed(found: Mapping[str, Any]) -> str:
    """A line for each row of operators among the records: how many were equal bit for bit, within the bound, computed
    as recorded by NumPy's reference in part (whose bits depend on both systems' NumPy), and failed."""
    rows: dict[str, Counter[str]] = {}
    for name, one in found["ran"].items():
        if one:
            kind = "by reference" if one["reference"] else "equal" if one["equal"] else "within"
            rows.setdefault(name.rpartition("-")[0], Counter())[kind] += 1
    for name in found["failed"]:
        rows.setdefault(name.rpartition("-")[0], Counter())["failed"] += 1
    kinds = ("equal", "within", "by reference", "failed")
    texts = {name: ", ".join(f"{row[kind]} {kind}" for kind in kinds if row[kind]) for name, row in rows.items()}
    return "".join(f"{name}: {text}\n" for name, text in sorted(texts.items()))
