"""The signatures of a trainable bundle, each a separate model made from one prepared model.

| signature | inputs | outputs | writes |
|---|---|---|---|
| predict | the model's | the model's | |
| evaluate | those the loss needs, labels | loss, examples, correct (classifiers) | |
| gradients | the same | loss, grad/<parameter>, slope/<input> | running statistics in training form |
| curvature | the same, along/<parameter> | curve/<parameter>: the Hessian of the loss times `along` | |
| train_step | the same | loss | parameters, slots of the optimiser, running statistics in training form |

State is an input of the graph under its own name; its new value is an output named `next/<state>`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build
from converter.ir.build import Edit
from converter.ir.grad import differentiate
from converter.ir.grad.tape import Tape
from converter.passes import cleanup
from converter.training import fold_norms, losses, parameters
from converter.training.adapters import insert_adapters
from converter.training.ends import add_input, add_output
from converter.training.losses import LABELS, Attached
from converter.training.optimizers import update
from converter.training.options import Optimizer, Signature, Training
from lite_runtime.graph import Array, StateUse

__all__ = ["Prepared", "Signed", "describe", "of_adapters", "prepare", "sign", "step_settings"]

_A, _B = ".lora_a", ".lora_b"
"""How the parameters of low-rank adapters end."""


@dataclass
class Prepared:
    """A model in inference form whose parameters are inputs of its graph."""

    model: ir.Model
    training: Training
    parameters: tuple[str, ...]
    """The trained parameters, in the order of first use."""
    statistics: tuple[str, ...]
    """Running means and variances that steps update."""
    state: dict[str, Array]
    """Initial values of both, and of the `A` of adapters whose `B` alone is trained."""


@dataclass
class Signed:
    """One model per signature, the state that each reads and writes, and its initial values."""

    models: dict[str, ir.Model] = field(default_factory=dict)
    uses: dict[str, StateUse] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)


def prepare(model: ir.Model, training: Training) -> Prepared:
    """Choose the parameters, insert adapters, and make all of them inputs, in place; `model` is IR as loaded.

    Raises TrainingError for globs without a match.
    """
    build.adopt(model)
    chosen = parameters.choose(model, training.trainable, training.output)
    if training.adapters is not None:
        chosen |= insert_adapters(model, training.adapters, chosen, parameters.output(model, training.output))
    statistics: dict[str, ir.Value] = {}
    if training.batch_norm == "train":
        for node in parameters.batch_norms(model, chosen):
            statistics |= _statistics(node)
    thawed = [*chosen.values(), *statistics.values(), *_beside(model, chosen)]
    state = parameters.constants(thawed)
    parameters.thaw(model, thawed)
    return Prepared(model, training, tuple(chosen), tuple(statistics), state)


def _beside(model: ir.Model, chosen: Collection[str]) -> list[ir.Value]:
    """The `A` that are not trained of adapters whose `B` are."""
    names = (f"{name.removesuffix(_B)}{_A}" for name in chosen if name.endswith(_B))
    return [model.graph.initializers[name] for name in names if name in model.graph.initializers and name not in chosen]


def _statistics(node: ir.Node) -> dict[str, ir.Value]:
    found = [v for v in node.inputs[3:5] if v is not None and v.is_initializer() and len(v.uses()) == 1]
    if len(found) != 2:
        raise TrainingError(
            f"batch_norm: BatchNormalization {node.name!r} shares or computes its running statistics, so steps cannot "
            "update them; use batch_norm='frozen'"
        )
    return {v.name or "": v for v in found}


def of_adapters(training: Training) -> Training:
    """What trains a graph whose adapters are initialisers already (`frontends.decoders.learning`): the signatures but
    `predict`, which another graph has."""
    signatures = tuple(signature for signature in training.signatures if signature != "predict")
    parts = (_B,) if training.adapters is not None and training.adapters.only_b else (_A, _B)
    return replace(training, trainable=tuple(f"*{part}" for part in parts), adapters=None, signatures=signatures)


def sign(prepared: Prepared) -> Signed:
    """The models of `prepared.training.signatures`. Raises TrainingError, also from `differentiate`."""
    made = Signed(state=dict(prepared.state))
    for signature in prepared.training.signatures:
        model = prepared.model.clone()
        build.adopt(model)
        writes = _MAKE[signature](model, prepared, made)
        cleanup.unused(model)
        _drop_unread(model, made.state if signature == "predict" else None)
        reads = {v.name: v.name for v in model.graph.inputs if v.name in made.state}
        made.models[signature] = model
        made.uses[signature] = StateUse(reads, writes)
    return made


def describe(signed: Signed, prepared: Prepared) -> dict[str, Any]:
    """Facts for the report: settings, parameters and bytes."""
    trained = {name: prepared.state[name] for name in prepared.parameters}
    return {
        "settings": asdict(prepared.training),
        "parameters": [{"name": name, "shape": list(array.shape)} for name, array in trained.items()],
        "count": sum(array.size for array in trained.values()),
        "bytes": sum(array.nbytes for array in trained.values()),
        "state_bytes": sum(array.nbytes for array in signed.state.values()),
        "signatures": list(signed.models),
    }


def step_settings(training: Training) -> dict[str, Any]:
    """The bundle's metadata about its `train_step`: settings of the optimiser that have an effect and are not the
    default, by name. Federated learning, which takes its own steps, refuses to ignore them."""
    if "train_step" not in training.signatures:
        return {}
    common = ("optimizer", "learning_rate", "weight_decay", "clip_norm", "clip_value")
    given = {name: getattr(training, name) for name in (*common, *_OF_OPTIMIZER[training.optimizer])}
    said = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value != getattr(Training, name)
    }
    return {"train_step": said} if said else {}


_OF_OPTIMIZER: Mapping[Optimizer, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum", "nesterov"),
    "adam": ("betas", "epsilon"),
}


def _drop_unread(model: ir.Model, among: Mapping[str, Array] | None) -> None:
    """Remove unused inputs, only those of these names if some are given; `labels` stays."""
    inputs = model.graph.inputs
    for value in [v for v in inputs if not v.uses() and not v.is_graph_output() and v.name != LABELS]:
        if among is None or value.name in among:
            inputs.remove(value)


def _predict(model: ir.Model, prepared: Prepared, made: Signed) -> dict[str, str]:
    fold_norms.run(model)
    return {}


def _evaluate(model: ir.Model, prepared: Prepared, made: Signed) -> dict[str, str]:
    fold_norms.run(model)
    attached, tape = _with_loss(model, prepared), Tape(model.graph)
    for name, value in attached._asdict().items():
        if value is not None:
            add_output(tape, value, name)
    return {}


def _gradients(model: ir.Model, prepared: Prepared, made: Signed) -> dict[str, str]:
    slopes = prepared.training.slopes
    moved, loss, gradients = _backward(model, prepared, slopes)
    tape = Tape(model.graph)
    add_output(tape, loss, "loss")
    for name, gradient in gradients.items():
        add_output(tape, gradient, f"slope/{name}" if name in slopes else f"grad/{name}")
    return _write(tape, moved)


def _curvature(model: ir.Model, prepared: Prepared, made: Signed) -> dict[str, str]:
    """The gradient of the inner product of the gradient with `along` (Pearlmutter, "Fast Exact Multiplication by the
    Hessian", 1994, in reverse mode twice)."""
    _, _, gradients = _backward(model, prepared)
    tape = Tape(model.graph)
    products = []
    for name, gradient in gradients.items():
        along = add_input(tape, f"along/{name}", prepared.state[name].shape)
        products.append((tape.term(gradient) * along).op("ReduceSum", keepdims=0))
    inputs = {v.name: v for v in model.graph.inputs}
    wrt = [inputs[name] for name in prepared.parameters]
    try:
        found = differentiate(model, reduce(add, products).value, wrt)
    except TrainingError as error:
        raise TrainingError(f"signature curvature: the gradient is differentiated once more, but {error}") from None
    tape = Tape(model.graph)
    for name in prepared.parameters:
        add_output(tape, found[name], f"curve/{name}")
    return {}


def _train_step(model: ir.Model, prepared: Prepared, made: Signed) -> dict[str, str]:
    moved, loss, gradients = _backward(model, prepared)
    trained = {v.name: v for v in model.graph.inputs if v.name in prepared.parameters}
    step = update(model, prepared.training, {name: trained[name] for name in prepared.parameters}, gradients)
    made.state |= step.initial
    tape = Tape(model.graph)
    add_output(tape, loss, "loss")
    return _write(tape, step.writes | moved)


_MAKE: Mapping[Signature, Callable[[ir.Model, Prepared, Signed], dict[str, str]]] = {
    "predict": _predict,
    "evaluate": _evaluate,
    "gradients": _gradients,
    "curvature": _curvature,
    "train_step": _train_step,
}


def _write(tape: Tape, values: Mapping[str, ir.Value]) -> dict[str, str]:
    for name, value in values.items():
        add_output(tape, value, f"next/{name}")
    return {f"next/{name}": name for name in values}


def _with_loss(model: ir.Model, prepared: Prepared) -> Attached:
    """Replace the model's outputs by the loss; their names become free."""
    output = parameters.output(model, prepared.training.output)
    model.graph.outputs.clear()
    for value in _made(model):
        if value.name in _RESERVED:
            value.name = build.fresh(model.graph, value.name)
    return losses.attach(model, output, prepared.training)


_RESERVED = frozenset((LABELS, "loss", "examples", "correct"))


def _made(model: ir.Model) -> Iterable[ir.Value]:
    return (value for node in model.graph for value in node.outputs)


def _backward(
    model: ir.Model, prepared: Prepared, slopes: Collection[str] = ()
) -> tuple[dict[str, ir.Value], ir.Value, dict[str, ir.Value]]:
    """The statistics updated by the batch, the loss, and its gradient by parameter, and by input for `slopes`."""
    moved = _in_training_form(model, prepared.statistics)
    fold_norms.run(model)
    loss = _with_loss(model, prepared).loss
    inputs = {v.name: v for v in model.graph.inputs}
    if strange := [name for name in slopes if name not in inputs or name in prepared.state or name == LABELS]:
        own = ", ".join(str(name) for name in inputs if name not in prepared.state and name != LABELS)
        raise TrainingError(f"slopes: expected some of the model's inputs {own}, got {strange[0]!r}")
    if whole := [name for name in slopes if inputs[name].dtype not in _FLOATS]:
        raise TrainingError(f"slopes: expected an input of floats, got {whole[0]!r}")
    wanted = (*prepared.parameters, *slopes)
    found = differentiate(model, loss, [inputs[name] for name in wanted])
    missing = [name for name in wanted if name not in found]
    if missing:
        raise TrainingError(f"the loss does not depend on {', '.join(map(repr, missing))}; remove them from trainable")
    return moved, loss, {name: found[name] for name in wanted}


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _in_training_form(model: ir.Model, statistics: Iterable[str]) -> dict[str, ir.Value]:
    """Let BatchNormalizations over these statistics normalise by their batch; the updated statistics, by name."""
    names, moved = set(statistics), {}
    for node in list(model.graph):
        if not build.is_op(node, "BatchNormalization") or node.inputs[3] is None or node.inputs[3].name not in names:
            continue
        edit = Edit(node)
        attrs = dict(node.attributes) | {"training_mode": ir.AttrInt64("training_mode", 1)}
        y, *running = edit.ops("BatchNormalization", list(node.inputs), attrs, outputs=3, like=node.outputs[0])
        for old, new in zip(node.inputs[3:5], running, strict=True):
            assert old is not None
            new.type, new.shape = old.type, old.shape
            moved[old.name or ""] = new
        edit.replace(y)
    return moved
