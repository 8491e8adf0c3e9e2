"""Run all of ONNX's node cases and compare with the committed lists; `--update` writes the lists."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter

from lite_runtime.errors import MsedgeError
from tests.conformance.cases import LIST, NATIVE, Lists, Mismatch, cases, check, committed, modules, operators


def main() -> int:
    """0 if the cases that pass, and those that run natively, are exactly the committed ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write both lists")
    parser.add_argument("--verbose", action="store_true", help="say why each case does not pass")
    parser.add_argument("only", nargs="*", help="words; only cases whose name holds one of them")
    args = parser.parse_args()
    passing: set[str] = set()
    native: set[str] = set()
    why: Counter[str] = Counter()
    crashed = 0
    every = {f"{module}/{name}": case for module in modules() for name, case in cases(module).items()}
    chosen = {row: case for row, case in every.items() if not args.only or any(word in row for word in args.only)}
    for row, case in chosen.items():
        try:
            natively = check(case)
        except (MsedgeError, Mismatch) as error:
            why[f"{type(error).__name__} {sorted(set(operators(case.model)))[:3]}"] += 1
            if args.verbose:
                print(f"{row} {type(error).__name__}: {str(error)[:300]}")
        except Exception:
            crashed += 1
            print(f"{row} UNEXPECTED")
            if args.verbose:
                traceback.print_exc(limit=-4)
        else:
            passing.add(row)
            native |= {row} if natively else set()
    print(f"{len(passing)} of {len(chosen)} pass, {len(native)} natively; {crashed} unexpected errors")
    if args.verbose:
        for reason, count in why.most_common():
            print(f"{count:5} {reason}")
    same = True
    for name, now, listed in zip(Lists._fields, (passing, native), committed(), strict=True):
        listed = listed if not args.only else listed & chosen.keys()
        for word, rows in (("lost", listed - now), ("new", now - listed)):
            same = same and not rows
            for row in sorted(rows):
                print(f"{name}: {word} {row}")
    if args.update and not args.only:
        for file, rows in ((LIST, passing), (NATIVE, native)):
            file.write_text("\n".join(sorted(rows)) + "\n", encoding="utf-8")
    return 0 if same and not crashed else 1


if __name__ == "__main__":
    sys.exit(main())
