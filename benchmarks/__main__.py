"""`python -m benchmarks --models DIR [--threads N] [--json]`: the comparison table, Markdown or JSON on stdout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.comparison import compare, geometric_mean, markdown, models_in, trouble
from edge.cli.output import emit
from edge.contest import PEERS, Contest
from lite_runtime.errors import MsedgeError


def main() -> int:
    """Exit codes as msedge's: 0, 1 when a model did not run or not right, 3 when none could."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Every model in a folder against its peer.")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, default=25, metavar="N", help="turns each contender takes")
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    args = parser.parse_args()
    results: list[Contest | tuple[str, MsedgeError]] = []
    try:
        models = models_in(args.models)
        for number, result in enumerate(compare(models, threads=args.threads, rounds=args.rounds), 1):
            name = result.model if isinstance(result, Contest) else result[0]
            print(f"{number}/{len(models)} {name}", file=sys.stderr, flush=True)
            results.append(result)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    if args.json:
        emit(
            {
                "threads": args.threads,
                "models": [_as_json(result) for result in results],
                "geometric_mean": {name: geometric_mean(results, name) for name in PEERS},
            }
        )
    else:
        print(markdown(results))
    wrong = [name for result in results if (name := trouble(result))]
    for name in wrong:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if wrong else 0


def _as_json(result: Contest | tuple[str, MsedgeError]) -> dict[str, object]:
    return result.as_dict() if isinstance(result, Contest) else {"model": result[0], "error": str(result[1])}


if __name__ == "__main__":
    sys.exit(main())
