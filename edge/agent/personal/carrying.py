"""Carries what was learned on one bundle over to the next, and says what it is worth there.

Learned is what differs from the bundle's own initial state, or what patterns name. It is carried by name, dtype and
shape. There are up to four candidates for the new state:

1. initial: as the new bundle is;
2. carried: what was learned replaces the new bundle's values;
3. shifted: the difference that was learned is added to them, where they are not the old bundle's values;
4. refitted: from the best of these, some epochs of the bundle's own training steps on half of the device's kept
   examples.

With kept examples the candidate with the least loss on them counts (on the other half, if there is a fourth one; if
that is the one, it is fitted to all of them then); without any, 2, if all that was learned fits. Where 1 is best, or
nothing fits, the learned state stays with the old version, for its return.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lite_runtime import bundle
from lite_runtime.bundle import Bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.learning import checkpoint
from lite_runtime.running.session import Model, load

__all__ = ["Report", "Score", "State", "candidates", "carried_here", "learned", "plain"]

State = Mapping[str, Array]
_SLOT = "optimizer/"
_BATCH, _MOST = 32, 4096
"""Rows of a batch where the bundle leaves them open; kept examples that are read at most."""


class Score(NamedTuple):
    """Mean loss, and the share of examples that are right (None where nothing is right or wrong)."""

    loss: float
    accuracy: float | None = None


class Report(NamedTuple):
    """What became of learned state. how: the candidate that counts. names: of arrays that were carried. left: those
    that do not fit. examples: by which it was judged. before: the old bundle with what it learned. after: the new one
    with this candidate. fresh: the new one as it is."""

    how: str
    names: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    examples: int = 0
    before: Score | None = None
    after: Score | None = None
    fresh: Score | None = None


def learned(held: Bundle, state: State, patterns: Sequence[str]) -> dict[str, Array]:
    """Of a bundle's state, what was learned: what differs from the initial values, and matches a pattern if there are
    any; slots of an optimiser go with their parameter."""
    moved = {name for name, value in state.items() if name not in held.state or not _equal(value, held.state[name])}
    if patterns:
        moved = {name for name in moved if any(fnmatchcase(_parameter(name), pattern) for pattern in patterns)}
    plain = {name for name in moved if not name.startswith(_SLOT)}
    return {name: state[name] for name in moved if name in plain or _parameter(name) in (*plain, "step")}


def fitting(new: Bundle, found: State) -> tuple[str, ...]:
    """The names of learned arrays that the new bundle has with the same dtype and shape, and of the slots of these."""
    alike = {name for name, value in found.items() if name in new.state and _alike(value, new.state[name])}
    plain = {name for name in alike if not name.startswith(_SLOT)}
    with_step = {*plain, "step"} if plain else set()
    return tuple(sorted(name for name in alike if name in plain or _parameter(name) in with_step))


def candidates(old: Bundle, new: Bundle, found: State) -> dict[str, dict[str, Array]]:
    """The states that the new bundle may begin with, by name: see the module's text, without 4."""
    made: dict[str, dict[str, Array]] = {"initial": dict(new.state)}
    fits = {name: found[name] for name in fitting(new, found)}
    if not fits:
        return made
    made["carried"] = {**new.state, **fits}
    shifts = {
        name: (new.state[name] + (value - old.state[name])).astype(value.dtype)
        for name, value in fits.items()
        if value.dtype.kind == "f" and name in old.state and not _equal(old.state[name], new.state[name])
    }
    if shifts:
        made["shifted"] = {**made["carried"], **shifts}
    return made


def carried_here(words: Mapping[str, Any]) -> dict[str, Any]:
    """Carry a state file over, in the process of `edge.agent.checking.child`. words: `old`, `state`, `new`, `into`:
    paths; `names`: patterns; `examples`: a path or ""; `epochs`. Writes `into` unless nothing is carried."""
    old, new, found = bundle.read(words["old"]), bundle.read(words["new"]), checkpoint.read(words["state"])
    own = learned(old, found.state, words["names"])
    if not own:
        return plain(Report("nothing was learned"))
    made = candidates(old, new, own)
    fits = fitting(new, own)
    left = tuple(sorted(name for name in own if name not in fits and not name.startswith(_SLOT)))
    examples = _examples(words["examples"]) if words["examples"] and "evaluate" in new.signatures else {}
    count = len(next(iter(examples.values()))) if examples else 0
    report = Report("initial", fits, left, count)
    if count:
        report = _judged(words, made, found.state, examples, report)
    elif "carried" in made and not left:
        report = report._replace(how="carried")
    if report.how != "initial":
        into = made[report.how]
        _finite(into)
        os.makedirs(os.path.dirname(words["into"]), exist_ok=True)
        checkpoint.write(words["into"], into, new.digest, {"carried": report.how, "from": old.digest})
    return plain(report)


