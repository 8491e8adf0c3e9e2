"""Adversarial attacks: one paper a file. All take a victim, inputs and labels, and return `Attacked`.

| attack | needs | norm | finds |
|---|---|---|---|
| `fgsm` | gradient | Linf, L2 | an example within epsilon, in one step |
| `pgd` | gradient | Linf, L2 | an example within epsilon |
| `auto_pgd` | gradient | Linf, L2 | an example within epsilon, without a step size to choose |
| `square` | predictions | Linf, L2 | an example within epsilon |
| `deepfool` | gradient | L2 | a near example |
| `carlini_wagner` | gradient | L2 | a near example |
| `hop_skip_jump` | predicted classes | L2, Linf | a near example |
"""

from __future__ import annotations

from cloud.audit.attacks.auto_pgd import auto_pgd
from cloud.audit.attacks.carlini_wagner import carlini_wagner
from cloud.audit.attacks.checks import Check, masked_gradients
from cloud.audit.attacks.deepfool import deepfool
from cloud.audit.attacks.fgsm import fgsm
from cloud.audit.attacks.hop_skip_jump import hop_skip_jump
from cloud.audit.attacks.pgd import pgd
from cloud.audit.attacks.results import Attacked
from cloud.audit.attacks.square import square

__all__ = [
    "Attacked",
    "Check",
    "auto_pgd",
    "carlini_wagner",
    "deepfool",
    "fgsm",
    "hop_skip_jump",
    "masked_gradients",
    "pgd",
    "square",
]
