"""Aggregators on this machine, each with a SuperLink of its own: `python tree.py FOLDER run.toml --nodes 2`.

The configuration has one level, such as `hierarchy.aggregators = [2]`: a SuperLink for the root, for each aggregator
a SuperLink, its SuperNodes with devices (--nodes each), and a SuperNode that answers to the root. Devices are those of
the configuration's shards in the order of their names, as in a simulation. docs/federated-hierarchy.md explains the
parts; every process is ended at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from local import BIN, Deployment, wait_for


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("--nodes", type=int, default=2, help="devices of each aggregator")
    words = parser.parse_args()
    sections = tomllib.loads(words.config.read_text())
    at = words.config.resolve().parent
    bundle, data = at / sections["model"]["bundle"], at / sections["data"]["shards"]
    names = sorted(set(np.load(data)["device"].tolist()))
    (count,) = sections["hierarchy"]["aggregators"]
    if len(names) < count * words.nodes:
        raise SystemExit(f"expected {count * words.nodes} devices in {data}, got {len(names)}")
    folder = words.folder.resolve()
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(Deployment(made(folder / "root")))
        for number in range(count):
            part = stack.enter_context(Deployment(made(folder / f"part-{number:03d}")))
            for name in names[number * words.nodes : (number + 1) * words.nodes]:
                part.add_node(name, bundle, data)
            socket = part.folder / f"aggregator-{number:03d}.sock"
            stack.enter_context(subprocess.Popen(command(words.config, part, "--aggregator", socket)))
            wait_for(socket.exists, 180, f"the aggregator at {socket}")
            root.add_aggregator(socket)
        code = subprocess.run(command(words.config, root), check=False).returncode
        # The aggregators end by themselves when the root's run is over.
    raise SystemExit(code)


def made(folder: Path) -> Path:
    """The folder, created."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def command(config: Path, at: Deployment, *more: str | Path) -> list[str | Path]:
    """The run on a SuperLink."""
    trust = ["--certificates", at.keys / "ca.crt"]
    return [BIN / "msedge", "federate", config, "--superlink", at.address, *trust, *more]


if __name__ == "__main__":
    main()
