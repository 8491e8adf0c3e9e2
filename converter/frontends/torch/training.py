"""A module as a program in training form: dropout, batch normalisation and stochastic depth stay single operators.

`captured(module, …)` traces the module by torch.export and rewrites the program: a table of PyTorch's operators that
behave differently in training -> ours (`operators`). What has no such form is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from converter.errors import ConvertError
from converter.frontends.torch.operators import operators, torch_library

__all__ = ["captured", "in_training"]


@contextmanager
def in_training(module: Any) -> Iterator[None]:
    """The module in training mode: as it is if it trains, so that its layers in inference mode stay so."""
    before = {part: part.training for part in module.modules()}
    if not module.training:
        module.train()
    try:
        _check_norms(module)
        yield
    finally:
        for part, training in before.items():
            part.training = training


def _check_norms(module: Any) -> None:
    """Raise ConvertError for batch normalisation whose statistics have no ONNX form."""
    norm = torch_library().nn.modules.batchnorm._BatchNorm
    for name, part in module.named_modules():
        if not isinstance(part, norm) or not part.training:
            continue
        where = f"{type(part).__name__} {name!r}"
        if part.running_mean is None:
            raise ConvertError(
                f"{where} has no running statistics (track_running_stats=False), which ONNX's BatchNormalization "
                "needs: give it some, or use GroupNorm or InstanceNorm"
            )
        if part.momentum is None:
            raise ConvertError(
                f"{where} has momentum=None, a mean of all batches, which ONNX's BatchNormalization does not have: set "
                "a momentum, such as 0.1"
            )


def captured(module: Any, values: tuple[Any, ...], shapes: Any) -> Any:
    """The torch.export.ExportedProgram of a module that is `in_training`. Raises ConvertError."""
    torch = torch_library()
    with operators().recurrent():
        program = torch.export.export(module, values, dynamic_shapes=shapes, strict=False)
    graph, rows = program.graph, _rows(torch)
    for node in list(graph.nodes):
        row = rows.get(node.target) if node.op == "call_function" else None
        if row is not None:
            row(graph, node)
    _drop_counters(graph, program.graph_signature.inputs_to_buffers)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    _refuse(torch, program)
    return program


def _rows(torch: Any) -> Mapping[Any, Callable[[Any, Any], None]]:
    aten, own = torch.ops.aten, operators().own

    def dropout(graph: Any, node: Any) -> None:
        x, p, train = node.args
        if train and p:
            features = node.target in (aten.feature_dropout.default, aten.feature_dropout_.default)
            _replaced(node, own.feature_dropout.default if features else own.dropout.default, (x, float(p)))
        else:
            node.replace_all_uses_with(x)
            graph.erase_node(node)

    def batch_norm(graph: Any, node: Any) -> None:
        x, weight, bias, mean, variance, live, momentum, eps, *_ = node.args
        if mean is not None:
            arguments = (x, weight, bias, mean, variance, float(momentum), float(eps), bool(live))
            _replaced(node, own.batch_norm.default, arguments)

    def bernoulli(graph: Any, node: Any) -> None:
        """Stochastic depth: a mask divided by its mean is dropout of ones."""
        x, mean = node.args[0], node.args[1] if len(node.args) > 1 else None
        divisions = [user for user in node.users if user.target in (aten.div_.Tensor, aten.div.Tensor)]
        if isinstance(mean, float) and mean > 0 and len(divisions) == 1 and divisions[0].args == (node, mean):
            with graph.inserting_before(node):
                ones = graph.call_function(aten.ones_like.default, (x,))
            ones.meta["val"] = node.meta["val"]
            divisions[0].replace_all_uses_with(node)
            graph.erase_node(divisions[0])
            _replaced(node, own.dropout.default, (ones, 1 - mean))

    return {
        aten.dropout.default: dropout, aten.dropout_.default: dropout, aten.feature_dropout.default: dropout,
        aten.feature_dropout_.default: dropout, aten.batch_norm.default: batch_norm,
        aten.bernoulli_.float: bernoulli, aten.bernoulli.p: bernoulli,
    }  # fmt: skip


def _replaced(node: Any, target: Any, arguments: tuple[Any, ...]) -> None:
    node.target, node.args, node.kwargs = target, arguments, {}


def _drop_counters(graph: Any, buffers: Mapping[str, str]) -> None:
    """Batch normalisation's count of batches, which only momentum=None reads."""
    for node in list(graph.nodes):
        first = node.args[0] if node.op == "call_function" and node.args else None
        name = buffers.get(getattr(first, "name", ""), "")
        if name.rpartition(".")[2] == "num_batches_tracked" and not node.users:
            graph.erase_node(node)


_DRAWN_ELSEWHERE = ("scaled_dot_product_attention",)
"""Operators that draw random numbers in ways that PyTorch's exporter writes as Dropout."""


def _refuse(torch: Any, program: Any) -> None:
    """Raise ConvertError for random numbers and changed buffers, which the model would not have in training."""
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        name = schema.name.partition("::")[2]
        if torch.Tag.nondeterministic_seeded in node.target.tags and name not in _DRAWN_ELSEWHERE:
            raise ConvertError(
                f"{_place(node)} draws random numbers by {name}, which has no form for training: expected dropout, or "
                "a mask of bernoulli divided by its mean; rewrite it so, or export with training=False"
            )
        for argument, value in zip(schema.arguments, node.args, strict=False):
            changed = argument.alias_info is not None and argument.alias_info.is_write
            held = buffers.get(_origin(value)) if changed else None
            if held is not None:
                raise ConvertError(
                    f"{_place(node)} changes the buffer {held!r} by {name} in training: only batch normalisation's "
                    "statistics can change; freeze it, or export with training=False"
                )


def _origin(value: Any) -> str:
    """The name of the value of which this one is a view."""
    while getattr(value, "op", "") == "call_function" and getattr(value.target, "is_view", False):
        value = value.args[0]
    return str(getattr(value, "name", ""))


def _place(node: Any) -> str:
    """The innermost module that a node came from."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    return f"{kind.rpartition('.')[2] if isinstance(kind, str) else kind.__name__} {path!r}" if path else "the module"
