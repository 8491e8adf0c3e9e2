"""docs/serving.md as written: its commands work, its tables are true; and the programs in examples/serving run."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import msedge
from edge.cli.app import app
from edge.gateway.cache import Figures
from edge.gateway.models.config import _File, parse_config
from edge.gateway.operate.metrics import Gauges, families
from edge.gateway.operate.settings import Settings
from edge.gateway.operate.sources import entries, resolve
from edge.gateway.operate.statistics import Statistics
from edge.gateway.sources.credentials import Credentials
from lite_runtime.bundle import processing
from tests.edge.gateway.live import Live, bundle_of, live

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")
PICTURES = """
[[inputs]]
name = "image"
feeds = "input"
steps = [{step = "image"}, {step = "resize", size = 8}, {step = "normalize", scale = 0.004}, {step = "channels_first"}]
[[outputs]]
names = ["probabilities", "labels"]
of = "logits"
steps = [{step = "softmax"}, {step = "top_k", k = 2, labels = ["cat", "dog", "neither"]}]
"""


def section(title: str) -> str:
    """What stands under a heading, up to the next of its rank."""
    found = re.search(rf"(?ms)^(##+) {re.escape(title)}\n(.*?)(?=^## |^\1 |\Z)", PAGE)
    assert found is not None, title
    return found[2]


def blocks(text: str, kind: str = "") -> list[str]:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", text)


def dense(path: Path) -> Path:
    """The model that the page's examples ask: x [batch, 4] to scores [batch, 3]."""
    ends = {"x": 4, "scores": 3}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", size]) for n, size in ends.items())
    weights = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    return bundle_of(path, helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["scores"])], "m", [x], [y],
                                             [weights]))  # fmt: skip


