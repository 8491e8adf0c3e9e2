"""The tflite-shaped interface: the usual program runs unchanged, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lite_runtime import Interpreter, bundle
from lite_runtime.errors import InputError
from lite_runtime.graph import Graph, Node, Value


@pytest.fixture
def content() -> bytes:
    """y = x w for any number of rows."""
    graph = Graph(
        (Value("x", "float32", ("n", 2)),),
        (Value("y", "float32", ("n", 3)),),
        (Node("MatMul", ("x", "w"), ("y",)),),
        {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
    )
    return bundle.write(None, {"predict": graph})


def test_the_usual_program(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.mslite"
    path.write_bytes(content)
    interpreter = Interpreter(model_path=path, num_threads=2)
    interpreter.allocate_tensors()
    given, gives = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    assert given["shape"].tolist() == [1, 2] and given["shape_signature"].tolist() == [-1, 2]
    assert given["dtype"] is np.float32 and (given["name"], gives["name"]) == ("x", "y")
    interpreter.set_tensor(given["index"], np.ones((1, 2), np.float32))
    interpreter.invoke()
    assert interpreter.get_tensor(gives["index"]).tolist() == [[3, 5, 7]]


def test_resizing(content: bytes) -> None:
    interpreter = Interpreter(model_content=content)
    interpreter.resize_tensor_input(0, [4, 2], strict=True)
    interpreter.allocate_tensors()
    interpreter.tensor(0)()[...] = 1
    interpreter.invoke()
    assert interpreter.get_tensor(1).shape == (4, 3)
    assert interpreter.get_output_details()[0]["shape"].tolist() == [4, 3]
    with pytest.raises(InputError, match="fixed size"):
        interpreter.resize_tensor_input(0, [4, 5], strict=True)


def test_signature_runner(content: bytes) -> None:
    interpreter = Interpreter(model_content=content)
    assert interpreter.get_signature_list() == {"predict": {"inputs": ["x"], "outputs": ["y"]}}
    run = interpreter.get_signature_runner("predict")
    assert run(x=np.ones((2, 2), np.float32))["y"].shape == (2, 3)


def test_mistakes_are_named(content: bytes) -> None:
    with pytest.raises(InputError, match="either"):
        Interpreter()
    interpreter = Interpreter(model_content=content)
    with pytest.raises(InputError, match="allocate_tensors"):
        interpreter.invoke()
    interpreter.allocate_tensors()
    with pytest.raises(InputError, match="invoke"):
        interpreter.get_tensor(1)
    with pytest.raises(InputError, match="float64"):
        interpreter.set_tensor(0, np.ones((1, 2)))
    with pytest.raises(InputError, match="index"):
        interpreter.get_tensor(7)


def test_tensors_are_live(content: bytes) -> None:
    """`tensor` gives the memory that `invoke` reads and writes, `get_tensor` a copy."""
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    given = interpreter.tensor(0)()
    interpreter.invoke()
    gives, copy = interpreter.tensor(1)(), interpreter.get_tensor(1)
    given[...] = 1
    interpreter.invoke()
    assert gives.tolist() == [[3, 5, 7]] == interpreter.get_tensor(1).tolist() and copy.tolist() == [[0, 0, 0]]
    interpreter.allocate_tensors()
    with pytest.raises(InputError, match="invoke"):
        interpreter.get_tensor(1)


def test_results_with_sizes_known_only_at_run_time() -> None:
    nodes = (Node("NonZero", ("x",), ("i",)),)
    graph = Graph((Value("x", "float32", (4,)),), (Value("i", "int64", (1, None)),), nodes, {})
    interpreter = Interpreter(model_content=bundle.write(None, {"predict": graph}))
    interpreter.allocate_tensors()
    for n in (1, 3):
        interpreter.set_tensor(0, (np.arange(4) < n).astype(np.float32))
        interpreter.invoke()
        assert interpreter.get_tensor(1).tolist() == [list(range(n))]
        assert interpreter.get_output_details()[0]["shape"].tolist() == [1, n]


def test_other_tensors_than_inputs_cannot_be_set(content: bytes) -> None:
    interpreter = Interpreter(model_content=content)
    value = np.ones((1, 2), np.float32)
    with pytest.raises(InputError, match="allocate_tensors"):
        interpreter.set_tensor(0, value)
    interpreter.allocate_tensors()
    for index in (-1, 1, 9):
        with pytest.raises(InputError, match="input index below 1"):
            interpreter.set_tensor(index, value)
    with pytest.raises(InputError, match="tensor index below 2"):
        interpreter.get_tensor(-1)
