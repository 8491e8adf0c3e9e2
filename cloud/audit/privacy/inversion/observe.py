"""What a curious server sees of one device in a federated round: the gradient in the bytes that were sent.

Nothing but the two messages of the round is read, and the model, which the server has. What the update lost on its way
(codec, clipping, noise) is lost here too; a masked update is read as if its masks were the update, which is all that a
server alone can do with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from cloud.engine import EngineFunction, lower
from cloud.errors import AuditError
from cloud.federated.products import as_products
from federated.algorithms import algorithm_from
from federated.codec import Codec, Spec
from federated.errors import FederatedError
from federated.messages import fields
from federated.messages.downlink import Behind, catch_up, first, read_whole
from federated.messages.packed import unpack
from federated.privacy.secure.fixed_point import FixedPoint
from federated.server.gathering import Answering
from federated.tree import Tree

__all__ = ["Loss", "Model", "Observed", "Tap", "observe", "observe_change", "observe_mean"]

DIFFERENCES = ("fedavg", "fedprox", "fedmomentum", "fedadagrad", "fedadam", "fedyogi")
"""Algorithms whose update is the difference of the parameters that SGD made."""


_FIELDS: Mapping[str, tuple[type, ...]] = {
    "algorithm": (dict,), "down": (list,), "up": (list,), "privacy": (dict,), "multiplier": (float, int),
    "steps": (int,), "batch": (int,), "model": (int,), "digest": (str,), "parts": (list, type(None)),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Loss(EngineFunction):
    """A bundle's loss as a function of two inputs, examples and labels: see `trained_function`."""

    classes: int = 0


Model: TypeAlias = ir.Model | Loss


@dataclass
class Tap:
    """A device whose messages are recorded: what its server, or anyone who has the server's keys, keeps of it."""

    device: Answering
    trained: list[tuple[bytes, bytes]] = field(default_factory=list)
    """(message, reply) of each request to train."""

    def answer(self, message: bytes) -> bytes:
        """The device's answer."""
        reply = self.device.answer(message)
        if unpack(message)[0].get("kind") == "train":
            self.trained.append((message, reply))
        return reply


@dataclass(frozen=True)
class Observed:
    """A gradient as it was sent: `params` and `state` at which it was computed, mean over `examples` examples."""

    function: EngineFunction = field(repr=False)
    params: Mapping[str, Any]
    state: Mapping[str, Any]
    gradient: Mapping[str, Any]
    """(shape of the parameter) float32 by name; up to a positive factor if the update was clipped."""
    examples: int
    steps: int
    """Local steps: with more than one, the gradient is their mean on the way, not that of one point."""
    masked: bool
    """Whether the update was masked for a secure sum."""
    classes: int
    protections: tuple[str, ...]
    """What the message says was applied: "codec int8", "clip 1", "noise local 0.5", "secure sums"."""

    @property
    def input(self) -> tuple[str, tuple[int, ...]]:
        """The name and shape of an example."""
        spec = self.function.inputs[0]
        return spec.name, tuple(int(size) for size in (spec.shape or ())[1:] if size is not None)


def observe(model: Model, message: bytes, reply: bytes) -> Observed:
    """The gradient in a device's reply to a message that asked it to train.

    model: as it was before training: the function of the devices' bundle (`trained_function`), or an IR model with its
    initialisers named as the bundle's. Raises AuditError for messages without a
    gradient, of algorithms whose update is none, and for versions of the model that these messages do not contain.
    """
    function = _of(model)
    meta, params = _asked(function, message)
    words, body = _opened(reply, "reply")
    if words.get("kind") != "update":
        why = f": {str(words.get('why'))[:200]}" if words.get("kind") == "refusal" else ""
        raise AuditError(f"expected an update, got {words.get('kind')!r}, which has no gradient{why}")
    data = body.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise AuditError("expected an update with bytes named data, got none; these messages have no gradient")
    private, spec = meta["privacy"], Spec.of({"params": params})
    if private.get("secure"):
        update = _masked(data.tobytes(), meta.get("secure") or {}, spec)
    else:
        try:
            update = Codec.parse(meta["up"]).decode(data.tobytes(), spec)["params"]
        except FederatedError as error:
            raise AuditError(f"the update cannot be read: {error}") from None
    return _observed(function, meta, params, update, int(meta["batch"]), bool(private.get("secure")))


def observe_change(model: Model, message: bytes, following: bytes, devices: int, server_rate: float = 1.0) -> Observed:
    """The mean gradient of all `devices` of a round, from the model before it and that of the next message: all that a
    server learns where sums are secure. Raises AuditError as `observe`."""
    function = _of(model)
    meta, before = _asked(function, message)
    _, after = _asked(function, following)
    update = {name: (np.asarray(after[name]) - before[name]) / server_rate for name in before}
    return _observed(function, meta, before, update, devices * int(meta["batch"]), False)


