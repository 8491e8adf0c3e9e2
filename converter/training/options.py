"""The options of a trainable bundle, validated once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from converter.errors import TrainingError

__all__ = ["LOSSES", "OPTIMIZERS", "SIGNATURES", "BatchNorm", "Lora", "Loss", "Optimizer", "Signature", "Training"]

Loss = Literal["softmax_cross_entropy", "sigmoid_cross_entropy", "mse", "huber", "inner_product"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
BatchNorm = Literal["frozen", "train"]
Signature = Literal["predict", "train_step", "evaluate", "gradients", "curvature"]
SIGNATURES: tuple[Signature, ...] = get_args(Signature)
USUAL: tuple[Signature, ...] = ("predict", "train_step", "evaluate", "gradients")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al., 2021): `alpha / rank * A @ B` is added to a frozen `W`, and only this is trained.

    `B` starts as zeros, so the model's outputs are unchanged until the first step. For MatMul and Gemm by a constant
    matrix, and Conv with 1x1 kernels, whose weights' names match `targets`. Parameters `<W>.lora_a` [inputs, rank] and
    `<W>.lora_b` [rank, outputs].
    """

    rank: int = 4
    alpha: float | None = None
    """None: equal to `rank`, a factor of 1."""
    targets: str | Sequence[str] = "*"
    """Globs of the weights' names."""
    seed: int = 0
    """The seed of the normal numbers that `A` starts with."""
    only_b: bool = False
    """Whether `A` keeps them, and only `B` is trained (Sun et al., "Improving LoRA in Privacy-preserving Federated
    Learning", ICLR 2024): fewer numbers to send, and the mean of several devices' `B` is the mean of their models."""

    def __post_init__(self) -> None:
        _count("rank", self.rank, optional=False)
        if self.alpha is not None:
            _number("alpha", self.alpha, 0.0, math.inf)
        object.__setattr__(self, "targets", _globs("targets", self.targets))

    @property
    def factor(self) -> float:
        """The factor of `A @ B`."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


@dataclass(frozen=True)
class Training:
    """How a bundle trains on a device. Raises TrainingError for values that a field does not allow."""

    trainable: str | Sequence[str] = ()
    """Globs of the names of trained initialisers; may be empty if there are `adapters`."""
    loss: Loss = "softmax_cross_entropy"
    """softmax_cross_entropy: `labels` int64, the logits' shape without its last axis, the classes; labels that are not
    a class (-1, for example) do not count, so that a short batch can be padded. sigmoid_cross_entropy, mse, huber:
    `labels` float32, with the output's shape; the mean over all elements. If the model ends in the Softmax or Sigmoid
    that belongs to the loss, the loss uses its input. inner_product: the sum of output times `labels`, which are then
    the gradient of a loss that is computed elsewhere: that of a model which reads this one's output."""
    output: str = ""
    """The model's output for the loss; "" for its first."""
    huber_delta: float = 1.0
    """Errors beyond it count linearly (huber)."""
    optimizer: Optimizer = "momentum"
    learning_rate: float = 0.01
    """The initial value of the state `hyper/learning_rate`; a device may change it."""
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    """The decay rates of Adam's running mean and variance."""
    epsilon: float = 1e-8
    """Added to the square root of Adam's variance."""
    weight_decay: float = 0.0
    """Weight decay of matrices and filters, never of biases and scales; decoupled from the gradient (Loshchilov &
    Hutter, 2019) with Adam, part of it otherwise."""
    clip_norm: float | None = None
    """The largest norm of all gradients together; larger ones are scaled down."""
    clip_value: float | None = None
    """The largest magnitude of any gradient element."""
    batch_norm: BatchNorm = "frozen"
    """frozen: layers normalise by their running statistics, which do not change. train: if a scale or shift is trained,
    steps normalise by their batch and update the running statistics, which are state."""
    adapters: Lora | None = None
    slopes: str | Sequence[str] = ()
    """Inputs for which `gradients` computes the gradient of the loss too, as the output `slope/<input>`."""
    signatures: Sequence[Signature] = USUAL
    """`curvature`, products with the Hessian, is needed for exact second-order meta-learning only."""
    arena_budget: int | None = None
    """The most bytes of working memory of a step with a batch of `arena_batch`: activations are recomputed in the
    backward part (Chen et al., 2016) until it fits."""
    arena_batch: int = 32
    """The size used for open dimensions when `arena_budget` is measured."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trainable", _globs("trainable", self.trainable, empty=self.adapters is not None))
        object.__setattr__(self, "slopes", _globs("slopes", self.slopes, empty=True))
        object.__setattr__(self, "betas", tuple(self.betas))
        for name, allowed in _CHOICES.items():
            _one_of(name, getattr(self, name), allowed)
        for name, low, high in _RANGES:
            _number(name, getattr(self, name), low, high)
        if len(self.betas) != 2:
            raise TrainingError(f"betas: expected two numbers, got {self.betas!r}")
        for beta in self.betas:
            _number("betas", beta, 0.0, _ALMOST_ONE)
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), _TINY, math.inf)
        if self.clip_norm is not None and self.clip_value is not None:
            raise TrainingError("expected clip_norm or clip_value, got both; omit one")
        object.__setattr__(self, "signatures", tuple(self.signatures))
        for signature in self.signatures:
            _one_of("signatures", signature, SIGNATURES)
        if not set(self.signatures) & {"train_step", "gradients"}:
            raise TrainingError("signatures: expected train_step or gradients among them; nothing would be trained")
        for name in ("arena_budget", "arena_batch"):
            _count(name, getattr(self, name), optional=name == "arena_budget")
        if self.arena_budget is not None and "train_step" not in self.signatures:
            raise TrainingError("arena_budget needs train_step, which is not among the signatures; omit it")


_TINY, _ALMOST_ONE = 1e-30, 1.0 - 1e-9
_CHOICES: dict[str, tuple[Any, ...]] = {
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "batch_norm": get_args(BatchNorm),
    "nesterov": (True, False),
}
_RANGES = (
    ("huber_delta", _TINY, math.inf),
    ("learning_rate", 0.0, math.inf),
    ("momentum", 0.0, _ALMOST_ONE),
    ("epsilon", 0.0, math.inf),
    ("weight_decay", 0.0, math.inf),
)


def _one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    allowed = tuple(allowed)
    if not any(value == one and type(value) is type(one) for one in allowed):
        raise TrainingError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def _count(name: str, value: object, *, optional: bool) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if not whole and not (optional and value is None):
        raise TrainingError(f"{name}: expected a whole number of 1 or more, got {value!r}")


def _number(name: str, value: object, low: float, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high or not math.isfinite(value):  # type: ignore[operator, arg-type]
        least = "a positive number" if low == _TINY else f"a number of {low:g} or more"
        raise TrainingError(f"{name}: expected {least}{'' if high == math.inf else ' below 1'}, got {value!r}")


def _globs(name: str, value: object, empty: bool = False) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(glob, str) and glob for glob in found) or not (found or empty):
        raise TrainingError(f"{name}: expected globs of initialisers' names, got {value!r}")
    return tuple(map(str, found))
