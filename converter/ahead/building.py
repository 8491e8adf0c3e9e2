"""A bundle to a folder that runs on a target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from gzip import compress
from hashlib import sha256
from importlib.metadata import version
from types import MappingProxyType

import lite_runtime
from converter.ahead.flat import Sample, flat_file
from converter.ahead.package import files_of
from converter.ahead.planning import plan_ahead, signature_of, with_batch
from converter.ahead.wasm_link import link
from converter.golden import sample_inputs
from lite_runtime import bundle as bundles
from lite_runtime._files import TEMPORARY, write_atomically
from lite_runtime.bundle import Bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Value
from lite_runtime.native import build as native
from lite_runtime.planning.program import Plan
from lite_runtime.targets import AHEAD, named

__all__ = ["Built", "build"]

MODULE, MODEL = "msedge.mjs", "model.msflat"
"""The first file that is written, which shows that a folder was made here, and the last one."""
_WALKER = "walker"
_TOLERANCES = (1e-4, 5e-2)
"""By what share of an output's largest magnitude floats may differ from this machine's: without integers inside, the
rounding of multiply-adds and the order of sums; with them, such a difference can also move a value to the next of 256
steps. Integers must be equal."""


class Built(NamedTuple):
    """What was written: sizes in bytes by file name, and facts of the plan."""

    folder: str
    files: Mapping[str, int]
    kernels: tuple[str, ...]
    kernels_gzip: int
    steps: int
    arena_bytes: int
    inputs: Mapping[str, tuple[int, ...]]
    """Shapes by name."""


def build(
    source: bundles.Source,
    folder: str | os.PathLike[str],
    target: str = "wasm32",
    *,
    signature: str = "predict",
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Built:
    """Write a folder with everything that runs one signature of a bundle on a target.

    shapes: of inputs with open sizes; without any, a first axis that alone is open in all of them is 1. Kernels that
    are not compiled yet are compiled now (needs numba). Files are written when all of them are made, the model last.
    Raises MsedgeError for an unknown target and for a folder with other files, BundleError for a source that is no
    bundle, InputError and UnsupportedOpError as `plan_ahead` does, MissingExtraError without a compiler.
    """
    wanted = named(target, AHEAD)
    _check_folder(folder)
    held = bundles.read(source)
    graph = signature_of(held, signature)
    made = plan_ahead(graph, with_batch(graph, shapes), wanted)
    objects = native.code_for(sorted({_WALKER, *(name.partition(".")[0] for name in made.kernels)}), wanted)
    kernels = link(objects, made.kernels)
    facts = {
        "made_by": f"msedge {version('msedge')}",
        "bundle": held.digest,
        "signature": signature,
        "target": wanted.name,
        "kernels_sha256": sha256(kernels).hexdigest(),
    }
    flat = flat_file(graph, made, _sample(held, graph, made, signature), facts)
    package = files_of(_ports(graph.inputs, made), _ports(graph.outputs, made))
    files = {MODULE: package[MODULE], **package, "kernels.wasm": kernels, MODEL: flat}
    _write(folder, files)
    sizes = {name: len(content) for name, content in files.items()}
    steps = len(made.records)
    ports = _ports(graph.inputs, made)
    inputs = {port.name: tuple(d for d in port.shape or () if isinstance(d, int)) for port in ports}
    return Built(os.fspath(folder), sizes, made.kernels, len(compress(kernels, 9)), steps, made.arena_bytes, inputs)


def _check_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder with files of others, which could have the same names."""
    try:
        there = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise MsedgeError(f"cannot write to {os.fspath(folder)!r}: {problem.strerror}; choose another folder") from None
    others = sorted(name for name in there if not TEMPORARY.fullmatch(name))  # a killed build may leave one of these
    if others and MODULE not in others:
        raise MsedgeError(
            f"{os.fspath(folder)!r} has files that msedge build did not make ({', '.join(others[:3])}), and "
            "some might be replaced; choose a new folder"
        )


def _write(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as problem:
        raise MsedgeError(f"cannot make the folder {os.fspath(folder)!r}: {problem.strerror}; choose another") from None
    for name, content in files.items():
        write_atomically(os.path.join(folder, name), content)


def _ports(values: tuple[Value, ...], made: Plan) -> list[Value]:
    """Ports with the shapes of the plan."""
    found = []
    for value in values:
        shape = made.known[value.name].shape if value.name in made.known else made.where[value.name][2].shape
        found.append(value._replace(shape=shape))
    return found


def _sample(held: Bundle, graph: Graph, made: Plan, signature: str) -> Sample:
    """The bundle's golden inputs if they have the plan's shapes, otherwise others; and what this machine gives for
    them."""
    shapes = {value.name: value.shape for value in _ports(graph.inputs, made)}
    inputs: Mapping[str, Array] = held.golden[signature][0] if signature in held.golden else {}
    if {name: array.shape for name, array in inputs.items()} != shapes:
        inputs = sample_inputs(graph.replace(inputs=tuple(_ports(graph.inputs, made))))
    outputs = lite_runtime.load(held.data).run(inputs, signature)
    whole = not any(kernel.startswith("q") for kernel in made.kernels)
    return Sample(inputs, outputs, _TOLERANCES[0 if whole else 1])
