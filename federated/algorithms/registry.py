"""Algorithms by name, and out of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
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
from federated.algorithms.reptile import Reptile
from federated.algorithms.scaffold import Scaffold
from federated.errors import FederatedError

__all__ = ["ALGORITHMS", "algorithm_from"]

KINDS: tuple[type[Algorithm], ...] = (
    FedAvg, FedProx, Scaffold, FedMomentum, FedAdagrad, FedAdam, FedYogi, Reptile, PerFedAvg, PerFedAvgHF, FOMAML, MAML,
    MetaSGD, MetaSGDExact, PFedMe, Ditto, FedPer, FedRep, FedBN, APFL, MetaHead, LocalOnly,
)  # fmt: skip
ALGORITHMS: Mapping[str, type[Algorithm]] = {kind.name: kind for kind in KINDS}


def algorithm_from(config: Mapping[str, Any]) -> Algorithm:
    """`name` says which, every other key is one of its fields. Raises FederatedError for an unknown name or
    field, a value of another type, a number out of range."""
    values = dict(config)
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise FederatedError(f"algorithm: expected name to be one of {', '.join(ALGORITHMS)}; got {name!r}")
    kind = ALGORITHMS[name]
    known = {entry.name: str(entry.type) for entry in fields(kind)}
    if unknown := values.keys() - known.keys():
        raise FederatedError(
            f"algorithm {name}: it has no {', '.join(sorted(unknown))}; its fields are {', '.join(known)}"
        )
    return kind(**{field: _read(f"algorithm {name}: {field}", known[field], value) for field, value in values.items()})


def _read(where: str, kind: str, value: Any) -> Any:
    """A value out of TOML or JSON as a field's type: whole numbers do for reals, lists for tuples."""
    match kind, value:
        case "bool", bool():
            return value
        case "int", int() if not isinstance(value, bool):
            return value
        case "float", int() | float() if not isinstance(value, bool) and (value != value or abs(value) < 1e300):
            return float(value)
        case "str", str():
            return value
        case "tuple[str, ...]", list() | tuple() if all(isinstance(part, str) for part in value):
            return tuple(value)
    raise FederatedError(f"{where}: expected {kind}, got {value!r}")
