"""Ways of training that change the model, the loss or the optimiser around the same step: low-rank adapters, a teacher,
pruning, adversarial examples. Each is a task, a loss, an optimiser or an output made from another one, so the step,
plans and checkpoints know none."""

from __future__ import annotations

from cloud.train.variants.adversarial import Adversarial
from cloud.train.variants.distill import Distill
from cloud.train.variants.lora import Lora
from cloud.train.variants.prune import Prune
from cloud.train.variants.variants import Variants

__all__ = ["Adversarial", "Distill", "Lora", "Prune", "Variants"]
