"""A program that has the agent in itself: `python examples/updates/inside.py FOLDER`.

A team releases three versions of a model. The program is the device: it uses what is installed, looks for news, tries a
new version in use, and returns to the one before where that one does not do. Needs the extras `hub` and `convert`; a
device needs `agent` alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import msedge
from edge.agent import Agent, Folder, Function, Repository, Rules, Settings, Trust

APPLICATION, FILE = "thermostat", "model.mslite"


def bundle(path: Path, slope: float) -> Path:
    """A model that multiplies by a slope, as a bundle."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    k = numpy_helper.from_array(np.array([slope], np.float32), "k")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "k"], ["y"])], "thermostat", [x], [y], [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    msedge.convert(model, output=path)
    return path


def team(folder: Path, *words: str) -> str:
    """What `msedge hub` says to a command of the team's, in the folder with the repository and the keys."""
    command = [sys.executable, "-m", "edge.cli", "hub", *words]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


class Program:
    """What runs on the device. It answers with the model of the running version."""

    def __init__(self, folder: Path) -> None:
        files = Folder(folder / "repository")  # or Https("https://hub.example.org/repository")
        root = (folder / "repository/metadata/1.root.json").read_bytes()  # given with the first installation
        settings = Settings(health=(Function(self.well),), every=0.1, rules=Rules(seconds=0, successes=2, failures=1))
        source = Repository(Trust(folder / "trust", root, files), files)
        self.agent = Agent(folder / "device", {APPLICATION: settings}, source, every=0.0, watch=self.told)
        self.agent.on_switch(APPLICATION, self.load)
        self.agent.start()

    def told(self, event: Any) -> None:
        """Called for each event."""
        print(f"  {event.kind} {event.version} {event.text}")

    def load(self, folder: Path) -> None:
        """Called after each switch, before the trial."""
        self.model = msedge.load(folder / FILE)

    def answer(self, value: float) -> float:
        """What the running model says."""
        return float(self.model.run({"x": np.full((1, 4), value, np.float32)})["y"][0, 0])

    def well(self, context: Any) -> str:
        """The program's own word on a version in its trial."""
        found = self.answer(1.0)
        return "" if found < 5 else f"expected less than 5 degrees, got {found:g}"

    def work(self) -> None:
        """Look for news until no update is under way."""
        self.agent.once()
        while self.agent.applications[APPLICATION].busy:
            time.sleep(min(self.agent.pause, 0.1))
            self.agent.advance()
        print(f"  answers {self.answer(1.0):g}")


def main() -> None:
    """Three releases, of which the last does not do."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    team(folder, "init", "repository", "--application", APPLICATION)
    program = None
    for version, slope in (("1.0.0", 2.0), ("1.1.0", 3.0), ("2.0.0", 40.0)):
        print(f"the team releases {version}")
        path = bundle(folder / f"{version}.mslite", slope)
        team(folder, "add", "repository", APPLICATION, version, f"{FILE}={path.name}")
        team(folder, "promote", "repository", APPLICATION, version)
        program = program or Program(folder)
        program.work()
    print(team(folder, "provenance", "repository", APPLICATION, "1.1.0"))


if __name__ == "__main__":
    main()
