"""What devices whose updates are summed must have in common: the work, and the model they begin with.

A server that gave one device of a secure sum another model, bound or number of steps could tell its update from the sum
(Pasquini, Francati, Ateniese, "Eluding Secure Aggregation in Federated Learning via Model Inconsistency", CCS 2022).
The digest of what a device was told is part of a sum's terms, which all of its masks are made of: a device that was
told something else sends nothing, and devices with different terms have masks that do not cancel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from federated.codec import Spec
from federated.tree import Tree

__all__ = ["work_digest"]

_OWN = ("parts",)
"""Fields that differ between devices which end up with the same: how a device that held an older model got this one."""


def work_digest(meta: Mapping[str, Any], broadcast: Tree) -> bytes:
    """32 bytes that stand for a message's words and for the model as devices decode it."""
    words = {key: value for key, value in meta.items() if key not in _OWN}
    spec = Spec.of(broadcast)
    found = sha256(json.dumps(words, sort_keys=True).encode())
    found.update(b"\0" + spec.digest)
    found.update(spec.flatten(broadcast).astype("<f4", copy=False).data)
    return found.digest()
