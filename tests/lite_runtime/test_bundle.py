"""The bundle: round trips, and a separate error for every way in which a file can be wrong."""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime import BundleError, MsedgeError, bundle
from lite_runtime.bundle.layout import digest_of
from lite_runtime.graph import DTYPES, Graph, Node, Value, numpy_dtype
from tests.fuzz.mutate import pack, unpack
from tests.fuzz.seeds import SEEDS, mlp, seed_bundles, strings

ROOT = Path(__file__).resolve().parents[2]


def same_array(a: Any, b: Any) -> bool:
    """Equal in dtype, shape and every bit."""
    if a.dtype == object:
        return b.dtype == object and a.shape == b.shape and a.tolist() == b.tolist()
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_attr(a: Any, b: Any) -> bool:
    if isinstance(a, Graph):
        return same_graph(a, b)
    if isinstance(a, np.ndarray):
        return same_array(a, b)
    return type(a) is type(b) and repr(a) == repr(b)


def same_graph(a: Graph, b: Graph) -> bool:
    return (
        (a.name, a.inputs, a.outputs) == (b.name, b.inputs, b.outputs)
        and set(a.constants) == set(b.constants)
        and all(same_array(a.constants[k], b.constants[k]) for k in a.constants)
        and len(a.nodes) == len(b.nodes)
        and all(
            (m.op, m.inputs, m.outputs, m.name) == (n.op, n.inputs, n.outputs, n.name)
            and set(m.attrs) == set(n.attrs)
            and all(same_attr(m.attrs[k], n.attrs[k]) for k in m.attrs)
            for m, n in zip(a.nodes, b.nodes, strict=True)
        )
    )


def constants_only(**arrays: Any) -> Graph:
    """A graph that gives its constants."""
    from lite_runtime.graph import dtype_name

    outputs = tuple(Value(name, dtype_name(a.dtype), a.shape) for name, a in arrays.items())
    return Graph((), outputs, (), arrays, "constants")


@pytest.fixture(scope="module")
def good() -> bytes:
    return seed_bundles()[-1]


# -------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("make", SEEDS, ids=lambda f: f.__name__)
def test_graph_survives(make: Callable[[], Graph]) -> None:
    graph = make()
    assert same_graph(graph, bundle.read(bundle.write(None, {"predict": graph}), thorough=True).signatures["predict"])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "string"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 0, 4)])
def test_every_dtype_survives(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2
    array = np.asarray(array).astype(numpy_dtype(dtype))
    held = bundle.read(bundle.write(None, {"predict": constants_only(a=array)}), thorough=True)
    got = held.signatures["predict"].constants["a"]
    assert same_array(array, got)
    assert not got.flags.writeable


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda s: s.isprintable()),
        hnp.arrays(
            st.sampled_from([np.dtype(t) for t in ("float32", "int8", "bool", "complex64", "uint64", "float16")]),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
        ),
        max_size=4,
    ),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_arrays_survive(arrays: dict[str, Any], fortran: bool) -> None:
    given_ = {name: np.array(a, order="F") if fortran else a for name, a in arrays.items()}
    graph = constants_only(**given_)
    data = bundle.write(None, {"s": graph})
    assert data == bundle.write(None, {"s": constants_only(**arrays)})
    assert same_graph(graph, bundle.read(data, thorough=True).signatures["s"])


