"""What devices in one secure sum must have in common: the task, and the model they start from.

A server that sent one device of a secure sum another model, bound or number of steps could separate its update from the
sum (Pasquini, Francati, Ateniese, "Eluding Secure Aggregation in Federated Learning via Model Inconsistency", CCS
2022). The digest of a device's task is part of a sum's terms, from which all of its masks are derived: a device with
another task sends nothing, and devices with different terms have masks that do not cancel.
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
"""Fields that may differ between devices with the same model: they say how a device with an older one got this one."""


def work_digest(meta: Mapping[str, Any], broadcast: Tree) -> bytes:
    """A digest (32 bytes) of a message's fields and of the model as devices decode it."""
    words = {key: value for key, value in meta.items() if key not in _OWN}
    spec = Spec.of(broadcast)
    found = sha256(json.dumps(words, sort_keys=True).encode())
    found.update(b"\0" + spec.digest)
    found.update(spec.flatten(broadcast).astype("<f4", copy=False).data)
    return found.digest()
