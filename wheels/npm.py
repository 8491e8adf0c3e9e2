"""Writes the package @msedge/runtime for npm: `python wheels/npm.py FOLDER`, then `npm pack FOLDER`.

It has the JavaScript that `msedge build` puts beside a model, with --federated too, without a model. Nothing is
published.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    """Read the command line and write."""
    from converter.ahead.package import runtime_files
    from federated.web import modules
    from lite_runtime._files import write_atomically

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write; files with the same names are replaced")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in runtime_files(version("msedge"), modules()).items():
        write_atomically(str(folder / name), content)
    print(folder)


if __name__ == "__main__":
    main()
