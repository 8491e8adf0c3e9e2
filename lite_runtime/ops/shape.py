"""Operators that compute shapes, change only the shape, or create tensors from shapes."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import dtype_name, itemsize, numpy_dtype
from lite_runtime.ops._checks import INDEX_TYPES, axes_of, axis_of, element_type, one_of, scalar_int, sizes_of
from lite_runtime.ops._copy import Dim, element_size, emit_copy, fill_operand, view_or_copy
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer

__all__: list[str] = []


@infer("Shape")
def _shape(n: Inference) -> list[Spec]:
    rank = len(n.spec(0).shape)
    return [Spec("int64", (len(range(rank)[n.attr("start", 0) : n.attr("end")]),))]


@infer("Size")
def _size(n: Inference) -> list[Spec]:
    n.spec(0)
    return [Spec("int64", ())]


@infer("Identity")
def _identity(n: Inference) -> list[Spec]:
    return [n.spec(0)]


@infer("Reshape")
def _reshape(n: Inference) -> list[Spec]:
    data = n.spec(0)
    one_of(n, 1, ("int64",))
    wanted = list(n.ints(1))
    for i, size in enumerate(wanted):
        if size == 0 and not n.attr("allowzero", 0):
            if i >= len(data.shape):
                raise n.error(f"the 0 at {i} of {wanted} refers to an axis that {data.shape} does not have")
            wanted[i] = data.shape[i]
    if any(size < -1 for size in wanted) or wanted.count(-1) > 1:
        raise n.error(f"expected sizes of 0 or more and at most one -1, got {wanted}")
    known = prod(size for size in wanted if size != -1)
    if -1 in wanted and known > 0 and data.size % known == 0:
        wanted[wanted.index(-1)] = data.size // known
    if -1 in wanted or prod(wanted) != data.size:
        raise n.error(f"expected a shape of {data.size} elements for {list(data.shape)}, got {wanted}")
    return [Spec(data.dtype, tuple(wanted))]


@infer("Flatten")
def _flatten(n: Inference) -> list[Spec]:
    data, axis = n.spec(0), n.attr("axis", 1)
    rank = len(data.shape)
    if not -rank <= axis <= rank:
        raise n.error(f"expected axis in [{-rank}, {rank}], got {axis}")
    axis = axis + rank if axis < 0 else axis
    return [Spec(data.dtype, (prod(data.shape[:axis]), prod(data.shape[axis:])))]


@infer("Squeeze")
def _squeeze(n: Inference) -> list[Spec]:
    data = n.spec(0)
    if n.has(1):
        drop = axes_of(n, n.ints(1), len(data.shape))
    else:
        drop = tuple(i for i, size in enumerate(data.shape) if size == 1)
    if any(data.shape[i] != 1 for i in drop):
        raise n.error(f"expected axes of size 1 at {list(drop)}, got shape {data.shape}")
    return [Spec(data.dtype, tuple(size for i, size in enumerate(data.shape) if i not in drop))]


@infer("Unsqueeze")
def _unsqueeze(n: Inference) -> list[Spec]:
    data, axes = n.spec(0), n.ints(1)
    new = axes_of(n, axes, len(data.shape) + len(axes))
    rest = iter(data.shape)
    return [Spec(data.dtype, tuple(1 if i in new else next(rest) for i in range(len(data.shape) + len(axes))))]


@infer("Dropout")
def _dropout(n: Inference) -> list[Spec]:
    for i in (1, 2):
        if n.has(i) and n.spec(i).size != 1:
            raise n.error(f"expected input {i} to hold one element, got shape {n.spec(i).shape}")
    return [n.spec(0), Spec("bool", n.spec(0).shape)]


@bind("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _bind_view(b: Binder) -> None:
    source = b.inputs[0]
    assert source is not None
    view_or_copy(b, 0, source)


@bind("Dropout")
def _bind_dropout(b: Binder) -> None:
    training = b.inputs[2] if len(b.inputs) > 2 else None
    if training is not None and (training.value is None or training.value.item()):
        raise NoKernel("dropout while training")
    if b.outputs[0] is not None:
        _bind_view(b)
    if len(b.outputs) > 1 and b.outputs[1] is not None:
        emit_copy(b, fill_operand(b, True, "bool"), b.outputs[1], [Dim(b.outputs[1].size, 0, 1)])


@infer("Constant")
def _constant(n: Inference) -> list[Spec]:
    texts = {"value_string", "value_strings"}
    numbers = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    given = [name for name in ("value", *texts, *numbers) if n.attr(name) is not None]
    if len(given) != 1:
        raise n.error(f"expected one attribute that holds the value, got {', '.join(given) or 'none'}")
    value = n.attr(given[0])
    if given[0] == "value":
        value = np.asarray(value)
        return [Spec(dtype_name(value.dtype), value.shape)]
    shape = (len(value),) if given[0].endswith("s") else ()
    return [Spec(numbers.get(given[0], "string"), shape)]


@infer("ConstantOfShape")
def _constant_of_shape(n: Inference) -> list[Spec]:
    value = n.attr("value")
    if value is not None and np.size(value) != 1:
        raise n.error(f"expected value to hold one element, got shape {np.shape(value)}")
    return [Spec("float32" if value is None else dtype_name(np.asarray(value).dtype), sizes_of(n, 0))]


@bind("ConstantOfShape")
def _bind_constant_of_shape(b: Binder) -> None:
    target = b.outputs[0]
    assert target is not None
    value = fill_operand(b, np.ravel(b.attr("value", 0))[0], target.dtype)
    emit_copy(b, value, target, [Dim(target.size, 0, 1)])


@infer("Range")
def _range(n: Inference) -> list[Spec]:
    dtype = n.spec(0).dtype
    if {n.spec(1).dtype, n.spec(2).dtype} != {dtype}:
        raise n.error(f"expected operands of one type, got {dtype}, {n.spec(1).dtype}, {n.spec(2).dtype}")
    for i in range(3):
        if n.spec(i).size != 1:
            raise n.error(f"expected input {i} to hold one element, got shape {n.spec(i).shape}")
    whole = numpy_dtype(dtype).kind in "iu"
    start, limit, delta = ((int if whole else float)(np.ravel(n.value(i))[0]) for i in range(3))
    if delta == 0:
        raise n.error("expected a delta other than 0")
    if whole:
        return [Spec(dtype, (len(range(int(start), int(limit), int(delta))),))]
    count = (limit - start) / delta
    if not abs(count) < 2**48:
        raise n.error(f"expected a finite range, got {start} to {limit} by {delta}")
    return [Spec(dtype, (max(0, ceil(count)),))]


@infer("EyeLike")
def _eye_like(n: Inference) -> list[Spec]:
    data = n.spec(0)
    if len(data.shape) != 2:
        raise n.error(f"expected a matrix, got shape {data.shape}")
    return [Spec(element_type(n, n.attr("dtype", data.dtype)), data.shape)]


@infer("NonZero")
def _non_zero(n: Inference) -> list[Spec]:
    rank = len(n.spec(0).shape)
    return [Spec("int64", (rank, int(np.count_nonzero(n.value(0)))))]


@infer("OneHot")
def _one_hot(n: Inference) -> list[Spec]:
    indices, values = n.spec(0), n.spec(2)
    if values.shape != (2,):
        raise n.error(f"expected values [off, on], got shape {values.shape}")
    depth = scalar_int(n, 1)
    if depth < 0:
        raise n.error(f"expected a depth of 0 or more, got {depth}")
    axis = axis_of(n, n.attr("axis", -1), len(indices.shape) + 1)
    return [Spec(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))]


@bind("OneHot")
def _bind_one_hot(b: Binder) -> None:
    indices, _, values = b.inputs
    target = b.outputs[0]
    assert indices is not None and values is not None and target is not None
    if indices.dtype not in INDEX_TYPES:
        raise NoKernel(f"one-hot vectors by {indices.dtype}")
    axis = b.attr("axis", -1) % len(target.shape)
    outer, depth, inner = prod(target.shape[:axis]), target.shape[axis], prod(target.shape[axis + 1 :])
    b.emit(
        steps.OneHot(
            indices=indices,
            values=values,
            target=target,
            size=element_size(target.dtype),
            width=itemsize(indices.dtype),
            outer=outer,
            depth=depth,
            inner=inner,
        )
    )
