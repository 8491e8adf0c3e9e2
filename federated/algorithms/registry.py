"""Algorithms by name, and from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federated.algorithms.apfl import APFL
from federated.algorithms.base import Algorithm
from federated.algorithms.ditto import Ditto
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.fedmeta import FOMAML, MAML, MetaSGD, MetaSGDExact
from federated.algorithms.fedopt import FedAdagrad, FedAdam, FedMomentum, FedYogi
from federated.algorithms.fedper import FedBN, FedPer, FedRep
from federated.algorithms.fedprox import FedProx
from federated.algorithms.local_only import LocalOnly
from federated.algorithms.meta_head import MetaHead
from federated.algorithms.perfedavg import PerFedAvg, PerFedAvgHF
from federated.algorithms.pfedme import PFedMe
from federated.algorithms.qfedavg import QFedAvg
from federated.algorithms.reptile import Reptile
from federated.algorithms.scaffold import Scaffold
from federated.errors import FederatedError
from federated.tables import Reader

__all__ = ["ALGORITHMS", "algorithm_from"]

KINDS: tuple[type[Algorithm], ...] = (
    FedAvg, FedProx, Scaffold, QFedAvg, FedMomentum, FedAdagrad, FedAdam, FedYogi, Reptile, PerFedAvg, PerFedAvgHF,
    FOMAML, MAML, MetaSGD, MetaSGDExact, PFedMe, Ditto, FedPer, FedRep, FedBN, APFL, MetaHead, LocalOnly,
)  # fmt: skip
_READ = Reader(FederatedError, "")
ALGORITHMS: Mapping[str, type[Algorithm]] = {kind.name: kind for kind in KINDS}


def algorithm_from(config: Mapping[str, Any]) -> Algorithm:
    """`name` selects the algorithm, every other key is one of its fields. Raises FederatedError for an unknown name or
    field, a value of another type, a number out of range."""
    values = dict(config)
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise FederatedError(f"algorithm: expected name to be one of {', '.join(ALGORITHMS)}; got {name!r}")
    return _READ.read(ALGORITHMS[name], values, f"algorithm {name}: ")
