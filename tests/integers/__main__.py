"""See the package."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.integers import __doc__ as usage
from tests.integers.digests import DIGESTS, found_here, write_bundles


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.integers", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("folder", type=Path)
    commands.add_parser("update")
    args = parser.parse_args()
    if args.command == "write":
        print(f"{write_bundles(args.folder)} bundles in {args.folder}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        write_bundles(Path(scratch))
        DIGESTS.write_text("".join(f"{name} {digest}\n" for name, digest in found_here(Path(scratch)).items()))


if __name__ == "__main__":
    main()
