"""Bodies to requests: as tritonclient writes them, and what a request may leave out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES
from edge.gateway.protocol import request as module
from edge.gateway.protocol.request import Limits, Wanted, read
from lite_runtime.graph import Array, numpy_dtype
from tests.edge.gateway.protocol.support import NUMERIC, body, port, ports, read_binary, tensor

X = port("x", "FP32", ("n", 3))
FIND = ports([X], [port("y", "FP32", ("n", 2)), port("z", "INT64", ("n",))])


def generated(*given: tuple[str, str, Array, bool], **options: object) -> tuple[bytes, int | None]:
    """A body by tritonclient: name, datatype, array and whether binary of each input."""
    inputs = []
    for name, datatype, array, binary in given:
        inputs.append(InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    return InferenceServerClient.generate_request_body(inputs, **options)


def elements(datatype: str, *, nan: bool) -> st.SearchStrategy[Array]:
    shape = arrays.array_shapes(max_dims=3, max_side=4)
    if datatype == "BYTES":
        texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
        raw = st.binary(max_size=6) if nan else texts.map(str.encode)
        return shape.flatmap(lambda s: arrays.arrays(object, s, elements=raw))
    if datatype == "BF16":
        return shape.flatmap(lambda s: arrays.arrays(np.uint16, s)).map(lambda a: a.view(numpy_dtype("bfloat16")))
    dtype = numpy_dtype(DATATYPES[datatype])
    some = {"allow_nan": nan, "allow_infinity": nan} if dtype.kind == "f" else {}
    return shape.flatmap(lambda s: arrays.arrays(dtype, s, elements=arrays.from_dtype(dtype, **some)))


@given(st.data(), st.sampled_from(sorted(DATATYPES)), st.booleans(), st.sampled_from(["", "id", 'a "quoted" \\ id']))
def test_every_datatype_comes_back_as_tritonclient_sent_it(
    data: st.DataObject, datatype: str, binary: bool, name: str
) -> None:
    binary |= datatype == "BF16"
    array = data.draw(elements(datatype, nan=binary))
    find = ports([port("x", datatype, (None,) * array.ndim)], batched=False)
    request = read(*generated(("x", datatype, array, binary), request_id=name), find)
    got = request.inputs["x"]
    assert got.dtype == array.dtype and got.shape == array.shape and request.rows == 1 and request.id == name
    assert request.binary and request.wanted is None
    if datatype == "BYTES":
        assert [x if isinstance(x, bytes) else x.encode() for x in got.flat] == list(array.flat)
    else:
        assert got.tobytes() == array.tobytes() and got.flags.aligned


@given(st.data(), st.sampled_from([*NUMERIC, "BOOL"]))
def test_nested_data_are_flat_data(data: st.DataObject, datatype: str) -> None:
    array = data.draw(elements(datatype, nan=False))
    find = ports([port("x", datatype, (None,) * array.ndim)], batched=False)
    for values in (array.tolist(), array.ravel().tolist()):
        got = read(body(tensor("x", datatype, array.shape, values)), None, find).inputs["x"]
        assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", NUMERIC)
def test_long_data_are_what_short_data_are(datatype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long arrays are read by `protocol.numbers` if native code is available."""
    values = [i % 7 * (i % 3) for i in range(600)]
    find = ports([port("x", datatype, ("n", 30))])
    flat, nested = (
        body(tensor("x", datatype, (20, 30), v)) for v in (values, np.array(values).reshape(20, 30).tolist())
    )
    got = [read(text, None, find).inputs["x"] for text in (flat, nested)]
    monkeypatch.setattr(module, "cut", lambda body: None)
    plain = read(flat, None, find).inputs["x"]
    assert plain.tolist() == np.array(values).reshape(20, 30).tolist()
    assert all(a.dtype == plain.dtype and a.tobytes() == plain.tobytes() for a in got)


