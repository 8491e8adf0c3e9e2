"""What a bundle says of a pool of examples, as a strategy needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lite_runtime.active.choosing import STRATEGIES, Seen
from lite_runtime.active.dropout import MASK, dropout_draws, without_dropout
from lite_runtime.calibration.scores import are_probabilities, from_probabilities, log_softmax
from lite_runtime.errors import InputError
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from lite_runtime import Model

__all__ = ["look"]

MOST_ROWS = 256
"""Rows of one run where the batch is open."""
_SUM = 1e-3
"""How far from 1 the sum of probabilities may be."""


def look(
    model: Model, pool: Mapping[str, Array], strategy: str, *, scores: str | None = None, features: str | None = None,
    labelled: Mapping[str, Array] | None = None, draws: int = 20, seed: int = 0,
) -> tuple[Seen, Array]:  # fmt: skip
    """What `strategy` needs to know of the rows of `pool` (arrays by input), and the class that the model takes, (n,).

    scores: the output with logits or probabilities (n, classes), by default that of the bundle's calibration or the
    only one beside `features`. features: the output (n, …) of what the last layer reads. labelled: arrays of rows with
    labels. Raises InputError for an unknown strategy, inputs or outputs that are missing or of wrong shape, and a pool
    of no rows.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}")
    needs = STRATEGIES[strategy].needs
    if "features" in needs and features is None:
        raise InputError(f"strategy {strategy!r}: it compares features; name the output that has them (--features)")
    names = [value.name for value in model.outputs()]
    if features is not None and features not in names:
        raise InputError(f"expected an output of {', '.join(names)}, got {features!r}")
    name = _scores_of(model, names, scores, features)
    plain = without_dropout(model.inputs())
    out = _run(model, pool, plain)
    probabilities = _probabilities(model, out[name], name)
    drawn = None
    if "draws" in needs:
        drawn = dropout_draws(
            lambda masks: _probabilities(model, _run(model, pool, masks)[name], name), model.inputs(), draws, seed
        )
    known = None
    if features is not None and labelled is not None:
        known = _flat(_run(model, labelled, plain)[features])
    seen = Seen(probabilities, drawn, None if features is None else _flat(out[features]), known)
    return seen, probabilities.argmax(axis=1)


def _scores_of(model: Model, names: Sequence[str], scores: str | None, features: str | None) -> str:
    """The output with the classes' scores."""
    if scores is None and model.calibration is not None:
        scores = model.calibration.output
    left = [name for name in names if name != features]
    if scores is None and len(left) == 1:
        scores = left[0]
    if scores is None or scores not in names:
        got = "several" if scores is None else repr(scores)
        raise InputError(f"expected the output of the classes' scores, one of {', '.join(names)}, got {got} (--scores)")
    return scores


def _run(model: Model, pool: Mapping[str, Array], masks: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of all rows, in runs of the model's batch; masks go into every run."""
    wanted = [value for value in model.inputs() if not value.name.startswith(MASK)]
    if missing := [value.name for value in wanted if value.name not in pool]:
        raise InputError(f"expected arrays {', '.join(v.name for v in wanted)}; missing {', '.join(missing)}")
    counts = {value.name: len(pool[value.name]) if pool[value.name].ndim else 0 for value in wanted}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        raise InputError(f"expected as many rows, at least 1, of every input, got {counts}")
    rows = next(iter(counts.values()))
    fixed = [v.shape[0] for v in wanted if v.shape and isinstance(v.shape[0], int)]
    size = fixed[0] if fixed else MOST_ROWS
    parts: list[dict[str, Array]] = []
    for start in range(0, rows, size):
        given = {v.name: _padded(pool[v.name][start : start + size], size if fixed else 0) for v in wanted}
        run = model.run({**given, **masks})
        parts.append({name: np.asarray(array)[: rows - start] for name, array in run.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _padded(rows: Array, size: int) -> Array:
    """With the last row again up to a fixed batch."""
    short = max(0, size - len(rows))
    return np.concatenate([rows, np.repeat(rows[-1:], short, axis=0)]) if short else rows


def _probabilities(model: Model, found: Array, name: str) -> Array:
    """Probabilities of an output: calibrated if the bundle says how; as they are if each row adds up to 1."""
    scores = np.asarray(found, np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise InputError(f"output {name!r}: expected (n, classes) with at least 2 classes, got {list(scores.shape)}")
    calibration = model.calibration
    if calibration is not None and calibration.output == name:
        logits = from_probabilities(scores) if calibration.kind == "probabilities" else scores
        return np.asarray(np.exp(log_softmax(logits, calibration.temperature)))
    if are_probabilities(scores, _SUM):
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))
    return np.asarray(np.exp(log_softmax(scores)))


def _flat(features: Array) -> Array:
    return np.asarray(features, np.float64).reshape(len(features), -1)