def observe_mean(model: Model, message: bytes, mean: Tree, devices: int) -> Observed:
    """The mean gradient of all `devices` of a round from the mean of their updates, as a server has it after a secure
    sum (`Recorded.means`). Raises AuditError as `observe`."""
    function = _of(model)
    meta, params = _asked(function, message)
    return _observed(function, meta, params, mean["params"], devices * int(meta["batch"]), False)


def _of(model: Model) -> EngineFunction:
    if isinstance(model, Loss):
        return model
    function = as_products(lower(model, training=True))
    if len(function.inputs) != 1 or function.inputs[0].dtype != np.float32 or not function.inputs[0].shape:
        raise AuditError(f"expected a model with one float32 input, got {[spec.name for spec in function.inputs]}")
    return function


def _opened(data: bytes, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        return unpack(data, what)
    except FederatedError as error:
        raise AuditError(str(error)) from None


def _asked(function: EngineFunction, message: bytes) -> tuple[dict[str, Any], Tree]:
    """A message that asks for training, and the parameters that it sends."""
    meta, body = _opened(message, "message")
    if meta.get("kind") != "train":
        raise AuditError(f"expected a message that asks for training, got {meta.get('kind')!r}")
    ours = {name: np.asarray(value) for name, value in {**function.params, **function.state}.items()}
    try:
        fields.check("message", meta, _FIELDS)
        fields.check("message", body, {"data": (np.ndarray,)})
        algorithm = algorithm_from(meta["algorithm"])
        if algorithm.name not in DIFFERENCES:
            raise AuditError(
                f"expected updates of {', '.join(DIFFERENCES)}, got {algorithm.name}: its update is no gradient"
            )
        start = first(algorithm.broadcast(algorithm.init(ours)))
        codec, data = Codec.parse(meta["down"]), body["data"].tobytes()
        if meta["parts"] is None:
            return meta, read_whole(codec, data, Spec.of(start))["params"]
        return meta, catch_up(codec, meta, data, Spec.of(start), [(0, start)])["params"]
    except Behind:
        raise AuditError(
            "the message holds differences to a later model; give the first round's, or a whole one"
        ) from None
    except FederatedError as error:
        raise AuditError(f"the model's parameters do not fit the message: {error}") from None


def _masked(data: bytes, words: Mapping[str, Any], spec: Spec) -> Tree:
    """A masked update, read as if the masks were the update."""
    try:
        fields.check("secure sum", words, dict.fromkeys(("bound", "devices", "bits", "heaviest"), (float, int)))
        grid = FixedPoint(words["bound"], words["devices"], words["bits"], words["heaviest"])
    except FederatedError as error:
        raise AuditError(str(error)) from None
    kind = np.dtype(f"<i{grid.bits // 8}")
    size = grid.size(spec) * kind.itemsize
    if len(data) < size:
        raise AuditError(f"expected a masked update of {size} bytes, got {len(data)}")
    vector = np.frombuffer(data[-size:], kind)[:-1].astype(np.float32) * np.float32(grid.bound / grid.levels)
    found: Tree = spec.unflatten(vector)["params"]  # type: ignore[assignment]
    return found


def _observed(
    function: EngineFunction, meta: Mapping[str, Any], params: Tree, update: Tree, examples: int, masked: bool
) -> Observed:
    rate, steps = float(meta["algorithm"].get("rate", algorithm_from(meta["algorithm"]).rate)), int(meta["steps"])  # type: ignore[attr-defined]
    if not rate > 0:
        raise AuditError(f"expected a rate above 0, got {rate}: the update is no gradient")
    gradient = {name: -np.asarray(update[name], np.float32) / (rate * steps) for name in function.params}
    private, scores = meta["privacy"], function.outputs[0].shape or (0,)
    classes = function.classes if isinstance(function, Loss) else int(scores[-1] or 0)
    marks = {
        f"codec {','.join(meta['up'])}": bool(meta["up"]),
        f"clip {private.get('clip')}": bool(private.get("clip")),
        f"noise {private.get('noise')} {meta['multiplier']:.3g}": private.get("noise", "none") != "none",
        "secure sums": bool(private.get("secure")),
    }
    return Observed(
        function, {name: np.asarray(params[name], np.float32) for name in function.params},
        {name: np.asarray(params[name], np.float32) for name in function.state}, gradient, examples, steps, masked,
        classes, tuple(name for name, there in marks.items() if there),
    )  # fmt: skip
