"""What [train], [schedule], [stopping], [plateau] and [freezing] say, as arguments of `Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax

from cloud.errors import TrainError
from cloud.train.deciding.frost import GradualUnfreezing, ProgressiveFreezing
from cloud.train.deciding.judge import EarlyStopping, Plateau
from cloud.train.jobs import settings
from cloud.train.jobs.config import Config, Train
from cloud.train.jobs.named import named_function
from cloud.train.optim import thor
from cloud.train.stepping.averaging import Average, Swa
from cloud.train.stepping.groups import Group
from cloud.train.stepping.heads import Head, Loss
from cloud.train.stepping.losses import LOSSES, PerExample, classified_loss, decided_loss
from cloud.train.stepping.optimizers import decay_mask
from cloud.train.stepping.schedules import Shape, schedule
from federated.tables import closest

__all__ = ["OPTIMIZERS", "Rates", "average_of", "deciding_of", "loss_of", "optimizer_of", "rate_of", "trained_by"]

Rate: TypeAlias = Callable[[Any], Any]
"""Steps done -> learning rate."""

_CHUNK = 256


class Rates:
    """The learning rate after a number of steps, as a float; computed for many steps at once, because a schedule costs
    a hundred microseconds a call."""

    def __init__(self, rate: Rate) -> None:
        self._all = jax.jit(jax.vmap(rate))
        self._chunks: dict[int, Any] = {}

    def __call__(self, step: int) -> float:
        """The rate after `step` steps."""
        number = step // _CHUNK
        if number not in self._chunks:
            self._chunks = {number: np.asarray(self._all(jnp.arange(number * _CHUNK, (number + 1) * _CHUNK)))}
        return float(self._chunks[number][step % _CHUNK])


def _decayed(optimizer: optax.GradientTransformation, said: Train) -> optax.GradientTransformation:
    """With decay as part of the gradient."""
    if not said.weight_decay:
        return optimizer
    return optax.chain(optax.add_decayed_weights(said.weight_decay, mask=_mask(said)), optimizer)


def _mask(said: Train) -> Any:
    return decay_mask if said.decay == "matrices" else None


Work: TypeAlias = Callable[[], float]
"""FLOPs of the passes of a step, counted when it is called."""

OPTIMIZERS: Mapping[str, Callable[[Rate, Train, Work | None], optax.GradientTransformation]] = MappingProxyType(
    {
        "adam": lambda rate, said, _: _decayed(optax.adam(rate), said),
        "adamw": lambda rate, said, _: optax.adamw(rate, weight_decay=said.weight_decay, mask=_mask(said)),
        "sgd": lambda rate, said, _: _decayed(optax.sgd(rate), said),
        "momentum": lambda rate, said, _: _decayed(optax.sgd(rate, momentum=said.momentum, nesterov=True), said),
        "lion": lambda rate, said, _: optax.lion(rate, weight_decay=said.weight_decay, mask=_mask(said)),
        "muon": lambda rate, said, _: optax.contrib.muon(
            rate, weight_decay=said.weight_decay, weight_decay_mask=_mask(said)
        ),
        "thor": lambda rate, said, work: thor(rate, weight_decay=said.weight_decay, work=work and work()),
    }
)


def rate_of(said: Train, steps: int, shape: settings.Schedule | None = None) -> Rate:
    """The learning rate over `steps`, over all epochs; if their number is unknown, it can only be constant."""
    if steps == 0 and (said.warmup or said.schedule != "constant"):
        raise TrainError(
            f"train.schedule: expected constant and no warm-up, got {said.schedule!r} and {said.warmup}: the number "
            "of steps is known only after reading the data. Set train.steps to use them"
        )
    given = msgspec.structs.asdict(shape or settings.Schedule())
    warmup = round(said.warmup * steps)
    return schedule(said.schedule, said.rate, steps, warmup=warmup, rises=said.rises, shape=Shape(**given))


def optimizer_of(said: Train, rate: Rate, work: Work | None = None) -> optax.GradientTransformation:
    """The optimiser of [train] without its groups; `work`: for those that are bounded by it. Raises TrainError for
    decay of all arrays with thor."""
    if said.optimizer == "thor" and said.decay == "all" and said.weight_decay:
        raise TrainError("train.decay: expected 'matrices' with thor, got 'all'")
    return OPTIMIZERS[said.optimizer](rate, said, work)


def groups_of(said: Train, rate: Rate, work: Work | None) -> list[Group]:
    """The groups of [train]."""
    made = []
    for group in said.groups:
        other: dict[str, Any] = {"optimizer": group.optimizer or said.optimizer}
        other |= {} if group.weight_decay < 0 else {"weight_decay": group.weight_decay}
        own = (
            optimizer_of(msgspec.structs.replace(said, **other), rate, work)
            if group.optimizer or len(other) > 1
            else None
        )
        made.append(Group(group.match, group.rate, own))
    return made


def trained_by(said: Train, rate: Rate, work: Work | None = None) -> dict[str, Any]:
    """Arguments about the optimiser."""
    return {
        "optimizer": optimizer_of(said, rate, work), "groups": groups_of(said, rate, work), "layers": said.layers,
        "layer_decay": said.layer_decay if said.layer_decay < 1 else None,
    }  # fmt: skip


def average_of(said: Train, total: int, steps: int) -> Average | None:
    """The average of [train], for `total` steps and `steps` per epoch."""
    if not said.swa:
        return said.average or None
    every = said.swa_every or steps
    if not (total and every):
        raise TrainError(
            "train.swa: the number of steps is known only after reading the data; set train.steps and train.swa_every"
        )
    return Swa(max(round(said.swa * total), 1), every, said.swa_batches)


def deciding_of(config: Config) -> dict[str, Any]:
    """Arguments about evaluations and what follows from them."""
    said, stopping, plateau, freezing = config.train, config.stopping, config.plateau, config.freezing
    kinds: Mapping[str, Callable[[], Any]] = {
        "": lambda: None,
        "gradual": lambda: GradualUnfreezing(freezing.first, freezing.every, freezing.layers),
        "progressive": lambda: ProgressiveFreezing(
            freezing.share, freezing.every, freezing.batches, freezing.layers
        ),
    }  # fmt: skip
    return {
        "stopping": EarlyStopping(**msgspec.structs.asdict(stopping)) if stopping.patience else None,
        "plateau": Plateau(**msgspec.structs.asdict(plateau)) if plateau.patience else None,
        "evaluate_every": said.evaluate_steps or said.evaluate_share or None,
        "freezing": kinds[freezing.kind](),
    }


def loss_of(config: Config, labels: Any) -> Loss:
    """The loss of [train], or that of every head; `labels` of the training data, None if they are read later."""
    said = config.train
    if not said.heads:
        return _loss(said, config, "train", labels)
    made: dict[str, Head] = {}
    for name, head in said.heads.items():
        key = head.labels or name
        mine = labels.get(key) if isinstance(labels, Mapping) else None
        loss = _loss(head, config, f"train.heads.{name}", mine)
        made[name] = Head(loss, head.weight, head.output, head.labels, head.metrics)
    return made


def _loss(said: settings.Loss, config: Config, key: str, labels: Any) -> str | PerExample:
    weights = said.class_weights
    if weights == "balanced":
        weights = _balanced(labels, said.loss, key)
    if said.smoothing or weights or said.focus:
        make = decided_loss if said.loss == "sigmoid_cross_entropy" else classified_loss
        return make(smoothing=said.smoothing, weights=weights, focus=said.focus)
    if ":" in said.loss:
        return named_function(said.loss, config.folder, f"{key}.loss")
    if said.loss not in LOSSES:
        raise TrainError(f'{key}.loss: no such loss {said.loss!r}{closest(said.loss, LOSSES)}, or "module:function"')
    return said.loss


def _balanced(labels: Any, loss: str, key: str) -> tuple[float, ...]:
    """The weights of classes that make all of them count the same: n / (classes * count)."""
    found = None if labels is None else np.asarray(labels).ravel()
    if found is None or (found.dtype.kind not in "iub" and loss != "sigmoid_cross_entropy"):
        raise TrainError(f'{key}.class_weights: "balanced" needs arrays of classes as labels; give numbers instead')
    counts = np.bincount((found > 0.5) if loss == "sigmoid_cross_entropy" else found.clip(0))
    if not counts.all():
        raise TrainError(f"{key}.class_weights: class {int(np.argmin(counts))} has no training example to balance by")
    return tuple((len(found) / (len(counts) * counts)).tolist())