def _judged(
    words: Mapping[str, Any], made: dict[str, dict[str, Array]], state: State, examples: Mapping[str, Array], at: Report
) -> Report:
    """The report by the losses of all candidates; adds the fourth one to `made`."""
    first, rest = _halves(examples) if words["epochs"] and "carried" in made else ({}, examples)
    model = load(words["new"])
    scores = {name: scored(model, one, rest) for name, one in made.items()}
    best = start = _best(scores)
    if first and "train_step" in model.signatures:
        made["refitted"] = _refitted(model, made[start], first, words["epochs"])
        scores["refitted"] = scored(model, made["refitted"], rest)
        best = _best(scores)
    old = load(words["old"])
    before = scored(old, {**old.state_dict(), **state}, rest) if "evaluate" in old.signatures else None
    if best == "refitted":  # it has shown its worth on examples that it had not seen; now it may see all
        made[best] = _refitted(model, made[start], examples, words["epochs"])
    return at._replace(how=best, before=before, after=scores[best], fresh=scores["initial"])


def _best(scores: Mapping[str, Score]) -> str:
    return min(scores, key=lambda name: (not math.isfinite(scores[name].loss), scores[name].loss, -_ORDER.index(name)))


def _refitted(model: Model, state: State, examples: Mapping[str, Array], epochs: int) -> dict[str, Array]:
    """A state after epochs of the bundle's training steps."""
    model.load_state_dict(state)
    for _ in range(epochs):
        for batch in _batches(model, examples, "train_step"):
            model.run(batch, "train_step")
    return model.state_dict()


_ORDER = ("initial", "shifted", "refitted", "carried")
"""Of candidates with the same loss the last one counts."""


def scored(model: Model, state: State, examples: Mapping[str, Array]) -> Score:
    """The loss and the accuracy of a model with a state, on examples."""
    model.load_state_dict(state)
    loss, correct, count, classes = 0.0, 0, 0, False
    for batch in _batches(model, examples, "evaluate"):
        found = model.run(batch, "evaluate")
        rows = int(found["examples"])
        loss, count = loss + float(found["loss"]) * rows, count + rows
        if "correct" in found:
            classes, correct = True, correct + int(found["correct"])
    if not count:
        return Score(math.inf)
    return Score(loss / count, correct / count if classes else None)


def _batches(model: Model, examples: Mapping[str, Array], signature: str) -> Iterator[dict[str, Array]]:
    """Rows of examples in batches that the signature takes; a last part that fills no batch of a fixed size is left
    out."""
    inputs = model.inputs(signature)
    if missing := [value.name for value in inputs if value.name not in examples]:
        names = ", ".join(value.name for value in inputs)
        raise MsedgeError(f"kept examples: expected arrays {names}, got none of {missing[0]!r}")
    fixed = {value.shape[0] for value in inputs if value.shape and isinstance(value.shape[0], int)}
    rows, count = (min(fixed) if fixed else _BATCH), len(examples[inputs[0].name])
    for at in range(0, count if not fixed else count - rows + 1, rows):
        yield {value.name: examples[value.name][at : at + rows] for value in inputs}


def _halves(examples: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Every other example, and the rest; ({}, all) if there are too few."""
    if len(next(iter(examples.values()))) < 8:
        return {}, dict(examples)
    return {k: v[::2] for k, v in examples.items()}, {k: v[1::2] for k, v in examples.items()}


def _examples(path: str) -> dict[str, Array]:
    """The newest kept examples in an .npz file: arrays of one length, named as the inputs of `evaluate`. Raises
    MsedgeError."""
    from federated.data import arrays_of

    arrays = arrays_of(Path(path))
    if len({array.shape[:1] for array in arrays.values()}) != 1 or not all(array.ndim for array in arrays.values()):
        raise MsedgeError(f"{path!r}: expected arrays of one length, got {', '.join(sorted(arrays)) or 'none'}")
    return {name: array[-_MOST:] for name, array in arrays.items()}


def _finite(state: State) -> None:
    from lite_runtime.learning.state import check_finite

    check_finite(state)


def _parameter(name: str) -> str:
    """The parameter that a state belongs to: of `optimizer/mean/head.w`, `head.w`."""
    return name.split("/", 2)[-1] if name.startswith(_SLOT) else name


def _equal(one: Array, other: Array) -> bool:
    return _alike(one, other) and one.tobytes() == other.tobytes()


def _alike(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape


def plain(report: Report) -> dict[str, Any]:
    """A report in JSON's types."""

    def of(value: Any) -> Any:
        if isinstance(value, Score):
            return {"loss": value.loss if math.isfinite(value.loss) else None, "accuracy": value.accuracy}
        return list(value) if isinstance(value, tuple) else value

    return {name: of(value) for name, value in report._asdict().items()}
