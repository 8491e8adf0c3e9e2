"""The `msedge` command. `main` is its entry point and needs nothing but Python until the extra `cli` is found."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line on `sys.argv` and leave by SystemExit. Without typer: its pip line, exit code 3."""
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