@given(st.lists(st.text(max_size=12).filter(lambda s: not any(0xD800 <= ord(c) < 0xE000 for c in s)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_strings_survive(items: list[str]) -> None:
    array = np.empty(len(items), object)
    array[:] = items
    got = bundle.read(bundle.write(None, {"s": constants_only(t=array)})).signatures["s"].constants["t"]
    assert got.tolist() == items
    assert not got.flags.writeable


NAMES = st.sampled_from([f"v{i}" for i in range(6)])
ATTRS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=64),
    st.text(alphabet='abc é"\\\n', max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(tuple),
    st.lists(st.floats(), max_size=4).map(tuple),
    st.lists(st.text(alphabet="xyz", max_size=3), max_size=4).map(tuple),
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=3)),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains of an operator that takes any attribute of these kinds."""
    known, nodes = ["x"], []
    for i in range(draw(st.integers(0, 6))):
        value = draw(ATTRS)
        key = {int: "value_int", float: "value_float", str: "value_string", np.ndarray: "value"}.get(type(value))
        if key is None:
            kind = {int: "ints", float: "floats", str: "strings"}[type(value[0])] if value else "ints"
            key = f"value_{kind}"
        nodes.append(Node("Constant", (), (f"c{i}",), {key: value}, draw(st.sampled_from(["", f"n{i}"]))))
        nodes.append(Node("Add", (draw(st.sampled_from(known)), f"c{i}"), (f"v{i}",)))
        known += [f"c{i}", f"v{i}"]
    out = draw(st.sampled_from(known[1:])) if known[1:] else "x"
    shape = draw(st.one_of(st.none(), st.lists(st.sampled_from([1, 3, None, "N"]), max_size=3).map(tuple)))
    kind = Value(out, "float32", shape)
    return Graph((Value("x", "float32", shape),), (kind,), tuple(nodes), {}, draw(st.text(max_size=3, alphabet="ab")))


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_random_graphs_survive(graph: Graph) -> None:
    data = bundle.write(None, {"predict": graph})
    read = bundle.read(data, thorough=True).signatures["predict"]
    assert same_graph(graph, read)
    assert bundle.write(None, {"predict": read}) == data


def test_everything_else_survives(good: bytes) -> None:
    held = bundle.read(good)
    assert list(held.signatures) == ["evaluate", "predict"]
    assert held.metadata["nested"] == {"deep": [None, True]}
    inputs, outputs = held.golden["predict"]
    assert same_array(inputs["x"], np.ones((2, 6), np.float32))
    assert same_array(outputs["label"], np.zeros(2, np.int64))
    assert held.section("packed/none") == b"not for us"
    assert held.digest == bundle.read(good).digest
    assert len(held.digest) == 64


def test_order_of_mappings_does_not_matter() -> None:
    graph = mlp()
    turned = Graph(graph.inputs, graph.outputs, graph.nodes, dict(reversed(graph.constants.items())), graph.name)
    a = bundle.write(None, {"a": graph, "b": graph}, metadata={"x": 1, "y": {"p": 1, "q": 2}})
    b = bundle.write(None, {"b": turned, "a": turned}, metadata={"y": {"q": 2, "p": 1}, "x": 1})
    assert a == b


def test_equal_contents_are_stored_once() -> None:
    array = np.arange(4096, dtype=np.float32)
    one = bundle.write(None, {"a": constants_only(w=array)})
    two = bundle.write(
        None, {"a": constants_only(w=array), "b": constants_only(v=array.copy(), u=array.view(np.int32))}
    )
    assert len(two) < len(one) + 4096
    held = bundle.read(two)
    a, b = held.signatures["a"].constants["w"], held.signatures["b"].constants["v"]
    assert np.shares_memory(a, b)
    assert {t.offset for t in held.tensors} == {0}


def test_file_is_mapped_and_aligned(tmp_path: Path) -> None:
    path = tmp_path / "m.mslite"
    graph = constants_only(w=np.ones(1 << 18, np.float32), b=np.ones(17, np.float32), s=np.array(3.0), t=np.arange(4))
    assert bundle.write(path, {"predict": graph}) == path.read_bytes()
    held = bundle.read(path)
    base = np.frombuffer(held.data, np.uint8).ctypes.data
    assert held.sections["weights"].offset % 4096 == 0
    for name, array in held.signatures["predict"].constants.items():
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, graph.constants[name])
        inside = base <= array.ctypes.data < base + len(held.data)
        assert inside == (array.nbytes > 64) and (not inside or array.ctypes.data % 64 == 0), name
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_every_kind_of_source(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.mslite"
    path.write_bytes(good)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    shifted = memoryview(b"\0" * 3 + good)[3:]
    digests = {bundle.read(s).digest for s in (path, str(path), good, bytearray(good), mapped, shifted)}
    assert len(digests) == 1
    assert not bundle.read(bytearray(good)).signatures["predict"].constants["w1"].flags.writeable
    for array in bundle.read(shifted).signatures["predict"].constants.values():
        assert array.flags.aligned


# ------------------------------------------------------------------------------------------------- what write refuses


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"metadata": {"x": object()}}, "metadata.x: expected JSON values"),
        ({"metadata": {"x": [1, {"y": float("nan")}]}}, r"metadata.x\[1\].y"),
        ({"metadata": {1: 2}}, "expected string keys"),
        ({"metadata": {"x": 2**63}}, "64-bit int"),
        ({"provenance": {"x": "\ud800"}}, "expected valid Unicode"),
        ({"golden": {"nope": ({}, {})}}, "expected a signature of predict, got 'nope'"),
        ({"golden": {"predict": ({"z": np.zeros(1)}, {})}}, "golden 'predict'.*expected names of 'x', got 'z'"),
        ({"golden": {"predict": ({"x": np.zeros((2, 5), np.float32)}, {})}}, r"expected shape \(2, 6\), got \(2, 5\)"),
        ({"golden": {"predict": ({"x": np.zeros((2, 6), np.float64)}, {})}}, "expected a tensor of float32"),
        ({"extra": {"weights": b""}}, "rename it"),
        ({"extra": {"Bad Name": b""}}, "section name"),
        ({"extra": {"n" * 33: b""}}, "section name"),
    ],
)
def test_write_refuses(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(BundleError, match=text):
        bundle.write(None, {"predict": mlp()}, **kwargs)


def test_write_refuses_what_read_would() -> None:
    with pytest.raises(BundleError, match="at least one signature"):
        bundle.write(None, {})
    with pytest.raises(BundleError, match="signature 'predict': output 'y': expected a name defined by a node"):
        bundle.write(None, {"predict": Graph((), (Value("y", "float32"),), (), {})})
    with pytest.raises(BundleError, match="text in a string tensor, got 3"):
        bundle.write(None, {"s": constants_only(t=np.array([3], object))})
    deep: Any = {}
    for _ in range(50):
        deep = {"d": deep}
    with pytest.raises(BundleError, match="levels of nesting"):
        bundle.write(None, {"predict": mlp()}, metadata=deep)
    with pytest.raises(BundleError, match="no lite dtype"):
        bundle.write(None, {"s": Graph((), (), (), {"t": np.zeros(2, "datetime64[s]")})})


# ----------------------------------------------------------------------------------------------------- broken outside


def resealed(head: bytes, rest: bytes) -> bytes:
    """A file whose header digest is right for what its header and table now say."""
    count = struct.unpack_from("<H", head, 14)[0]
    return head[:32] + digest_of(head[:32] + rest[: 96 * count]) + rest


def edited(data: bytes, at: int, layout: str, *values: Any) -> bytes:
    raw = bytearray(data)
    struct.pack_into(layout, raw, at, *values)
    return resealed(bytes(raw[:64]), bytes(raw[64:]))


def entry(data: bytes, name: str) -> int:
    return next(at for at in range(64, 64 + 96 * 9, 96) if data[at : at + 32].rstrip(b"\0") == name.encode())


def refuse(data: bytes, text: str) -> str:
    with pytest.raises(BundleError, match=text) as caught:
        bundle.read(data)
    message = str(caught.value)
    assert "expected" in message and "got" in message and ";" in message, message
    return message


def test_not_a_bundle() -> None:
    for data in (b"PK\x03\x04" + bytes(100), b"x", b"\0" * 64):
        refuse(data, "not a bundle; to make one: msedge convert")
    refuse(b"", "cut short")
    refuse(bundle.MAGIC.replace(b"\n", b"\r\n") + bytes(80), "line ends changed")


def test_other_endianness_and_versions(good: bytes) -> None:
    refuse(edited(good, 8, ">I", 0x01020304), "expected a little-endian file, got big-endian")
    refuse(edited(good, 8, "<I", 7), "byte-order mark")
    needs = 3 << 20 | 2 << 10 | 1
    refuse(edited(good, 12, "<HHI", 3, 3, needs), "format version 2, got 3; install msedge 3.2.1 or newer")
    refuse(edited(good, 12, "<H", 0), "format version 2, got 0; convert the model again")


def test_truncated_at_every_length(good: bytes) -> None:
    for size in [*range(300), *range(300, len(good), 251), len(good) - 1]:
        refuse(good[:size], "cut short")


def test_trailing_bytes(good: bytes) -> None:
    refuse(good + b"\0", "bytes follow the bundle's end")
    refuse(edited(good + b"\0" * 64, 24, "<Q", len(good) + 64), "bytes follow it")


def test_absurd_sizes_allocate_nothing(good: bytes) -> None:
    refuse(edited(good, 24, "<Q", 2**63), "cut short")
    at = entry(good, "weights")
    refuse(edited(good, at + 40, "<Q", 2**62), "section 'weights': expected an extent")
    refuse(edited(good, at + 32, "<Q", 2**63 // 4096 * 4096), "section 'weights': expected an extent")
    refuse(edited(good, 14, "<H", 65535), "sections that fit")
    refuse(edited(good, 14, "<H", 0), "sections that fit")


def test_section_extents(good: bytes) -> None:
    at = entry(good, "weights")
    offset = struct.unpack_from("<Q", good, at + 32)[0]
    refuse(edited(good, at + 32, "<Q", offset + 32), "section 'weights': expected an offset that is a multiple of 64")
    refuse(edited(good, entry(good, "golden") + 32, "<Q", offset + 1), "section 'golden'.*multiple of 64")
    refuse(edited(good, entry(good, "golden") + 32, "<Q", 0), "section 'golden'.*they overlap")
    refuse(edited(good, at + 32, "<Q", 0), "section 'weights'.*they overlap")
    refuse(edited(good, at, "<32s", b"golden"), "expected one section of that name")
    refuse(edited(good, at, "<32s", b"\xff\xfe"), "section table, row")


def test_every_flipped_bit_is_noticed(good: bytes) -> None:
    for at in [*range(400), *range(400, len(good), 37)]:
        raw = bytearray(good)
        raw[at] ^= 1 << at % 8
        with pytest.raises(BundleError):
            bundle.read(bytes(raw))


def test_unknown_sections(good: bytes) -> None:
    parts = unpack(good)
    assert "later/thing" in bundle.read(pack([*parts, ("later/thing", b"123", 0)])).sections
    message = refuse(pack([*parts, ("later/thing", b"123", 1)]), "a required one that it does not know")
    assert "install msedge 0.1.0 or newer" in message
    refuse(pack([*parts, ("later/thing", b"123", 4)]), "a required one that it does not know")
    refuse(pack([p for p in parts if p[0] != "weights"]), "expected a section 'weights'")
    refuse(pack([p for p in parts if p[0] != "golden"]), "expected a section 'golden'")
    refuse(pack([p for p in parts if p[0] != "manifest"]), "expected a section 'manifest'")


# --------------------------------------------------------------------------------------------- broken in the manifest


def with_manifest(data: bytes, content: bytes) -> bytes:
    return pack([(n, content if n == "manifest" else c, f) for n, c, f in unpack(data)])


def changed(data: bytes, change: Callable[[Any], None]) -> bytes:
    """The bundle with its manifest's JSON changed and every digest right."""
    doc = json.loads(next(c for n, c, _ in unpack(data) if n == "manifest"))
    change(doc)
    return with_manifest(data, json.dumps(doc).encode())


def test_json_is_strict(good: bytes) -> None:
    manifest = next(c for n, c, _ in unpack(good) if n == "manifest")
    refuse(with_manifest(good, b"{"), "manifest: expected JSON")
    refuse(with_manifest(good, manifest + b"x"), "manifest: expected JSON")
    refuse(with_manifest(good, b'{"a":1,"b":2,"a":3}'), "'a' twice")
    refuse(with_manifest(good, b'{"a":NaN}'), "finite numbers, got NaN")
    refuse(with_manifest(good, b'{"a":-Infinity}'), "finite numbers, got -Infinity")
    refuse(with_manifest(good, b'{"a":"\xff"}'), "manifest, byte 6: expected UTF-8")
    refuse(with_manifest(good, b'{"a":"\\ud800"}'), "surrogate")
    refuse(with_manifest(good, b"[" * 10**6), "nesting")
    refuse(with_manifest(good, b'{"a":' * 10**5), "nesting")
    refuse(with_manifest(good, b'{"a":' + b"9" * 5000 + b"}"), "manifest")
    refuse(with_manifest(good, b"[]"), "expected an object")
    refuse(with_manifest(good, b"{}"), "expected the keys signatures")
    refuse(with_manifest(good, b" " * (1 << 25) + manifest), "expected at most")


def test_features_of_a_later_version(good: bytes) -> None:
    message = refuse(
        changed(good, lambda doc: doc["requires"].update(sparse="0.9.0")), "'sparse', which it does not know"
    )
    assert "install msedge 0.9.0 or newer" in message


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(doc: Any) -> None:
        for key in path[:-1]:
            doc = doc[key]
        doc[path[-1]] = value

    return change


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


GRAPH = ("signatures", "predict")
TENSOR = ("tensors", "weights", 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (put(*TENSOR, value=[]), r"section 'weights', tensor 0: expected \[dtype"),
        (put(*TENSOR, 0, value="float33"), "tensor 0: expected a dtype msedge knows, got 'float33'"),
        (put(*TENSOR, 0, value=5), "expected a dtype"),
        (put(*TENSOR, 0, value="float64"), "expected 384 bytes for float64"),
        (put(*TENSOR, 0, value="string"), r"tensor 0"),
        (put(*TENSOR, 1, value=[2**62, 2**62, 2]), "expected at most"),
        (put(*TENSOR, 1, value=[0, 2**62]), "expected at most"),
        (put(*TENSOR, 1, value=[-6, -8]), "dimensions of 0 or more"),
        (put(*TENSOR, 1, value=[1] * 40), "at most 32 dimensions"),
        (put(*TENSOR, 1, value=[6.0, 8]), "whole numbers"),
        (put(*TENSOR, 1, value=[True, 48]), "whole numbers"),
        (put(*TENSOR, 2, value=32), "a multiple of 64"),
        (put(*TENSOR, 2, value=-64), "a multiple of 64"),
        (put(*TENSOR, 2, value=2**70), "a multiple of 64"),
        (put(*TENSOR, 2, value=64), "they overlap"),
        (put(*TENSOR, 3, value=2**40), "expected 192 bytes"),
        (put(*TENSOR, 4, value=None), "digest as text"),
        (put("tensors", "weights", value={}), "expected a list, got an object"),
        (put("tensors", value={}), "expected the keys weights, golden"),
        (put("signatures", value={}), "at least one"),
        (put("signatures", "", value={}), "signature ''"),
        (put("signatures", "predict", value=3), "signature 'predict': graph: expected an object, got 3"),
        (put(*GRAPH, "more", value=3), "signature 'predict': graph: expected the keys"),
        (put(*GRAPH, "name", value=3), "graph name"),
        (put(*GRAPH, "constants", "w1", value=99), "constant 'w1': expected a row below"),
        (put(*GRAPH, "constants", "w1", value=-1), "constant 'w1': expected a row below"),
        (put(*GRAPH, "constants", "w1", value=True), "constant 'w1': expected a row below"),
        (put(*GRAPH, "inputs", 0, value=["x"]), "input 0: expected"),
        (put(*GRAPH, "inputs", 0, 2, value=[1.5]), "input 'x': expected a shape"),
        (put(*GRAPH, "inputs", 0, 2, value=[2**50]), "input 'x': shape: expected at most"),
        (put(*GRAPH, "inputs", 0, 1, value="f32"), "input 'x': expected a dtype"),
        (put(*GRAPH, "inputs", 0, 3, value="map"), "input 'x': expected a kind"),
        (put(*GRAPH, "nodes", 0, value=None), "node 0: expected"),
        (
            put(*GRAPH, "nodes", 0, 0, value="Frobnicate"),
            "MatMul|Frobnicate 'hidden': operator: expected one that msedge knows",
        ),
        (put(*GRAPH, "nodes", 0, 0, value=7), "node 0: expected op and name as text"),
        (put(*GRAPH, "nodes", 0, 1, value=["x", 1]), "node 0, 'MatMul'"),
        (put(*GRAPH, "nodes", 0, 1, value=["x"]), "MatMul 'hidden': operands: expected 2 to 4 inputs, got 1"),
        (put(*GRAPH, "nodes", 0, 1, value=["x", "p"]), "MatMul 'hidden': inputs: expected names defined by earlier"),
        (put(*GRAPH, "nodes", 0, 2, value=["x"]), "MatMul 'hidden': outputs: expected every name defined once"),
        (put(*GRAPH, "nodes", 0, 3, value=77), "a row below"),
        (put(*GRAPH, "attrs", 0, "activation", value="Cube"), "attribute 'activation': value: expected one of"),
        (put(*GRAPH, "attrs", 0, "activation", value=None), "'activation': expected a number, text"),
        (put(*GRAPH, "attrs", 0, "activation", value=[1, "a"]), "'activation': expected a number, text"),
        (put(*GRAPH, "attrs", 0, "activation", value=True), "'activation': expected a number, text"),
        (put(*GRAPH, "attrs", 0, "activation", value={"float": "1"}), "'activation': expected a number, text"),
        (put(*GRAPH, "attrs", 0, "activation", value={"floats": [1]}), "'activation': expected floats"),
        (put(*GRAPH, "attrs", 0, "activation", value={"tensor": 99}), "a row below"),
        (put(*GRAPH, "attrs", 0, "activation", value={"graph": {}}), "expected the keys"),
        (put(*GRAPH, "attrs", 0, "transA", value=2**63), "ints of 0 to 1"),
        (put("golden", "predict", value=[{}]), r"expected \[inputs, outputs\]"),
        (put("golden", "predict", 0, "x", value=1), "golden 'predict': array 'x': expected"),
        (put("golden", "other", value=[{}, {}]), "expected a signature of"),
        (put("metadata", value=[]), "metadata: expected an object"),
        (put("metadata", "deep", value=nested(60)), "levels of nesting"),
        (put("metadata", "big", value=10**30), "metadata.big"),
    ],
)
def test_manifest_is_checked(good: bytes, change: Callable[[Any], None], text: str) -> None:
    refuse(changed(good, change), text)


