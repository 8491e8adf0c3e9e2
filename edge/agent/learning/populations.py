"""What a device works with in federated tasks: the bundles that run, and the examples that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import file_digest
from pathlib import Path

from edge.agent.agent import APPLICATIONS, installed
from federated.client.demands import Demands
from federated.client.device import Device
from federated.client.lite import LiteLearner
from federated.client.state import StateStore
from federated.data import of_one, size
from federated.server.gathering import Answering
from lite_runtime.bundle import read
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.joining import Member

__all__ = ["Population", "Settings", "population_of", "running"]

STATE = "federated.sqlite"
"""Beside an application's slots: what the device keeps between rounds."""


class Population(NamedTuple):
    """What a device would work with for one application. node: makes what answers the messages, when there are some."""

    member: Member
    node: Callable[[], Answering]


class Settings(NamedTuple):
    """How one application learns. file: of the release, "": its only one. examples: the device's own, an .npz file with
    the model's inputs and `labels`. consent: of the owner, to keep personal versions at the server. demands: of the
    owner (`federated.client.demands.Demands`)."""

    examples: str
    file: str = ""
    labels: str = "labels"
    consent: str = "none"
    demands: Demands = Demands()


def population_of(device: str, bundle: Path, state: Path, settings: Settings) -> Population:
    """What a device with this id would work with: a bundle that runs here, and the examples that are there now. Raises
    FederatedError and BundleError for files that are none, or without examples."""
    path = Path(settings.examples)
    data, digest = of_one(path, settings.labels), read(bundle).digest
    with path.open("rb") as file:
        told = file_digest(file, "sha256").hexdigest()

    def node() -> Device:
        learner, store = LiteLearner(bundle), StateStore(state)
        return Device(device, learner, data, store, digest, consent=settings.consent, demands=settings.demands)

    return Population(Member(digest, size(data), told), node)


def running(
    folder: Path, device: str, applications: Mapping[str, Settings], watch: Callable[[str], None]
) -> dict[str, Population]:
    """The populations of the applications that run on a device now and have examples. folder: the agent's."""
    found: dict[str, Population] = {}
    for name, settings in applications.items():
        files = installed(folder, name)
        if files is None or not Path(settings.examples).exists():
            continue
        file = settings.file or next((path.name for path in sorted(files.iterdir())), "")
        try:
            found[name] = population_of(device, files / file, folder / APPLICATIONS / name / STATE, settings)
        except (MsedgeError, OSError) as problem:
            watch(f"{name}: {problem}")
    return found
