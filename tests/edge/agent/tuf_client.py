"""The agent's trust as the program that tuf-conformance runs: its CLIENT-CLI.md says what the words mean."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.modules["boto3"] = None  # type: ignore[assignment]  # securesystemslib would load it, for 2 s a command

from edge.agent.errors import AgentError  # noqa: E402
from edge.agent.fetching import Https  # noqa: E402
from edge.agent.trust import Trust  # noqa: E402


class TwoPlaces:
    """Metadata at one address, targets at another."""

    def __init__(self, metadata: str, targets: str) -> None:
        self._at = {"metadata": Https(metadata), "targets": Https(targets or metadata)}

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        place, _, rest = name.partition("/")
        return self._at[place].open(rest, start)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata-dir", type=Path, required=True)
    parser.add_argument("--metadata-url", default="")
    parser.add_argument("--target-name", action="append", default=[])
    parser.add_argument("--target-base-url", default="")
    parser.add_argument("--target-dir", type=Path)
    parser.add_argument("command", choices=("init", "refresh", "download"))
    parser.add_argument("root", type=Path, nargs="?")
    given = parser.parse_args()
    stored = given.metadata_dir / "root.json"
    if given.command == "init":
        stored.write_bytes(given.root.read_bytes())
        return 0
    trust = Trust(given.metadata_dir, stored.read_bytes(), TwoPlaces(given.metadata_url, given.target_base_url))
    try:
        trust.refresh()
        for name in given.target_name:
            path, content = given.target_dir / quote(name, ""), trust.target(name)
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)
    except AgentError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