def test_numbers_beyond_floats(good: bytes) -> None:
    manifest = next(c for n, c, _ in unpack(good) if n == "manifest")
    assert b'"mean":[0.5,0.001]' in manifest
    refuse(with_manifest(good, manifest.replace(b"[0.5,0.001]", b"[1e999]")), r"metadata.mean\[0\]")


def test_nesting_of_graphs_is_limited() -> None:
    inner: Any = {"name": "", "inputs": [], "outputs": [], "nodes": [], "attrs": [], "constants": {}}
    for _ in range(60):
        inner = {**inner, "attrs": [{"body": {"graph": inner}}]}
    refuse(changed(seed_bundles()[1], put("signatures", "predict", value=inner)), "graphs nested at most 32 deep")


def test_a_graph_belongs_to_one_node() -> None:
    """Two nodes on one row, 32 levels deep, would be four thousand million graphs."""
    data = seed_bundles()[4]

    def twice(doc: Any) -> None:
        nodes = doc["signatures"]["predict"]["nodes"]
        again = json.loads(json.dumps(nodes[-1]))
        again[2] = ["again"]
        nodes.append(again)

    refuse(changed(data, twice), "attributes with a graph in one node only")


def test_strings_are_checked() -> None:
    array = np.array(["ab", "é"], object)
    data = bundle.write(None, {"s": constants_only(t=array)})
    store = next(c for n, c, _ in unpack(data) if n == "weights")
    assert store == struct.pack("<I", 2) + b"ab" + struct.pack("<I", 2) + "é".encode()

    def swapped(content: bytes) -> bytes:
        return pack([(n, content if n == "weights" else c, f) for n, c, f in unpack(data)])

    refuse(swapped(struct.pack("<I", 2**32 - 1) + store[4:]), "tensor 0, string 0: expected an end within")
    refuse(swapped(store[:-1] + b"\xff"), "tensor 0, string 1: expected UTF-8")
    refuse(swapped(struct.pack("<I", 1) + store[4:]), "tensor 0")
    refuse(changed(data, put("tensors", "weights", 0, 1, value=[1])), "strings that fill 12 bytes")
    refuse(changed(data, put("tensors", "weights", 0, 1, value=[2**30])), "for the lengths of strings")


