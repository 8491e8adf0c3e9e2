"""The `msedge` command. Its entry point is `main`, which can report a missing extra `cli` without any dependency."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line on `sys.argv`; ends with SystemExit. Without typer it prints how to install it and exits
    with code 3."""
    try:
        from edge.cli.app import app
    except ModuleNotFoundError as error:
        from edge.extras import explain_missing

        missing = explain_missing(error)
        if missing is None:
            raise
        print(f"error: {missing}", file=sys.stderr)
        raise SystemExit(3) from None
    app(prog_name="msedge")
