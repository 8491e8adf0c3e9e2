"""ResNet-8 on handwritten digits: the small real run that the demo shows and tests use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cloud.train.inputs.augment import random_affine
from cloud.train.inputs.digits import BACKGROUND, DigitsSplit, load_digits_split
from cloud.train.stepping.losses import smoothed_cross_entropy
from cloud.train.stepping.optimizers import cosine_schedule, momentum_sgd
from cloud.train.trainer import EpochReport, Evaluation, Trainer
from cloud.zoo import resnet8

__all__ = ["DigitsRun", "train_digits"]


@dataclass(frozen=True)
class DigitsRun:
    """A finished run: `held_out` is the accuracy on held-out images; `seconds` include compilation."""

    trainer: Trainer
    split: DigitsSplit
    reports: tuple[EpochReport, ...]
    held_out: Evaluation
    seconds: float


def train_digits(
    seed: int = 0, *, epochs: int = 24, size: int = 8, batch_size: int = 64, rate: float = 0.1,
    progress: Callable[[EpochReport], None] | None = None,
) -> DigitsRun:  # fmt: skip
    """Nesterov momentum with warm-up and cosine decay, weight decay, smoothed labels and small random affine moves.

    The seed determines the split, the initial weights, the order of examples and the moves.
    """
    begun = time.perf_counter()
    split = load_digits_split(seed, size)
    steps = epochs * -(-len(split.x) // batch_size)
    trainer = Trainer(
        resnet8((1, size, size), seed=seed),
        loss=smoothed_cross_entropy(0.1),
        metrics=("accuracy",),
        optimizer=momentum_sgd(cosine_schedule(rate, steps, warmup=steps // 10), weight_decay=5e-4),
        augment=random_affine(shift=0.5 * size / 8, zoom=0.1, shear=0.2, fill=BACKGROUND),
        seed=seed,
    )
    reports = trainer.fit((split.x, split.y), epochs, batch_size, progress=progress)
    held_out = trainer.evaluate((split.held_out_x, split.held_out_y))
    return DigitsRun(trainer, split, tuple(reports), held_out, time.perf_counter() - begun)
