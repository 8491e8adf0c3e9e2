"""A bundle to a folder that runs on a target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from gzip import compress
from hashlib import sha256
from importlib.metadata import version
from types import MappingProxyType

import lite_runtime
from converter.ahead import firmware, library, package
from converter.ahead.assembling import Part, Sample, assembled, kernels_of, records_of
from converter.ahead.modules import LIST, PLAIN, modules_of
from converter.ahead.needs import Needs, largest_step, needs_of
from converter.ahead.planning import Sized, chosen, plan_ahead, shapes_for
from converter.ahead.ports import Port, Ports
from converter.ahead.trimming import loops_of
from converter.golden import sample_inputs
from lite_runtime import bundle as bundles
from lite_runtime._files import TEMPORARY, write_atomically
from lite_runtime.bundle import Bundle
from lite_runtime.errors import MsedgeError, UnsupportedOpError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, StateUse, Value, dtype_name
from lite_runtime.native.objects import SYMBOL, object_for
from lite_runtime.planning.program import Plan
from lite_runtime.running.threads import worth
from lite_runtime.targets import AHEAD, TARGETS, Target, named

__all__ = ["Built", "build"]

MODEL = "model.msflat"
"""The last file that is written."""
_MICRO = ", ".join(target.name for target in AHEAD if target.shape.small)
_MOST_THREADS = 4
"""More gain little in browsers, whose processors are often of two kinds: the slowest thread decides."""
_TOLERANCES = (1e-4, 5e-2)
"""By what share of an output's largest magnitude floats may differ from this machine's: without integers inside, the
rounding of multiply-adds and the order of sums; with them, such a difference can also move a value to the next of 256
steps. Integers must be equal."""


class _Whole(NamedTuple):
    """What a folder is made of. ports: of signatures. kernels: files."""

    held: Bundle
    ports: Sequence[Ports]
    states: Sequence[Port]
    target: Target
    kernels: Mapping[str, bytes]
    flat: bytes


class _Form(NamedTuple):
    """What is built for a kind of targets. marker: the first file that is written, which shows that a folder was made
    here. kernels: (names, loops of chains, target, how many threads gain) -> files, of which `kernels_file` is the one
    that is needed everywhere, and the digest that the model names. files: all, by path."""

    marker: str
    kernels_file: str
    kernels: Callable[[Sequence[str], Sequence[str], Target, int], tuple[dict[str, bytes], bytes]]
    files: Callable[[_Whole], dict[str, bytes]]


def _modules(
    kernels: Sequence[str], _: Sequence[str], target: Target, threads: int
) -> tuple[dict[str, bytes], bytes]:
    made = modules_of(kernels, target, threads)
    return made, sha256(made[LIST]).digest()


def _object(kernels: Sequence[str], loops: Sequence[str], target: Target, _: int) -> tuple[dict[str, bytes], bytes]:
    made, digest = object_for(kernels, loops, target)
    return {_OBJECT: made}, digest


def _web(whole: _Whole) -> dict[str, bytes]:
    files = package.files_of(whole.ports, whole.states)
    processing = package.processing_of(whole.held.metadata, [port.signature for port in whole.ports])
    return {**files, **processing, **whole.kernels, MODEL: whole.flat}


def _library(whole: _Whole) -> dict[str, bytes]:
    return {**library.files_of(whole.ports, whole.states, whole.target), **whole.kernels, MODEL: whole.flat}


def _firmware(whole: _Whole) -> dict[str, bytes]:
    return firmware.files_of(whole.ports, whole.states, whole.target, whole.kernels[_OBJECT], whole.flat, SYMBOL)


_OBJECT = "kernels.o"
_WEB, _LIBRARY, _FIRMWARE = (
    _Form("msedge.mjs", PLAIN, _modules, _web),
    _Form("msedge.h", _OBJECT, _object, _library),
    _Form("library.properties", _OBJECT, _object, _firmware),
)


def _form(target: Target) -> _Form:
    if target.shape.small:
        return _FIRMWARE
    return _WEB if target.processor == "wasm32" else _LIBRARY


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
    ram: Needs | None = None
    """What a microcontroller needs."""


def build(
    source: bundles.Source,
    folder: str | os.PathLike[str],
    target: str = "wasm32",
    *,
    signatures: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    more: Mapping[str, bytes] = MappingProxyType({}),
    ram: int | None = None,
) -> Built:
    """Write a folder with everything that runs signatures of a bundle on a target.

    signatures: by default all, `predict` first. shapes: of inputs with open sizes, see `shapes_for`. more: further
    files for the folder, by name, none of which has the name of one that is written here. ram: bytes that a
    microcontroller has for memory and stack. Kernels that are not compiled yet are compiled now (needs numba). Files
    are written when all of them are made, the model last. Raises MsedgeError for an unknown target, for a folder with
    other files and for too little RAM, BundleError for a source that is no bundle, InputError and UnsupportedOpError as
    `plan_ahead` does, MissingExtraError without a compiler.
    """
    wanted = named(target, (*AHEAD, *TARGETS))
    form = _form(wanted)
    if ram is not None and form is not _FIRMWARE:
        raise MsedgeError(f"expected a microcontroller for a limit of RAM ({_MICRO}), got {target}")
    _check_folder(folder, form.marker)
    held = bundles.read(source)
    names = chosen(held, signatures)
    parts = [_part(held, name, each, wanted) for name, each in shapes_for(held, names, shapes).items()]
    kernels = kernels_of(parts)
    threads = max(worth(part.plan.records, _MOST_THREADS) for part in parts)
    code, digest = form.kernels(kernels, loops_of(records_of(parts)), wanted, threads)
    state, facts = _used(held, parts), (f"msedge {version('msedge')}", held.digest, wanted.name)
    flat = assembled(parts, state, facts, digest)
    ports = [Ports(part.name, *(_ports(side, part.plan) for side in part.use.seen(part.graph))) for part in parts]
    needs = needs_of(flat, code[_OBJECT]) if form is _FIRMWARE else None
    if needs is not None and ram is not None and needs.total > ram:
        flats = {part.name: assembled([part], _used(held, [part]), facts, digest) for part in parts}
        alone = {name: needs_of(one, code[_OBJECT]) for name, one in flats.items()}
        raise MsedgeError(_too_much(needs, ram, parts, alone))
    states = [Port(name, dtype_name(a.dtype), a.shape) for name, a in state.items()]
    files = form.files(_Whole(held, ports, states, wanted, code, flat))
    files = {form.marker: files[form.marker], **more, **files}
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
        needs,
    )


def _too_much(needs: Needs, ram: int, parts: Sequence[Part], alone: Mapping[str, Needs]) -> str:
    """What a model needs, and what would fit. alone: what each signature needs without the others."""
    numbers = ", ".join(f"{size} of {name}" for name, size in needs._asdict().items())
    text = f"expected a model for {ram} bytes of RAM, got one that needs {needs.total} ({numbers}); "
    if fitting := [name for name, each in alone.items() if each.total <= ram]:
        return f"{text}{', '.join(fitting)} would fit without the others: --signature {fitting[0]}"
    size, node = max((largest_step(part.plan) for part in parts), key=lambda step: step[0])
    return (
        f"{text}an arena of at most {max(ram - needs.total + needs.arena, 0)} would fit, and {node} alone takes {size} "
        "of it: smaller inputs, or fewer channels there, need less"
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


def _used(held: Bundle, parts: Sequence[Part]) -> dict[str, Array]:
    """The states of these signatures."""
    names = {name for part in parts for name in (*part.use.reads.values(), *part.use.writes.values())}
    return {name: array for name, array in held.state.items() if name in names}


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
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomically(path, content)


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