def test_truth_values_are_zero_or_one() -> None:
    data = bundle.write(None, {"s": constants_only(t=np.array([True, False] * 40))})
    broken = pack([(n, b"\x02" + c[1:] if n == "weights" else c, f) for n, c, f in unpack(data)])
    refuse(broken, "constant 't': expected bytes of 0 to 1 in a tensor of bool, got 2")
    small = bundle.write(None, {"s": constants_only(t=np.array([True, False]))})
    refuse(changed(small, put(*TENSOR, 2, value="AgA=")), "constant 't': expected bytes of 0 to 1")
    narrow = np.array([1, 3] * 40, ml_dtypes.uint4)
    data = bundle.write(None, {"s": constants_only(t=narrow)})
    refuse(pack([(n, b"\xf1" + c[1:] if n == "weights" else c, f) for n, c, f in unpack(data)]), "tensor of uint4")


def test_thorough_checks_each_tensor(good: bytes) -> None:
    broken = changed(good, put(*TENSOR, 4, value="0" * 64))
    assert bundle.read(broken).signatures
    with pytest.raises(BundleError, match="section 'weights', tensor 0: expected BLAKE2b-256"):
        bundle.read(broken, thorough=True)


def test_digest_names_the_section(good: bytes) -> None:
    raw = bytearray(good)
    raw[-1] ^= 1
    refuse(bytes(raw), "section 'weights': expected BLAKE2b-256.*fetch or make it again")


