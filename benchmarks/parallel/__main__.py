"""Six models on three topologies: the cost of experts' plans, pipeline parallelism and our plan, as compiled.

python -m benchmarks.parallel [--models mlp,gpt] [--topologies h100x8] [--contenders dp,ours] [--backend gpu|cpu]
                              [--json FILE]

Prints Markdown. With --json each entry is saved when it is done, and rows already in FILE are not repeated. The GPU's
compiler needs no GPU: see `benchmarks.parallel.install_compiler`. `--backend cpu` runs on virtual devices: set
XLA_FLAGS=--xla_force_host_platform_device_count=8.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.parallel.contest import CONTENDERS, Contest
from benchmarks.parallel.models import MODELS
from benchmarks.parallel.page import page
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from lite_runtime._files import write_atomically

TOPOLOGIES = ("h100x8", "2x4-slow", "4-small")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every row was made, 1 without a compiler for GPUs."""
    given = _parser().parse_args(arguments)
    if given.backend == "gpu" and not compilers.has_gpu():
        print(f"no compiler for GPUs: run benchmarks.parallel.install_compiler FOLDER, set {compilers.FOLDER}=FOLDER")
        return 1
    found: dict[str, dict[str, Any]] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    for place in given.topologies:
        for model in given.models:
            row = found.setdefault(f"{model}:{place}", {})
            missing = tuple(name for name in given.contenders if name not in row)
            if not missing:
                continue
            for entry in Contest(model, place, given.backend).entries(missing):
                row[entry.contender] = entry.to_dict()
                print(f"{model}:{place}:{entry.contender} {entry.step * 1e3:.2f} ms {entry.error}", file=sys.stderr)
                if given.json:
                    write_atomically(given.json, json.dumps(found, indent=1).encode(), PlanError)
    print(page(found))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__.partition("\n")[0])
    for name, known in (("models", tuple(MODELS)), ("topologies", TOPOLOGIES), ("contenders", CONTENDERS)):
        parser.add_argument(f"--{name}", type=_among(known), default=known, metavar=",".join(known))
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def _among(known: Sequence[str]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not {*names} <= {*known}:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}; got {text!r}")
        return names

    return read


if __name__ == "__main__":
    sys.exit(main())
