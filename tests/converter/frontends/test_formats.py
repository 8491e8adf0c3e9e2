"""Files of every format: read, or refused with the way round."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from converter import ConvertError, convert
from converter.frontends import FORMATS, format_of, objects
from converter.frontends.formats import by_suffix


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return made.getvalue()


CONTENTS = {
    "Keras file": archive("metadata.json", "config.json", "model.weights.h5"),
    "HDF5 file": b"\x89HDF\r\n\x1a\n",
    "TorchScript archive": archive("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"),
    "PyTorch pickle": archive("m/data.pkl", "m/data/0"),
    "Python pickle": b"\x80\x04\x95\x00",
    "NumPy archive": archive("x.npy"),
    "OpenVINO IR": b'<?xml version="1.0"?>\n<net name="m" version="11">',
    "NCNN": b"7767517\n75 83\n",
    "TensorFlow.js": b'{"format": "layers-model", "modelTopology": {}}',
    "CatBoost": b"CBM1\0\0",
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "gzip archive": b"\x1f\x8b\x08",
    "HTML or XML text": b"<!doctype html><html>",
    "JSON text": b'{"a": 1}',
    "zip archive": archive("readme.txt"),
    "damaged zip archive": archive("x.npy")[:30],
}


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_are_recognised_and_refused_with_the_way_round(name: str, tmp_path: Path) -> None:
    for source in (CONTENTS[name], tmp_path / "model.onnx"):
        if isinstance(source, Path):
            source.write_bytes(CONTENTS[name])
        found = format_of(source)
        assert found is not None and found.name == name and not found.reader and found.instead
        with pytest.raises(ConvertError, match=f"got {name}: ") as caught:
            convert(source)
        assert found.instead in str(caught.value) and "\n" not in str(caught.value)


NAMED = [(known.name, suffix) for known in FORMATS for suffix in known.suffixes if not known.reader]


@pytest.mark.parametrize(("name", "suffix"), NAMED)
def test_suffixes_decide_for_contents_that_are_no_model(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"Model{suffix.upper()}"
    path.write_bytes(b"\x08\x07\x12")
    with pytest.raises(ConvertError, match=f"got {name}: "):
        convert(path)


def test_onnx_files_of_any_name_are_read(tmp_path: Path, relu: bytes) -> None:
    for name in ("model.pb", "model.bin", "model.pt", "model"):
        (tmp_path / name).write_bytes(relu)
        assert convert(tmp_path / name).report.source_format == "ONNX"


def test_folders_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="without saved_model"):
        convert(tmp_path)
    package = tmp_path / "m.mlpackage"
    package.mkdir()
    with pytest.raises(ConvertError, match="got Core ML"):
        convert(package)


def test_the_table_has_one_row_for_a_name_and_for_a_suffix() -> None:
    suffixes = [suffix for known in FORMATS for suffix in known.suffixes]
    assert len(set(suffixes)) == len(suffixes) and len({known.name for known in FORMATS}) == len(FORMATS)
    assert all(bool(known.reader) != bool(known.instead) for known in FORMATS)
    assert all(known.suffixes or known.starts or known.member or known.folder for known in FORMATS)
    assert by_suffix("a/M.SafeTensors") is not None and by_suffix("a/m.onnx") is None and by_suffix("") is None


def test_the_page_lists_every_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sources.md").read_text("utf-8")
    assert [known.name for known in FORMATS if f"| {known.name} |" not in page] == []


def test_objects_of_no_library_and_examples_without_an_object_are_refused(relu: bytes) -> None:
    with pytest.raises(ConvertError, match=r"expected a path, bytes, .* got int"):
        convert(3)
    with pytest.raises(ConvertError, match="examples: only Python objects"):
        convert(relu, examples=np.zeros(1))


def test_subclasses_are_read_by_what_reads_their_base() -> None:
    base = type("XGBModel", (), {"__module__": "xgboost.sklearn"})
    assert objects.reader_of(type("Mine", (base,), {})()) is objects.OBJECTS["xgboost", "XGBModel"]
    assert objects.reader_of(object()) is None


def test_a_saved_model_needs_tensorflow_and_tf2onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converter.frontends import tensorflow

    (tmp_path / "saved_model.pb").write_bytes(b"")
    monkeypatch.setattr(tensorflow.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConvertError, match=r"pip install tensorflow tf2onnx.*python -m tf2onnx\.convert"):
        convert(tmp_path)


def test_json_of_xgboost_is_not_mistaken() -> None:
    with pytest.raises(ConvertError, match="XGBoost: expected"):
        convert(json.dumps({"learner": {}}).encode())


@pytest.fixture
def relu() -> bytes:
    import onnx
    from onnx import helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", 1, [2])], [value("y", 1, [2])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert isinstance(made, onnx.ModelProto)
    return bytes(made.SerializeToString())