# -------------------------------------------------------------------------------------------------- files and folders


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    def refused(source: Any, text: str) -> None:
        with pytest.raises(BundleError, match=text):
            bundle.read(source)

    refused(tmp_path / "none.mslite", "none.mslite.*got no file of that name")
    refused(tmp_path, "got a folder or device|cannot read")
    refused("/dev/zero", "got a folder or device")
    refused(tmp_path / "a\0b", "cannot read")
    empty = tmp_path / "empty"
    empty.touch()
    refused(empty, "empty file; to make one: msedge convert")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "got a folder or device")
    refused(3, "expected a path, bytes")
    refused(memoryview(bytes(100))[::2], "contiguous")
    (tmp_path / "bad").write_bytes(b"hello")
    refused(tmp_path / "bad", "bad': header: expected")


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A file that holds something already; afterwards nothing but it may be in its folder."""
    path = tmp_path / "m.mslite"
    path.write_bytes(b"before")
    yield path
    assert [p.name for p in tmp_path.iterdir()] == ["m.mslite"]


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        ("write", errno.ENOSPC, "m.mslite.*No space left.*free some space"),
        ("write", errno.EFBIG, "file size limit"),
        ("fsync", errno.EIO, "m.mslite.*check the disk"),
        ("replace", errno.EACCES, "m.mslite.*choose a folder you may write to"),
        ("open", errno.EROFS, "m.mslite.*read-only; choose another folder"),
    ],
)
def test_failed_writes_leave_nothing(
    target: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int, text: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing(code))
        with pytest.raises(BundleError, match=text):
            bundle.write(target, {"predict": mlp()})
    assert target.read_bytes() == b"before"


def test_interrupted_write_leaves_nothing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bundle.write(target, {"predict": mlp()})
    assert target.read_bytes() == b"before"


def test_a_failed_sync_of_the_folder_is_reported(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.fsync, []

    def second_fails(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", second_fails)
        with pytest.raises(BundleError, match="Input/output error"):
            bundle.write(target, {"predict": mlp()})
    assert bundle.read(target).signatures


def test_file_is_synced_before_it_is_renamed(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), sync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), rename(a, b))[1])
    os.chmod(target, 0o640)
    bundle.write(target, {"predict": mlp()})
    assert order == ["fsync", "replace", "fsync"]
    assert target.stat().st_mode & 0o777 == 0o640


def test_paths_that_cannot_be_written(target: Path) -> None:
    def refused(path: Any, text: str) -> None:
        with pytest.raises(MsedgeError, match=text):
            bundle.write(path, {"predict": mlp()})

    refused(target / "under", "is a file, not a folder")
    refused(target.parent / "none" / "m", "create the folder first")
    refused(target.parent, "that path is a folder")
    refused(target.parent / ("n" * 300), "shorter file name")
    refused("/dev/full", "expected a regular file")
    refused("a\0b", "cannot write")
    assert target.read_bytes() == b"before"


def test_links_are_followed(target: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("elsewhere") / "link"
    link.symlink_to(target)
    bundle.write(link, {"predict": mlp()})
    assert link.is_symlink()
    assert bundle.read(target).signatures


def test_a_real_full_disk(target: Path) -> None:
    """A file size limit of the system, which cuts the write short and then refuses the rest."""

    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "import sys; from lite_runtime import bundle, BundleError; from tests.fuzz.seeds import mlp\n"
        "try: bundle.write(sys.argv[1], {'predict': mlp()}, extra={'big': bytes(9000)})\n"
        "except BundleError as e: print(e)"
    )
    made = subprocess.run(
        [sys.executable, "-B", "-c", code, str(target)],  # -B: the limit would cut bytecode short as well
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "raise the file size limit" in made.stdout
    assert target.read_bytes() == b"before"


# -------------------------------------------------------------------------------------------------------------- costs


def test_reader_imports_little() -> None:
    """NumPy and the standard library, without what is slow to import."""
    code = (
        "import sys, numpy; before = set(sys.modules); import lite_runtime.bundle as b; "
        "b.read(sys.stdin.buffer.read()); print(*sorted(set(sys.modules) - before))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=seed_bundles()[1], capture_output=True, check=True
    )
    loaded = {name.partition(".")[0] for name in made.stdout.decode().split()}
    assert loaded <= set(sys.stdlib_module_names) | {
        "lite_runtime",
        "org",
    }  # "org": copy.py asks whether this is Jython
    assert not loaded & {"hashlib", "pickle", "inspect", "ml_dtypes"}


def test_strings_graph_reads_non_finite_attributes() -> None:
    read = bundle.read(bundle.write(None, {"predict": strings()})).signatures["predict"]
    assert next(n for n in read.nodes if n.op == "LeakyRelu").attrs["alpha"] == float("inf")


# ------------------------------------------------------------------------------------------------ small and compressed


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (["float32", [1], "AACAPw=="], ""),
        (["float32", [2], "AACAPw=="], "expected 8 bytes for float32"),
        (["float32", [1], "AACAP*=="], "expected base64"),
        (["float32", [1], "é"], "expected base64"),
        (["float32", [1], 3], "up to 64 bytes in base64"),
        (["float32", [17], "A" * 92], "up to 64 bytes in the manifest, got 69"),
        (["string", [1], "AAAAAA=="], "strings stored in a section"),
        (["float32", [1], "AACAPw==", 0], r"or \[dtype, shape, content\]"),
    ],
)
def test_small_arrays_are_stored_in_the_manifest(row: list[Any], text: str) -> None:
    data = bundle.write(None, {"s": constants_only(t=np.ones(1, np.float32))})
    assert bundle.read(data).tensors[0].offset == -1
    broken = changed(data, put(*TENSOR, value=row))
    if text:
        refuse(broken, text)
    else:
        np.testing.assert_array_equal(bundle.read(broken, thorough=True).signatures["s"].constants["t"], [1])


def test_a_compressed_manifest_is_one_whole_stream(good: bytes) -> None:
    manifest = next(c for n, c, _ in unpack(good) if n == "manifest")
    stream = zlib.compress(manifest, 1)
    assert bundle.read(with_manifest(good, stream)).signatures
    refuse(with_manifest(good, stream[:-1]), "a stream cut short")
    refuse(with_manifest(good, stream + b"x"), "a stream cut short, or bytes after its end")
    refuse(with_manifest(good, stream[:9] + b"\xff\xff\xff" + stream[12:]), "manifest")
    refuse(with_manifest(good, b"x" + manifest), "expected a zlib stream")
    refuse(with_manifest(good, zlib.compress(b" " * (1 << 20) + manifest)), "more than")


def test_repetitive_manifests_stay_within_the_readers_limit() -> None:
    graph = constants_only(t=np.ones(1, np.float32))
    data = bundle.write(None, {"s": graph}, metadata={"text": "a" * 10_000_000})
    assert len(bundle.read(data).metadata["text"]) == 10_000_000
