"""Federated learning: training on a fleet's data without collecting it; personal models, meta-learning, Flower.

    run = federated.simulate(federated.read_config("run.toml"), fleet)

Importing this package loads nothing heavy; each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from federated.algorithms import ALGORITHMS, Algorithm, Update, algorithm_from
    from federated.client.device import Device
    from federated.client.lite import LiteLearner
    from federated.config import Config
    from federated.config import read as read_config
    from federated.data import synthetic
    from federated.errors import FederatedError
    from federated.learner import Learner
    from federated.run import Fleet, fleet_of, serve, simulate
    from federated.server.federation import Federation
    from federated.server.store import PersonalStore, Retention
    from federated.texts import of_texts, windows, write_shards
    from federated.transport.app_client import app as client_app
    from federated.transport.app_server import app as server_app

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Config",
    "Device",
    "FederatedError",
    "Federation",
    "Fleet",
    "Learner",
    "LiteLearner",
    "PersonalStore",
    "Retention",
    "Update",
    "algorithm_from",
    "client_app",
    "fleet_of",
    "of_texts",
    "read_config",
    "serve",
    "server_app",
    "simulate",
    "synthetic",
    "windows",
    "write_shards",
]

_HOMES = {
    "ALGORITHMS": "federated.algorithms",
    "Algorithm": "federated.algorithms",
    "Config": "federated.config",
    "Device": "federated.client.device",
    "FederatedError": "federated.errors",
    "Federation": "federated.server.federation",
    "Fleet": "federated.run",
    "Learner": "federated.learner",
    "LiteLearner": "federated.client.lite",
    "PersonalStore": "federated.server.store",
    "Retention": "federated.server.store",
    "Update": "federated.algorithms",
    "algorithm_from": "federated.algorithms",
    "client_app": "federated.transport.app_client:app",
    "fleet_of": "federated.run",
    "of_texts": "federated.texts",
    "read_config": "federated.config:read",
    "serve": "federated.run",
    "server_app": "federated.transport.app_server:app",
    "simulate": "federated.run",
    "synthetic": "federated.data",
    "windows": "federated.texts",
    "write_shards": "federated.texts",
}
"""Every public name and the module that defines it."""

__getattr__ = lazy("federated", _HOMES, "federated", "the server and its devices exchange messages with Flower")


def __dir__() -> list[str]:
    return sorted(__all__)
