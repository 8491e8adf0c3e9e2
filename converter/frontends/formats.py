"""The formats of model files, as data: how each is recognised, and what reads it or which way leads round.

recognise(source)    the format of a path or of bytes, by content first and by suffix second; None if it may be ONNX
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from converter.errors import ConvertError

__all__ = ["FORMATS", "TFLITE", "Format", "by_suffix", "recognise", "refusal"]


@dataclass(frozen=True, slots=True)
class Format:
    """One format. `instead`: the way round, for a format that no module reads."""

    name: str
    suffixes: tuple[str, ...] = ()
    """What a path ends in; decides only where the content is not recognised and is not ONNX."""
    starts: tuple[tuple[int, bytes], ...] = ()
    """(offset, bytes): one that matches decides."""
    contains: bytes = b""
    """Bytes that must also occur in the first `HEAD`."""
    member: str = ""
    """The end of a name inside a zip archive, or of a path inside a folder, that decides."""
    folder: tuple[str, ...] = ()
    """Names of files inside a folder, of which one decides."""
    reader: str = ""
    """The module whose `load` reads it."""
    settings: tuple[str, ...] = ()
    """The settings of a conversion that `load` takes, by name."""
    by_path: bool = False
    """Whether `load` takes the path, because it maps the file or reads a folder; otherwise it takes bytes."""
    instead: str = ""


HEAD = 4096
TFLITE = "TensorFlow Lite"
_KERAS = 'in Python: keras.models.load_model(path).export("folder"), then convert the folder'
_MODULE = "converter.convert(module, examples={...})"
_EXPORT = "export the model to ONNX where it runs, and convert that"

FORMATS: tuple[Format, ...] = (
    Format(TFLITE, (".tflite", ".lite"), ((4, b"TFL3"),), reader="converter.frontends.tflite",
           settings=("integers",)),
    Format("GGUF", (".gguf",), ((0, b"GGUF"),), reader="converter.frontends.gguf", settings=("language",),
           by_path=True),
    Format("ORT format", (".ort",), ((4, b"ORTM"),), reader="converter.frontends.ort"),
    Format("XGBoost", (".ubj",), ((0, b'{"'), (0, b"{L"), (0, b"{i"), (0, b"{\n"), (0, b"{ ")), b"learner",
           reader="converter.frontends.trees.xgboost"),
    Format("LightGBM", (), ((0, b"tree\n"), (0, b"tree\r\n")), b"num_tree_per_iteration",
           reader="converter.frontends.trees.lightgbm"),
    Format("TensorFlow SavedModel", member="saved_model.pb", reader="converter.frontends.tensorflow", by_path=True),
    Format("Sentence Transformers folder", folder=("modules.json",), reader="converter.frontends.sentences",
           by_path=True),
    Format("ONNX language model", folder=("model.onnx", "genai_config.json"), reader="converter.frontends.exported",
           settings=("language",), by_path=True),
    Format("adapter of peft", folder=("adapter_config.json",),
           instead="it changes a model and is none: convert its model with --lora, then msedge adapter FOLDER "
           "model.mslite -o me.msstate"),
    Format("safetensors folder", folder=("config.json",), reader="converter.frontends.safetensors",
           settings=("language",), by_path=True),
    Format("torch.export program", (".pt2",), member="models/model.json", reader="converter.frontends.pt2"),
    Format("Keras file", (".keras",), member="model.weights.h5",
           instead=f"{_KERAS}; loading a Keras file can run code from it, so load only your own"),
    Format("HDF5 file", (".h5", ".hdf5"), ((0, b"\x89HDF"),),
           instead=f"{_KERAS}; a file of weights alone has no model in it"),
    Format("TorchScript archive", member="constants.pkl",
           instead=f"it has no graph that can be exported: from the module's source, {_MODULE}, or torch.export.save"),
    Format("PyTorch pickle", (".pt", ".pth", ".ckpt"), member="data.pkl",
           instead="it holds weights, or a pickled object that would run code when it is loaded: build the module in "
           f"Python, load_state_dict(torch.load(path, weights_only=True)), and {_MODULE}"),
    Format("Python pickle", (".pkl", ".pickle", ".joblib"), tuple((0, b"\x80" + bytes([v])) for v in (2, 3, 4, 5)),
           instead="loading a pickle runs code from it: load your own in Python and call converter.convert(estimator), "
           "or write it in its library's format (xgboost: save_model, lightgbm: booster_.save_model)"),
    Format("NumPy archive", (".npz",), member=".npy", instead="it holds arrays, no model"),
    Format("OpenVINO IR", (), ((0, b"<?xml"), (0, b"<net")), b"<net ",
           instead="convert the model that it was made from (ONNX, TensorFlow, PyTorch); nothing turns IR back"),
    Format("Core ML", (".mlmodel", ".mlpackage"), member="Manifest.json",
           instead="convert the model that it was made from (PyTorch, TensorFlow, scikit-learn)"),
    Format("NCNN", (".param",), ((0, b"7767517"),), instead="convert the ONNX or PyTorch model that it was made from"),
    Format("MNN", (".mnn",), instead="convert the ONNX or TensorFlow model that it was made from"),
    Format("PaddlePaddle", (".pdmodel", ".pdiparams", ".pdparams"),
           instead="pip install paddle2onnx, then paddle2onnx --model_dir DIR --model_filename inference.pdmodel "
           "--params_filename inference.pdiparams --save_file model.onnx, and convert that"),
    Format("safetensors", (".safetensors",),
           instead="it holds weights, no graph: of a language model, give the folder with its config.json; otherwise "
           f"build the module in Python, load_state_dict(safetensors.torch.load_file(path)), and {_MODULE}"),
    Format("TensorFlow.js", (), ((0, b"{"),), b'"modelTopology"',
           instead="pip install tensorflowjs, then tensorflowjs_converter --input_format=tfjs_layers_model "
           "--output_format=keras_saved_model model.json DIR, and convert the folder; better, convert the original"),
    Format("CatBoost", (".cbm",), ((0, b"CBM1"),),
           instead='in Python: model.save_model("model.onnx", format="onnx"), and convert that'),
    Format("Caffe", (".caffemodel", ".prototxt"), instead=_EXPORT),
    Format("Darknet", (".weights", ".cfg"), instead=_EXPORT),
    Format("TensorRT engine", (".engine", ".plan", ".trt"), instead="convert the ONNX model that it was built from"),
    Format("TensorFlow graph or checkpoint", (".pb", ".pbtxt", ".meta", ".index"),
           instead="save it as a SavedModel folder (tf.saved_model.save), and convert the folder"),
    Format("Git LFS pointer", (), ((0, b"version https://git-lfs"),), instead="run `git lfs pull`"),
    Format("gzip archive", (".gz", ".tgz"), ((0, b"\x1f\x8b"),), instead="unpack it first"),
    Format("HTML or XML text", (), ((0, b"<"),), instead="a failed download? download the model again"),
    Format("JSON text", (".json",), ((0, b"{"), (0, b"[")), instead="convert the model that it describes"),
)  # fmt: skip
"""In the order in which they are tried: the more special first."""


def recognise(source: str | os.PathLike[str] | bytes) -> Format | None:
    """The format that a source's content shows. Raises ConvertError for a folder of none."""
    if isinstance(source, bytes):
        return _of(source[:HEAD], BytesIO(source))
    path = Path(source)
    if path.is_dir():
        names = [item.name for item in path.iterdir()]
        held = next((known for known in FORMATS if any(name in names for name in known.folder)), None)
        return _with_member(names) or held or _folder(path)
    try:
        with open(path, "rb") as file:
            return _of(file.read(HEAD), file)
    except OSError:
        return None  # what opens it next says why


