"""A subject from files: the deployed model, its float twin, examples."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import converter
from cloud.audit.corruptions import corruptions_of
from cloud.audit.files.data import guessed_kind, guessed_span, read_data
from cloud.audit.subject import Kind, Subject
from cloud.audit.victim import BlackBox, Victim, WhiteBox, from_bundle, from_onnx, open_bundle
from cloud.errors import AuditError
from federated import config
from federated.run import start_of
from federated.runs import of_file
from lite_runtime import bundle

__all__ = ["Settings", "open_subject"]

_IMAGE_EPSILON = 8 / 255
"""Of an image's range, as the literature on adversarial examples has it."""
_OTHER_EPSILON = 0.1
"""Of the standard deviation of other inputs."""


@dataclass(frozen=True)
class Settings:
    """How files are read. twin: a float model, .onnx or .mslite. members: examples that the model was trained on.
    federation: the file of the federated run that trains the model. kind, span, epsilon: None to guess them from the
    data. x, y: names of arrays. classes: a name for each class."""

    twin: Path | None = None
    members: Path | None = None
    federation: Path | None = None
    kind: Kind | None = None
    span: tuple[float, float] | None = None
    epsilon: float | None = None
    seed: int = 0
    x: str = "x"
    y: str = "y"
    classes: tuple[str, ...] = ()


def open_subject(
    model: str | os.PathLike[str], data: str | os.PathLike[str], settings: Settings | None = None
) -> tuple[Subject, list[str]]:
    """What is audited, and notes: guesses, and arrays that are not used. Raises AuditError for everything that does not
    fit, BundleError for a file that is no bundle."""
    given = settings or Settings()
    black = open_bundle(model)
    examples, notes = read_data(data, black, given.x, given.y)
    kind = given.kind or guessed_kind(black.shape)
    corruptions_of(black.shape, kind)  # refuses a shape that is not of that kind
    low, high = span = given.span or guessed_span(examples.x, kind)
    least, most = float(examples.x.min()), float(examples.x.max())
    if not -np.inf < low < high < np.inf or least < np.float32(low) or most > np.float32(high):
        raise AuditError(
            f"--range: expected two finite numbers, the lower first, that {examples.name} is within, got "
            f"{low:g},{high:g} and values {least:.6g} to {most:.6g}"
        )
    if given.kind is None:
        notes.append(f"Inputs of shape {list(black.shape)} are taken for kind {kind}; --kind says otherwise.")
    if given.span is None:
        notes.append(f"Inputs are taken to be from {low:.6g} to {high:.6g}; --range says otherwise.")
    epsilon = _guessed_epsilon(examples.x, kind, span) if given.epsilon is None else given.epsilon
    if not 0 < epsilon <= high - low:
        raise AuditError(f"--epsilon: expected more than 0, at most the range {high - low:g}, got {epsilon:g}")
    if given.classes and len(set(given.classes)) != black.classes:
        raise AuditError(
            f"--classes: expected {black.classes} different names, as the model has classes, got "
            f"{', '.join(given.classes)}"
        )
    subject = Subject(
        Path(model).name, black, examples, kind, span, epsilon, given.seed, calibration=black.calibration,
        confidence=black.confidence(examples.x), class_names=given.classes,
    )  # fmt: skip
    if given.members is not None:
        subject = replace(subject, members=read_data(given.members, black, given.x, given.y)[0])
    return _with_gradients(_with_training(subject, Path(model), given.federation), Path(model), given.twin), notes


def _guessed_epsilon(x: object, kind: Kind, span: tuple[float, float]) -> float:
    if kind == "image":
        return _IMAGE_EPSILON * (span[1] - span[0])
    deviation = float(np.asarray(x, np.float64).std())
    return _OTHER_EPSILON * (deviation or span[1] - span[0])


def _with_gradients(subject: Subject, model: Path, twin: Path | None) -> Subject:
    """The subject with whatever gives gradients, or the reason why nothing does."""
    own: WhiteBox | None = None
    reasons = []
    try:
        own = from_bundle(model)
    except AuditError as error:
        reasons.append(_reason(error))
    if twin is None:
        return replace(subject, own=own, no_gradient="" if own else f"{reasons[0]}; a float twin has some (--float)")
    other, reason = _opened_twin(twin)
    reasons += [reason] if reason else []
    _check_alike(f"--float {twin}", subject, other, "give the model that it was converted from")
    none = "" if own is not None or isinstance(other, WhiteBox) else "; ".join(reasons)
    return replace(subject, own=own, twin=other, no_gradient=none)


def _check_alike(where: str, subject: Subject, other: Victim, fix: str) -> None:
    for what, ours, theirs in (
        ("inputs of shape", subject.model.shape, other.shape),
        ("classes:", subject.model.classes, other.classes),
    ):
        if ours != theirs:
            raise AuditError(f"{where}: expected {what} {ours}, as {subject.name} has, got {theirs}; {fix}")


def _with_training(subject: Subject, model: Path, federation: Path | None) -> Subject:
    """The subject with the bundle that devices train, and their run if its file is given."""
    if federation is None:
        return replace(subject, training=model if "gradients" in bundle.read(model).signatures else None)
    if (other := of_file(federation)) is not None:
        raise AuditError(f"--federation {federation}: expected a run that trains a bundle, got one of [{other.kind}]")
    run = config.read(federation)
    training = run.path(run.model.bundle)
    start_of(training)  # refuses a bundle that cannot be trained
    where = f"--federation {federation}, {training.name}"
    _check_alike(where, subject, open_bundle(training), "name the run that trains this model")
    return replace(subject, training=training, run=run)


def _opened_twin(twin: Path) -> tuple[Victim, str]:
    """A float model, white box if it can be, else the reason why not."""
    if twin.suffix == ".mslite":
        try:
            return from_bundle(twin), ""
        except AuditError as error:
            return open_bundle(twin), _reason(error)
    if twin.suffix != ".onnx":
        raise AuditError(
            f"--float {twin}: expected an .onnx or .mslite file; msedge convert makes an .mslite of others"
        )
    try:
        return from_onnx(twin), ""
    except AuditError as error:
        return _as_black(twin), _reason(error)


def _as_black(twin: Path) -> BlackBox:
    return open_bundle(converter.convert(twin).bundle, twin.name)


def _reason(error: AuditError) -> str:
    """Without the advice at its end, which is the audit's to follow."""
    return str(error).partition(";")[0]