def seeing(folder: Path) -> Path:
    """A model that takes pictures."""
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 8, 8])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])
    nodes = [helper.make_node("GlobalAveragePool", ["input"], ["mean"]),
             helper.make_node("Flatten", ["mean"], ["logits"])]  # fmt: skip
    model = helper.make_model(helper.make_graph(nodes, "s", [x], [y]),
                              opset_imports=[helper.make_opsetid("", 20)], ir_version=10)  # fmt: skip
    onnx.save(model, folder / "seeing.onnx")
    (folder / "processing.toml").write_text(PICTURES)
    msedge.convert(folder / "seeing.onnx", output=folder / "seeing.mslite",
                   processing=processing.load(folder / "processing.toml"))  # fmt: skip
    return folder / "seeing.mslite"


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cat.jpg and dog.png, in the working folder."""
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("cat.jpg", (250, 0, 0)), ("dog.png", (0, 250, 0))):
        image.new("RGB", (20, 16), colour).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("newcomer")
    with live({"model": dense(folder / "model.mslite"), "mobilenet": seeing(folder)}) as there:
        yield there


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / "serving" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# -- what is printed, as it is printed ---------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_answers(gateway: Live, tmp_path: Path) -> None:
    np.ones(4, np.float32).tofile(tmp_path / "x.bin")
    (block,) = (one for one in blocks(section("Asking")) if "curl" in one)
    commands = re.sub(r"\\\n", " ", block).replace("localhost:8000", f"127.0.0.1:{gateway.port}").splitlines()
    assert len(commands) == 3
    replies = [
        subprocess.run([*shlex.split(line, comments=True), "-sS", "-w", "\n%{http_code}"], cwd=tmp_path,
                       capture_output=True, text=True, timeout=300).stdout
        for line in commands
    ]  # fmt: skip
    assert [reply.rpartition("\n")[2] for reply in replies] == ["200"] * 3, replies
    assert '"shape":[-1,4]' in replies[0] and '"scores"' in replies[1]
    scores = np.frombuffer((tmp_path / "scores.bin").read_bytes()[-12:], np.float32)
    np.testing.assert_array_equal(scores, [18, 22, 26])


def test_python_gets_answers(gateway: Live) -> None:
    pytest.importorskip("tritonclient.http")
    found = blocks(section("Asking"), "python")
    assert len(found) == 2
    for text in found:
        exec(text.replace("localhost:8000", f"127.0.0.1:{gateway.port}"), {})


def test_pictures_get_answers(gateway: Live, pictures: Path) -> None:
    pytest.importorskip("tritonclient.http")
    page = (ROOT / "docs" / "processing.md").read_text("utf-8")
    (text,) = (block for block in blocks(page, "python") if "tritonclient" in block)
    found: dict[str, Any] = {}
    exec(text.replace("127.0.0.1:8000", f"127.0.0.1:{gateway.port}"), found)
    labels = found["client"].infer("mobilenet", [found["image"]]).as_numpy("labels")
    assert [row[0] for row in labels] == [b"cat", b"dog"]


def test_examples_run(gateway: Live, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program("ask").main(gateway.address, "model", "phone-17")
    assert "scores: float32 [1, 3] [0. 0. 0.]\nanswered by global" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="'nobody' is not ready"):
        program("ask").main(gateway.address, "nobody")
    with pytest.raises(SystemExit, match=r"camera\.py"):
        program("ask").main(gateway.address, "mobilenet")
    program("camera").main(gateway.address, "mobilenet", "cat.jpg", "dog.png")
    shown = capsys.readouterr().out
    assert "labels: cat, " in shown and "labels: dog, " in shown
    pytest.importorskip("tritonclient.http")
    program("triton").main(gateway.address.removeprefix("http://"), "model")
    shown = capsys.readouterr().out
    assert "request-3 {'scores': [1, 3]}" in shown and "batches so far" in shown


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "serving").glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < 40


# -- what is listed ----------------------------------------------------------------------------------------------------


def value_of(settings: Settings, name: str) -> object:
    """A setting by its place in the tree."""
    here: object = settings
    for part in name.split("."):
        here = getattr(here, part)
    return here


def test_every_setting_is_listed_with_its_default() -> None:
    listed: dict[str, str] = {}
    for row in re.findall(r"(?m)^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \| (.*?) \|", section("Settings")):
        names, values = re.findall(r"`([^`]+)`", row[0]), row[1].split(", ")
        listed |= dict(zip(names, values, strict=True))
    assert list(listed) == list(entries())
    sizes = {64 << 20: "64 MiB", 256 << 20: "256 MiB", 1 << 30: "1 GiB", 16 << 30: "16 GiB"}
    for name, told in listed.items():
        value = value_of(Settings(), name)
        if value in ("", ()):
            expected = "none"
        elif isinstance(value, str):
            expected = f"`{value}`"
        else:
            expected = sizes.get(value, f"{value:g}") if isinstance(value, int | float) else str(value)
        assert told == expected, name


def test_files_on_the_page_can_be_read(tmp_path: Path) -> None:
    (settings,) = blocks(section("Settings"), "toml")
    (tmp_path / "msedge.toml").write_text(settings)
    found = resolve({}, {}, folder=tmp_path)
    assert found.port == 9000 and found.models == (str(tmp_path / "models"),) and found.limits.body == 8 << 20
    config, credentials = blocks(section("Models"), "toml")[:2]
    (tmp_path / "credentials.toml").write_text(credentials)
    assert Credentials.of_file(tmp_path / "credentials.toml").at("registry.example").token_file
    told = tomllib.loads(config)
    parse_config(told, "config.toml")
    assert set(told) == set(_File.__struct_fields__)


def test_flags_and_metrics_on_the_page_are_there() -> None:
    known = {entry.flag for entry in entries().values()} | {"--port", "--config", "--print-config", "--json"}
    known |= {"--scope", "--days", "--tokens", "--keep", "--processing"}
    for block in blocks(PAGE):
        for line in block.splitlines():
            if line.startswith("msedge "):
                assert {w.partition("=")[0] for w in shlex.split(line, comments=True) if w.startswith("--")} <= known
    given = {field.name: 0 if field.type in ("int", "float") else {} for field in dataclasses.fields(Gauges)}
    gauges = Gauges(**{**given, "cache": Figures(0, 1, 0, 0)})  # type: ignore[arg-type]
    shown = {family.name for family in families(Statistics(), gauges)}
    named = set(re.findall(r"`((?:nv|msedge)_[a-z_]+)`", section("Operation")))
    assert named == {name for name in shown if name.startswith(("nv_", "msedge_"))}


def test_headings_that_are_linked_exist() -> None:
    titles = re.findall(r"(?m)^##+ (.*)", PAGE)
    there = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([a-z0-9-]+)\)", PAGE)) <= there
    for path in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert path.startswith("http") or (ROOT / "docs" / path).exists(), path


def test_tokens_are_made_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = "".join(blocks(section("Security"))).splitlines()
    lines = [line for line in commands if line.startswith("msedge token")]
    assert len(lines) == 4
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, done.output