def test_long_data_at_another_place_of_the_document_are_read_too() -> None:
    values, find = list(range(300)), ports([port("x", "FP32", ("n", 30))])
    good = tensor("x", "FP32", (10, 30), values)
    assert read(body(good, data=values), None, find).inputs["x"][9, 29] == 299
    for wrong in (body({**good, "parameters": {"data": values}}), body(good, parameters={"data": values})):
        with pytest.raises(GatewayError, match="'data' to be a string"):
            read(wrong, None, find)
    with pytest.raises(GatewayError, match="JSON"):
        read(body(good)[:-1], None, find)


def test_json_and_binary_inputs_stand_side_by_side() -> None:
    one, two = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(4, dtype=np.float64).reshape(2, 2)
    text = np.array([b"a", "ü".encode()], object)
    find = ports([port("a", "INT32", ("n", 3)), port("b", "FP64", ("n", 2)), port("c", "BYTES", ("n",))])
    given = [("c", "BYTES", text, True), ("a", "INT32", one, False), ("b", "FP64", two, True)]
    request = read(*generated(*given), find)
    assert request.rows == 2 and list(request.inputs) == ["c", "a", "b"]
    assert (request.inputs["a"] == one).all() and (request.inputs["b"] == two).all()
    assert request.inputs["c"].tolist() == [b"a", "ü".encode()]


def test_long_data_and_binary_data_side_by_side() -> None:
    long, short = np.arange(900, dtype=np.int32).reshape(3, 300), np.array([True, False, True])
    find = ports([port("a", "INT32", ("n", 300)), port("b", "BOOL", ("n",))])
    request = read(*generated(("a", "INT32", long, False), ("b", "BOOL", short, True)), find)
    assert (request.inputs["a"] == long).all() and (request.inputs["b"] == short).all()


def test_outputs_and_parameters_as_tritonclient_writes_them() -> None:
    outputs = [InferRequestedOutput("z", binary_data=False), InferRequestedOutput("y", class_count=2)]
    text = generated(
        ("x", "FP32", np.ones((4, 3), np.float32), True),
        outputs=outputs, priority=3, timeout=2500, parameters={"device": "d1", "share": 0.5},
    )  # fmt: skip
    request = read(*text, FIND)
    assert request.wanted == (Wanted("z", False, 0), Wanted("y", True, 2)) and not request.binary and request.rows == 4
    assert request.parameters == {"priority": 3, "timeout": 2500, "device": "d1", "share": 0.5}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_any_buffer(kind: type) -> None:
    header = body(tensor("x", "FP32", (1, 3), binary_data_size=12))
    x = np.array([[1, 2, 3]], np.float32)
    assert (read(kind(header + x.tobytes()), len(header), FIND).inputs["x"] == x).all()
    assert (read(kind(body(tensor("x", "FP32", (1, 3), [1, 2, 3]))), None, FIND).inputs["x"] == x).all()
    assert (read(kind(x.tobytes()), 0, FIND).inputs["x"] == x).all()


def test_aligned_binary_data_are_not_copied() -> None:
    header = body(tensor("x", "FP32", (1, 3), binary_data_size=12))
    header += b" " * (-len(header) % 64)
    whole = bytearray(header + np.ones(3, np.float32).tobytes())
    got = read(whole, len(header), FIND).inputs["x"]
    whole[len(header) :] = bytes(12)
    assert (got == 0).all()


def test_a_header_that_came_before_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    header = body(tensor("x", "FP32", (1, 3), binary_data_size=12), parameters={"once": 1})
    for _ in range(2):
        got = read_binary(header, np.arange(3, dtype=np.float32).tobytes(), FIND)
        assert got.inputs["x"].tolist() == [[0, 1, 2]] and got.parameters == {"once": 1}
        monkeypatch.setattr(module, "layout_of", None)
    monkeypatch.undo()
    with pytest.raises(GatewayError, match="INT64"):
        read_binary(header, bytes(12), ports([port("x", "INT64", ("n", 3))]))
    with pytest.raises(GatewayError, match="11 follow"):
        read_binary(header, bytes(11), FIND)


