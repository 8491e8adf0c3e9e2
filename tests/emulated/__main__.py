"""See the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime.targets import named
from tests.emulated import __doc__ as usage
from tests.emulated import lists, systems, working
from tests.emulated.systems import System


def main() -> int:
    """0 if everything that was replayed is as recorded."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulated", description=usage)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare")
    commands.add_parser("lists")
    run = commands.add_parser("run")
    run.add_argument("system", choices=[system.name for system in systems.SYSTEMS])
    run.add_argument("targets", nargs="*", help="all of the system's by default")
    run.add_argument("--records", type=Path, help="a folder of records, kept; those there are not made again")
    run.add_argument("--each", type=int, default=1_000_000, help="at most so many records of the same operators")
    run.add_argument("--tests", nargs="*", default=lists.RECORDED, help="what is recorded")
    run.add_argument("--threads", type=int, default=1)
    models = commands.add_parser("models")
    models.add_argument("bundles", type=Path, help="a folder of .mslite files")
    models.add_argument("systems", nargs="*", default=[system.name for system in systems.SYSTEMS])
    args = parser.parse_args()
    wanted = [systems.named(name) for name in getattr(args, "systems", None) or [getattr(args, "system", "")] if name]
    for system in wanted or systems.SYSTEMS:
        if problem := systems.lacking(system):
            print(f"{system.name}: {problem}", file=sys.stderr)
            if wanted:
                return 1
        else:
            systems.prepare(system)
    if args.command == "prepare":
        return 0
    if args.command == "lists":
        return update_lists()
    return run_models(args.bundles, wanted) if args.command == "models" else replay(args, wanted[0])


def update_lists() -> int:
    """Write the committed lists of what is equal on other processors."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        lists.choose(Path(scratch))
        for target, found in lists.replayed(Path(scratch)):
            failed += show(found)
            lists.path(target).write_text(lists.listed(found))
    return 1 if failed else 0


def run_models(bundles: Path, wanted: Sequence[System]) -> int:
    """Outputs of every bundle on every target of some systems, compared with this machine's."""
    here, different = working.report_here(bundles=bundles), 0
    print(f"{here['target']}: {len(here['ran'])} models, {len(here['failed'])} failed")
    with tempfile.TemporaryDirectory() as scratch:
        working.device_files(Path(scratch) / "site", [name for system in wanted for name in system.targets])
        for system in wanted:
            for target in system.targets:
                found = working.report(system, target, Path(scratch), bundles=bundles)
                print(f"{target}: {found['seconds']:.0f} s")
                for name, one in found["ran"].items():
                    print(f"  {name}: {said(one, here['ran'].get(name))}")
                for name, why in found["failed"].items():
                    print(f"  {name}: failed: {why.strip().splitlines()[-1]}")
                different += len(found["failed"])
    return 1 if different or here["failed"] else 0


def said(one: dict[str, Any], other: dict[str, Any] | None) -> str:
    """How a model's outputs differ from this machine's, in words."""
    if other is None:
        return "failed here"
    reference = f"; by reference: {' '.join(one['reference'])}" if one["reference"] else ""
    if one["sha256"] == other["sha256"]:
        return f"same bits {' '.join(one['sha256'].values())}{reference}"
    most = 0.0
    for name, values in other["values"].items():
        want, got = np.array(values), np.array(one["values"][name])
        most = max(most, float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)))
    return f"differs by up to {most:.1e} of the largest{reference}"


def replay(args: argparse.Namespace, system: System) -> int:
    """What the tests run here, on a system."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        records = args.records or Path(scratch) / "records"
        if not records.is_dir():
            print(f"{working.record(records, args.tests, args.each)} records")
        targets = args.targets or list(system.targets)
        working.device_files(Path(scratch) / "site", targets)
        for target in targets:
            operations = Path(scratch) / f"operations-{target}"
            if not named(target).library:  # of other systems, code is linked with whole families alone
                working.compiled_operations(operations, named(target))
            found = working.report(
                system, target, Path(scratch), records=records, operations=operations, threads=args.threads
            )
            failed += show(found)
    return 1 if failed else 0


def show(found: dict) -> int:
    """Print a report; returns the number of failures."""
    ran, failed = found["ran"], found["failed"]
    replayed = [one for one in ran.values() if one]
    equal, reference = sum(one["equal"] for one in replayed), sum(bool(one["reference"]) for one in replayed)
    print(
        f"{found['target']}: {len(ran) - len(replayed)} operations, {len(replayed)} runs as recorded,"
        f" {equal} of them bit for bit, {reference} with reference steps; {len(failed)} failed;"
        f" {found['seconds']:.0f} s"
    )
    for name, why in failed.items():
        print(f"  {name}: {why.strip().splitlines()[-1]}")
    for name, one in ran.items():
        if one and not one["equal"]:
            print(f"  other bits: {name}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
