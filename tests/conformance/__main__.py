"""Run all of ONNX's node cases and compare with the committed list; `--update` writes the list."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter

from lite_runtime.errors import MsedgeError
from tests.conformance.cases import BACKENDS, LIST, Mismatch, all_cases, check, operators, passing


def main() -> int:
    """0 if every listed case still passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the list of cases that pass on every backend")
    parser.add_argument("--verbose", action="store_true", help="say why each case does not pass")
    parser.add_argument("only", nargs="*", help="words; only cases whose name holds one of them")
    args = parser.parse_args()
    passed: list[str] = []
    why: Counter[str] = Counter()
    crashed = 0
    chosen = [c for c in all_cases().values() if not args.only or any(word in c.name for word in args.only)]
    for case in chosen:
        try:
            for backend in BACKENDS:
                check(case, backend)
            passed.append(case.name)
        except (MsedgeError, Mismatch) as error:
            why[f"{type(error).__name__} {sorted(set(operators(case.model)))[:3]}"] += 1
            if args.verbose:
                print(f"{case.name} [{backend}] {type(error).__name__}: {str(error)[:300]}")
        except Exception:
            crashed += 1
            print(f"{case.name} [{backend}] UNEXPECTED")
            if args.verbose:
                traceback.print_exc(limit=-4)
    listed = set(passing()) if LIST.exists() else set()
    lost = sorted(listed - set(passed)) if not args.only else []
    new = len(set(passed) - listed)
    print(f"{len(passed)} of {len(chosen)} pass; {len(lost)} lost, {new} new, {crashed} unexpected errors")
    for name in lost:
        print(f"lost: {name}")
    if args.update and not args.only:
        LIST.write_text("\n".join(sorted(passed)) + "\n", encoding="utf-8")
    return 1 if lost or crashed else 0


if __name__ == "__main__":
    sys.exit(main())