def test_a_raw_body_is_the_one_input() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    request = read(x.tobytes(), 0, FIND)
    assert request.rows == 4 and request.binary and (request.inputs["x"] == x).all()
    fixed = ports([port("x", "UINT8", (2, 2))], batched=False)
    assert read(b"abcd", 0, fixed).inputs["x"].tolist() == [[97, 98], [99, 100]]
    image = ports([port("x", "BYTES", ("n",))])
    assert read(b"\x89PNG\0\0", 0, image).inputs["x"].tolist() == [b"\x89PNG\0\0"]


def test_nul_bytes_at_the_end_of_an_element_stay() -> None:
    find = ports([port("x", "BYTES", ("n",))])
    array = np.array([b"a\0\0", b"", b"\0"], object)
    assert read(*generated(("x", "BYTES", array, True)), find).inputs["x"].tolist() == array.tolist()


def test_a_boolean_is_true_where_its_byte_is_not_zero() -> None:
    header = body(tensor("x", "BOOL", (4,), binary_data_size=4))
    got = read_binary(header, bytes([0, 1, 2, 255]), ports([port("x", "BOOL", ("n",))])).inputs["x"]
    assert got.view(np.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        ("INT8", -128.0, -128),
        ("INT64", 2**63 - 1, 2**63 - 1),
        ("UINT64", 2**64 - 1, 2**64 - 1),
        ("INT32", 1e3, 1000),
        ("FP32", 1e-60, 0.0),
        ("FP32", 2**64 - 1, 2.0**64),
        ("FP16", 65504, 65504.0),
        ("FP64", 1e308, 1e308),
        ("FP32", 0.1, float(np.float32(0.1))),
    ],
)
def test_numbers_that_fit(datatype: str, value: float, expected: float) -> None:
    find = ports([port("x", datatype, ("n",))])
    assert read(body(tensor("x", datatype, (1,), [value])), None, find).inputs["x"].item() == expected


def test_minus_zero_keeps_its_sign() -> None:
    got = read(b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[-0.0,-0,0]}]}', None, FIND)
    assert np.signbit(got.inputs["x"]).tolist() == [[True, False, False]]


def test_an_input_may_have_no_elements_where_its_shape_allows() -> None:
    find = ports([port("x", "FP32", ("n", None))])
    assert read(body(tensor("x", "FP32", (2, 0), [])), None, find).inputs["x"].shape == (2, 0)
    assert read(body(tensor("x", "FP32", (2, 0), [[], []])), None, find).inputs["x"].shape == (2, 0)
    assert read_binary(body(tensor("x", "FP32", (2, 0), binary_data_size=0)), b"", find).inputs["x"].shape == (2, 0)
    scalar = ports([port("x", "FP32", ())], batched=False)
    assert read(body(tensor("x", "FP32", (), [2])), None, scalar).inputs["x"].item() == 2


def test_limits() -> None:
    text = body(tensor("x", "BYTES", (3,), ["a"] * 3))
    find = ports([port("x", "BYTES", ("n",))])
    assert read(text, None, find, Limits(json=len(text), strings=3)).rows == 3
    for limits in (Limits(json=len(text) - 1), Limits(strings=2)):
        with pytest.raises(GatewayError) as caught:
            read(text, None, find, limits)
        assert caught.value.status == 413


def test_another_signature_is_requested_by_its_name() -> None:
    with pytest.raises(GatewayError, match="no signature 'other'") as caught:
        read(body(tensor("x", "FP32", (1, 3), [1, 2, 3]), parameters={"signature": "other"}), None, FIND)
    assert caught.value.status == 404


def test_json_as_other_clients_write_it() -> None:
    """Spaces, unknown fields, escapes in names, null for what is left out."""
    text = json.dumps(
        {"inputs": [{**tensor("x", "FP32", (1, 3), [[1, 2, 3]]), "more": 1}], "outputs": None, "user": {"a": []}},
        indent=2,
    ).replace('"x"', '"\\u0078"')
    assert read(text.encode(), None, FIND).inputs["x"].tolist() == [[1, 2, 3]]