def _folder(path: Path) -> Format:
    found = by_suffix(path)
    if found is None:
        raise ConvertError(
            f"{path} is a folder without saved_model.pb, modules.json, config.json or model.onnx; give the model's "
            "file, or a folder with one of these"
        )
    return found


def _of(head: bytes, file: IO[bytes]) -> Format | None:
    if head.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(file) as archive:
                return _with_member(archive.namelist()) or Format("zip archive", instead="unpack it first")
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return Format("damaged zip archive", instead="download or save it again")
    text = head.lstrip() or head
    for known in FORMATS:
        matches = any(head.startswith(mark, at) or (not at and text.startswith(mark)) for at, mark in known.starts)
        if matches and known.contains in head:
            return known
    return None


def _with_member(names: list[str]) -> Format | None:
    return next((f for f in FORMATS if f.member and any(name.endswith(f.member) for name in names)), None)


def by_suffix(source: object) -> Format | None:
    """The format that a path's name stands for."""
    if not isinstance(source, str | os.PathLike):
        return None
    name = os.fspath(source).lower().rstrip("/")
    return next((known for known in FORMATS if name.endswith(known.suffixes)), None) if name else None


def refusal(found: Format, source: object) -> ConvertError:
    """The error for a format that no module reads: what it is, and the way round."""
    where = f"{source}: " if isinstance(source, str | os.PathLike) else ""
    return ConvertError(f"{where}expected a model that can be read, got {found.name}: {found.instead}")
