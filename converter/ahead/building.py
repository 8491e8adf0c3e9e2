"""A bundle to a folder that runs on a target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from gzip import compress
from hashlib import sha256
from importlib.metadata import version
from types import MappingProxyType

import lite_runtime
from converter.ahead import library, package
from converter.ahead.assembling import Part, Sample, assembled, kernels_of
from converter.ahead.modules import LIST, PLAIN, modules_of
from converter.ahead.planning import Sized, chosen, plan_ahead, shapes_for
from converter.ahead.ports import Port, Ports
from converter.golden import sample_inputs
from lite_runtime import bundle as bundles
from lite_runtime._files import TEMPORARY, write_atomically
from lite_runtime.bundle import Bundle
from lite_runtime.errors import MsedgeError, UnsupportedOpError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, StateUse, Value, dtype_name
from lite_runtime.native.objects import object_for
from lite_runtime.planning.program import Plan
from lite_runtime.running.threads import worth
from lite_runtime.targets import AHEAD, TARGETS, Target, named

__all__ = ["Built", "build"]

MODEL = "model.msflat"
"""The last file that is written."""
_MOST_THREADS = 4
"""More gain little in browsers, whose processors are often of two kinds: the slowest thread decides."""
_TOLERANCES = (1e-4, 5e-2)
"""By what share of an output's largest magnitude floats may differ from this machine's: without integers inside, the
rounding of multiply-adds and the order of sums; with them, such a difference can also move a value to the next of 256
steps. Integers must be equal."""


class _Form(NamedTuple):
    """What is built for a kind of targets. marker: the first file that is written, which shows that a folder was made
    here. kernels: makes files with these kernels, of which `kernels_file` is the one that is needed everywhere, and the
    digest that the model names; it is told how many threads gain. files: the others."""

    marker: str
    kernels_file: str
    kernels: Callable[[Sequence[str], Target, int], tuple[dict[str, bytes], bytes]]
    files: Callable[[Sequence[Ports], Sequence[Port], Target], dict[str, bytes]]


def _modules(kernels: Sequence[str], target: Target, threads: int) -> tuple[dict[str, bytes], bytes]:
    made = modules_of(kernels, target, threads)
    return made, sha256(made[LIST]).digest()


def _object(kernels: Sequence[str], target: Target, _: int) -> tuple[dict[str, bytes], bytes]:
    made, digest = object_for(kernels, target)
    return {_LIBRARY.kernels_file: made}, digest


_WEB = _Form("msedge.mjs", PLAIN, _modules, lambda signatures, states, _: package.files_of(signatures, states))
_LIBRARY = _Form("msedge.h", "kernels.o", _object, library.files_of)


class Built(NamedTuple):
    """What was written: sizes in bytes by file name, and facts of the plans."""

    folder: str
    files: Mapping[str, int]
    kernels: tuple[str, ...]
    kernels_gzip: int
    steps: int
    """Of all signatures."""
    arena_bytes: int
    state_bytes: int
    signatures: Mapping[str, Mapping[str, tuple[int, ...]]]
    """By name, shapes of its inputs by name, without those that read state."""


def build(
    source: bundles.Source,
    folder: str | os.PathLike[str],
    target: str = "wasm32",
    *,
    signatures: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> Built:
    """Write a folder with everything that runs signatures of a bundle on a target.

    signatures: by default all, `predict` first. shapes: of inputs with open sizes, see `shapes_for`. more: further
    files for the folder, by name, none of which has the name of one that is written here. Kernels that are
    not compiled yet are compiled now (needs numba). Files are written when all of them are made, the model last.
    Raises MsedgeError for an unknown target and for a folder with other files, BundleError for a source that is no
    bundle, InputError and UnsupportedOpError as `plan_ahead` does, MissingExtraError without a compiler.
    """
    wanted = named(target, (*AHEAD, *TARGETS))
    form = _WEB if wanted.processor == "wasm32" else _LIBRARY
    _check_folder(folder, form.marker)
    held = bundles.read(source)
    names = chosen(held, signatures)
    parts = [_part(held, name, each, wanted) for name, each in shapes_for(held, names, shapes).items()]
    kernels = kernels_of(parts)
    threads = max(worth(part.plan.records, _MOST_THREADS) for part in parts)
    code, digest = form.kernels(kernels, wanted, threads)
    state = {name: array for name, array in held.state.items() if any(name in _states(part.use) for part in parts)}
    flat = assembled(parts, state, (f"msedge {version('msedge')}", held.digest, wanted.name), digest)
    ports = [Ports(part.name, *(_ports(side, part.plan) for side in part.use.seen(part.graph))) for part in parts]
    others = form.files(ports, [Port(name, dtype_name(a.dtype), a.shape) for name, a in state.items()], wanted)
    if form is _WEB:
        others |= package.processing_of(held.metadata, names)
    files = {form.marker: others[form.marker], **more, **others, **code, MODEL: flat}
    _write(folder, files)
    return Built(
        os.fspath(folder),
        {name: len(content) for name, content in files.items()},
        tuple(kernels),
        len(compress(code[form.kernels_file], 9)),
        sum(len(part.plan.records) for part in parts),
        max(part.plan.arena_bytes for part in parts),
        sum(array.nbytes for array in state.values()),
        {each.signature: {port.name: port.shape for port in each.inputs} for each in ports},
    )


def _part(held: Bundle, name: str, shapes: Mapping[str, Sized], target: Target) -> Part:
    graph, use = held.signatures[name], held.uses.get(name, StateUse({}, {}))
    try:
        made = plan_ahead(graph, shapes, target)
    except MsedgeError as problem:
        others = [other for other in held.signatures if other != name]
        if not others or not isinstance(problem, UnsupportedOpError):
            raise
        raise UnsupportedOpError(
            f"signature {name!r}: {problem}; to leave it out, name those that you need: --signature {others[-1]}"
        ) from None
    for key, state in use.writes.items():
        got, want = made.where[key][2], held.state[state]
        if (got.dtype, got.shape) != (dtype_name(want.dtype), want.shape):
            raise MsedgeError(f"state {state!r}: expected {dtype_name(want.dtype)}{list(want.shape)}, got {got}")
    return Part(name, graph, made, use, _sample(held, name, graph, made, use))


def _states(use: StateUse) -> set[str]:
    return {*use.reads.values(), *use.writes.values()}


def _check_folder(folder: str | os.PathLike[str], marker: str) -> None:
    """Refuse a folder with files of others, which could have the same names."""
    try:
        there = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise MsedgeError(f"cannot write to {os.fspath(folder)!r}: {problem.strerror}; choose another folder") from None
    others = sorted(name for name in there if not TEMPORARY.fullmatch(name))  # a killed build may leave one of these
    if others and marker not in others:
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


def _ports(values: Sequence[Value], made: Plan) -> list[Port]:
    """Ports with the shapes of the plan."""
    found = []
    for value in values:
        shape = made.known[value.name].shape if value.name in made.known else made.where[value.name][2].shape
        found.append(Port(value.name, value.dtype, shape))
    return found


def _sample(held: Bundle, name: str, graph: Graph, made: Plan, use: StateUse) -> Sample:
    """The bundle's golden inputs if they have the plan's shapes, otherwise others; and what this machine gives for
    them, in the last of as many runs as show what is written to state."""
    seen, _ = use.seen(graph)
    shapes = {port.name: port.shape for port in _ports(seen, made)}
    inputs: Mapping[str, Array] = held.golden[name][0] if name in held.golden else {}
    if {key: array.shape for key, array in inputs.items()} != shapes:
        sized = tuple(value._replace(shape=shapes[value.name]) for value in seen)
        inputs = sample_inputs(graph.replace(inputs=sized))
    # Its state as inputs, as on the target: as constants, results could differ by rounding.
    model = lite_runtime.load(held.data).explicit([name])
    state, runs = dict(held.state), 2 if use.writes else 1
    for _ in range(runs):
        outputs = model.run({**inputs, **{key: state[of] for key, of in use.reads.items()}}, name)
        state |= {of: outputs[key] for key, of in use.writes.items()}
    whole = not any(kernel.startswith("q") for kernel in made.kernels)
    return Sample(inputs, outputs, runs, _TOLERANCES[0 if whole else 1])
