"""Runs tuf-conformance, the suite for clients of The Update Framework, against the agent:

    git clone https://github.com/theupdateframework/tuf-conformance
    python -m tests.edge.agent.tuf_conformance tuf-conformance [words for pytest]

It needs the program `faketime` (Debian's package of that name) in addition. Nothing is expected to fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main(words: list[str]) -> int:
    if not words or not (Path(words[0]) / "tuf_conformance").is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    client = f"{sys.executable} {Path(__file__).with_name('tuf_client.py')}"
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tuf_conformance", "--entrypoint", client]
    return subprocess.run([*asked, *words[1:]], cwd=words[0], env={**os.environ, "PYTHONPATH": words[0]}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
