"""Active learning: which examples are worth a label. NumPy alone, so that it runs where the examples are.

uncertainty   how unsure a model is of each row
diversity     rows that differ
choosing      both by name: what a strategy needs, and its choice
dropout       answers under random dropout
predicting    what a bundle says of a pool
keeping       the most worthy examples of a stream, within a budget
asking        a folder of requests, and the labels that people gave
"""

from __future__ import annotations

from lite_runtime.active.asking import Answers, answers, ask
from lite_runtime.active.choosing import STRATEGIES, Seen, choose
from lite_runtime.active.diversity import badge, k_center
from lite_runtime.active.dropout import dropout_draws, without_dropout
from lite_runtime.active.keeping import Kept
from lite_runtime.active.predicting import look
from lite_runtime.active.uncertainty import bald, entropy, least_confident, margin

__all__ = [
    "STRATEGIES",
    "Answers",
    "Kept",
    "Seen",
    "answers",
    "ask",
    "badge",
    "bald",
    "choose",
    "dropout_draws",
    "entropy",
    "k_center",
    "least_confident",
    "look",
    "margin",
    "without_dropout",
]
