"""Every use of JAX that changed between minor releases; written for 0.10. Other modules use only its public API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.core
import jax.extend.core
import numpy as np

__all__ = [
    "auto_mesh",
    "bound",
    "canonical_dtype",
    "described_devices",
    "everywhere",
    "is_literal",
    "is_traced",
    "knows_platform",
    "most_of_all",
    "on_axes",
    "rows_of_all",
    "rows_over",
    "said_by_first",
    "shaped",
    "shared_out",
    "split_over",
    "sums_of_all",
    "without_dead",
    "written_at",
    "written_like",
]


def is_traced(value: Any) -> bool:
    """Whether `value` is a placeholder inside a transformation, so that its elements cannot be read."""
    return isinstance(value, jax.core.Tracer)


def canonical_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype JAX computes in for `dtype`: 64-bit types become 32-bit ones unless `jax_enable_x64` is set."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


_SPEC: Any = jax.sharding.PartitionSpec

_Split = tuple[tuple[int, ...], ...]


def everywhere(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    """The sharding of a value that every device of `mesh` holds completely (replicated)."""
    return jax.sharding.NamedSharding(mesh, _SPEC())


def rows_over(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    """The sharding of a value whose leading dimension is split over all devices of `mesh`."""
    return jax.sharding.NamedSharding(mesh, _SPEC(mesh.axis_names))


def shaped(shape: Sequence[Any], dtype: Any, sharding: Any = None) -> Any:
    """A `jax.ShapeDtypeStruct`, which has no type annotations."""
    struct: Any = jax.ShapeDtypeStruct
    return struct(tuple(shape), dtype, sharding=sharding)


def shared_out(function: Callable[[Any, Any], tuple[Any, Any]], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """`function(common, shared) -> (common, shared)` on every device of `mesh`; a trace of it sees only its own part of
    the leading axes of `shared`."""
    specs = _SPEC(), _SPEC(mesh.axis_names)
    run: Callable[..., Any] = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    return run


def sums_of_all(values: Any, mesh: jax.sharding.Mesh) -> Any:
    """Inside `shared_out`: the sum over the devices."""
    psum: Any = jax.lax.psum
    return psum(values, mesh.axis_names)


def on_axes(
    function: Callable[..., Any], mesh: jax.sharding.Mesh, axes: Sequence[str], given: Any, made: Any
) -> Callable[..., Any]:
    """`function` as every device computes it that has one place on `axes` of the mesh; over the other axes the compiler
    splits it. `given`, `made`: prefixes of the trees of arguments and results, of `jax.sharding.PartitionSpec`s."""
    run: Callable[..., Any] = jax.shard_map(
        function, mesh=mesh, in_specs=given, out_specs=made, axis_names={*axes}, check_vma=False
    )
    return run


def without_dead(jaxpr: Any) -> Any:
    """The jaxpr without equations whose results are unused, also inside scans; its arguments stay as they are."""
    from jax._src.interpreters import partial_eval

    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def written_at(source: Any) -> str:
    """An equation's place in the source (`source_info`): "model.py:12 transpose(jvp(block))", if known."""
    from jax._src import source_info_util

    frame = source_info_util.user_frame(source.traceback)
    place = f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.start_line}" if frame else ""
    return f"{place} {source.name_stack}".strip()


def knows_platform(name: str) -> bool:
    """Whether a compiler for "cuda" (or another platform) is loaded, so that devices can be described for it."""
    from jax._src import xla_bridge

    return name in xla_bridge._topology_factories


def described_devices(platform: str, shape: str, target: str) -> list[Any]:
    """Devices to compile for, present or not: `shape` as "1x2x8" (2 hosts of 8), `target` as the text of XLA's
    `GpuTargetConfigProto`."""
    from jax.experimental import topologies

    described: Any = topologies.get_topology_desc
    return list(described(platform=platform, topology=shape, target_config=target).devices)


def written_like(source: Any) -> AbstractContextManager[None]:
    """Equations traced inside get this `source_info` as their place in the source."""
    from jax._src import source_info_util

    return source_info_util.user_context(source.traceback)


def auto_mesh(devices: Any, names: tuple[str, ...]) -> jax.sharding.Mesh:
    """A mesh over whose axes the compiler decides the sharding itself, as far as constraints allow."""
    kinds: Any = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.sharding.Mesh(devices, names, axis_types=kinds)


def split_over(mesh: jax.sharding.Mesh, split: _Split) -> jax.sharding.NamedSharding:
    """The sharding of a value whose dimensions are split over the mesh axes with these indices."""
    names = mesh.axis_names
    return jax.sharding.NamedSharding(mesh, _SPEC(*(tuple(names[axis] for axis in axes) or None for axes in split)))


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a constant written into it."""
    return isinstance(atom, jax.extend.core.Literal)


def bound(equation: Any, operands: list[Any]) -> list[Any]:
    """The results of an equation for other operands; they keep its name and place in the source."""
    from jax._src import source_info_util

    primitive, source = equation.primitive, equation.source_info
    names = source_info_util.current_name_stack() + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=names), equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


def most_of_all(numbers: Sequence[int]) -> list[int]:
    """The maximum of each number over all processes, which must all call this; waits for steps submitted before."""
    from jax.experimental import multihost_utils

    gathered: Any = multihost_utils.process_allgather(np.array(numbers, np.int32))
    return [int(number) for number in np.asarray(gathered).reshape(-1, len(numbers)).max(0)]


def rows_of_all(tree: Any) -> Any:
    """A tree of arrays whose leading dimension may be split over all processes, whole in each as NumPy arrays; all
    processes must call this."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)


def said_by_first(number: int) -> int:
    """The number given by the first process; all processes must call this."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    said: Any = multihost_utils.broadcast_one_to_all(np.int32(number))
    return int(said)
