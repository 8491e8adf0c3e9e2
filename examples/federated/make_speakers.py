"""A fleet whose devices are the speakers of a play: `python make_speakers.py FOLDER model.gguf play.txt` writes
model.mslite and speakers.npz there, and two runs: run.toml, and private.toml with epsilon 8.

The play's parts are separated by blank lines, and each begins with its speaker in a line of its own, `NAME:`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from converter import Lora, Training, convert
from federated import of_texts, write_shards
from lite_runtime import load
from lite_runtime.language import Tokenizer

LENGTH, LEAST = 128, 32
"""Tokens of a window; the fewest tokens of a speaker."""
CONFIG = """\
[model]
bundle = "model.mslite"

[data]
shards = "speakers.npz"
test = 0.0

[algorithm]
name = "fedavg"
rate = 20.0
server_rate = 4.0

[local]
steps = 1
batch = 1

[rounds]
count = {rounds}
fraction = {fraction}

[codec]
up = ["int8"]

[privacy]
clip = 1.0
{privacy}
[evaluation]
every = {rounds}
held_out = 0.2
training = false
steps = 0

[gate]
against = "start"
figure = "loss_before"

[state]
checkpoint = "{name}.state"

[report]
json = "{name}.json"
adapter = "{name}.msstate"
"""
PRIVATE = """\
noise = "central"
epsilon = 8.0
delta = 1e-5
evaluation = "open"
"""


def speakers(text: str) -> dict[str, str]:
    """What each speaker says, from the first part to the last."""
    found = defaultdict(list)
    for part in text.split("\n\n"):
        name, _, said = part.partition(":\n")
        if said.strip():
            found[name.strip()].append(said.strip())
    return {name: "\n\n".join(parts) for name, parts in found.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "model", "text"):
        parser.add_argument(name, type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / "model.mslite"
    adapters = Lora(4, targets=("query", "value"), only_b=True)
    convert(asked.model, output=path, trainable=Training(adapters=adapters, optimizer="sgd"), context=2048)
    tokenizer = Tokenizer.from_bytes(load(path).bundle.section("tokenizer"))
    fleet = of_texts(tokenizer, speakers(asked.text.read_text(encoding="utf-8")), LENGTH, LEAST)
    write_shards(asked.folder / "speakers.npz", fleet)
    for name, rounds, fraction, privacy in (("run", 10, 0.1, ""), ("private", 4, 1.0, PRIVATE)):
        config = asked.folder / f"{name}.toml"
        config.write_text(CONFIG.format(name=name, rounds=rounds, fraction=fraction, privacy=privacy))
        print(f"{len(fleet)} speakers; next: msedge federate {config} --simulate 0")


if __name__ == "__main__":
    main()
