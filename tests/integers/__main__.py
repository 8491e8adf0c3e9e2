"""See the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.integers import __doc__ as usage
from tests.integers.digests import DIGESTS, found_here, write_bundles


def main() -> int:
    """The command; 0 if all is equal."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.integers", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("folder", type=Path)
    commands.add_parser("update")
    commands.add_parser("browser")
    commands.add_parser("boards")
    args = parser.parse_args()
    if args.command == "write":
        print(f"{write_bundles(args.folder)} bundles in {args.folder}")
        return 0
    if args.command in ("browser", "boards"):
        from tests.integers.elsewhere import in_browser, on_boards

        return min(1, (in_browser if args.command == "browser" else on_boards)())
    with tempfile.TemporaryDirectory() as scratch:
        write_bundles(Path(scratch))
        DIGESTS.write_text("".join(f"{name} {digest}\n" for name, digest in found_here(Path(scratch)).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
