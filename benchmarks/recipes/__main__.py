"""`python -m benchmarks.recipes --data DIR --json FILE [--only [NAME...]] [--page FILE]`: the zoo's recipes, run.

Each model is trained as its file says, converted to float32 and int8, and the float32 bundle is compared with the
cloud engine on the whole test. Every result is saved in --json at once, and those of unchanged recipes are reused:
delete FILE after changes of the code. --page writes the page of all results in it; `--only` without names runs none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recipes.measuring import digest, measured
from benchmarks.recipes.page import ORDER, Saved, cells, page, read, write
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as msedge's: 0, 1 if a bundle differs by more than rounding, 3 for a mistake."""
    parser = argparse.ArgumentParser(prog="benchmarks.recipes", description="Trains and measures the zoo's models.")
    parser.add_argument("--data", type=Path, default=Path("."), metavar="DIR", help="where the data sets are")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="results; those in it are reused")
    parser.add_argument("--only", nargs="*", default=ORDER, choices=ORDER, metavar="NAME", help="only these recipes")
    parser.add_argument("--bundles", type=Path, metavar="DIR", help="keep the bundles here")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page of all results here")
    args = parser.parse_args(arguments)
    try:
        saved = read(args.json) if args.json.exists() else {}
        for name in args.only:
            mark = digest(name)
            if name not in saved or saved[name].digest != mark:
                saved[name] = Saved(mark, measured(name, args.data, args.bundles))
                write(args.json, saved)
            print(" | ".join(cells(saved[name].row)), flush=True)
        if args.page:
            write_atomically(args.page, page(saved).encode())
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0 if all(each.row.same for each in saved.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
