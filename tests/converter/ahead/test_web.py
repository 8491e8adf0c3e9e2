"""The JavaScript for pages as pages use it: as a package of npm, with types, with state files, and in Chromium under a
strict Content-Security-Policy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from benchmarks.browser.chromium import Chromium, Page, found
from benchmarks.browser.site import Site, serving
from converter.ahead import build, building
from converter.ahead.wasm_link import link
from lite_runtime.bundle.layout import REQUIRED, STATE
from lite_runtime.bundle.writing import assemble
from lite_runtime.errors import MsedgeError
from lite_runtime.native.codegen import retarget
from lite_runtime.native.target import host
from lite_runtime.targets import WASM_PARTS, named
from tests.converter.ahead import models, node
from tests.lite_runtime.native import operations

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
ROOT = Path(__file__).parents[3]
POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models: one that trains, and one of int8 for several threads."""
    made = tmp_path_factory.mktemp("web")
    (made / "train.mslite").write_bytes(models.trainable())
    build(made / "train.mslite", made / "train", signatures=["predict", "train_step"], shapes={"x": (4, 2, 5, 4)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "worth", lambda steps, most: 2)
        build(models.int8_convnet(), made / "int8")
    (made / "page.html").write_text("<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>")
    return made


# -- the package ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("npm") / "runtime"
    subprocess.run([sys.executable, str(ROOT / "wheels/npm.py"), str(made)], check=True, capture_output=True)
    return made


@node.needs_node
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_the_package_installs_and_runs_several_models(package: Path, folder: Path, tmp_path: Path) -> None:
    npm = [str(shutil.which("npm")), "--offline", "--no-audit", "--no-fund", "--silent"]
    told = subprocess.run(
        [*npm, "pack", "--json", str(package)], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    [packed] = json.loads(told.stdout) if told.stdout.startswith("[") else json.loads(told.stdout).values()
    (tmp_path / "app").mkdir()
    (tmp_path / "app/package.json").write_text('{"private": true, "type": "module"}')
    subprocess.run([*npm, "install", str(tmp_path / packed["filename"])], cwd=tmp_path / "app", check=True)
    (tmp_path / "app/main.js").write_text(
        'import { load } from "@msedge/runtime";\n'
        "const [, , ...folders] = process.argv, models = await Promise.all(folders.map((folder) => load(folder)));\n"
        "console.log(JSON.stringify(models.map((model) => model.selfTest().length)));\n"
    )
    command = [str(node.NODE), *node.OPTIONS, "main.js", str(folder / "train"), str(folder / "int8")]
    ran = subprocess.run(command, cwd=tmp_path / "app", check=True, capture_output=True, text=True)
    assert json.loads(ran.stdout) == [2, 1]


def compiler() -> list[str]:
    """TypeScript's compiler, installed or in npm's cache; empty if there is none."""
    if tsc := shutil.which("tsc"):
        return [tsc]
    npx = shutil.which("npx")
    command = [str(npx), "--offline", "--yes", "--package=typescript", "tsc"]
    there = npx and subprocess.run([*command, "--version"], capture_output=True).returncode == 0
    return command if there else []


RIGHT = """
import { load, MsedgeError, type Compared, type Progress } from "./msedge.mjs";
import { camera, record, type Recording } from "./msedge-media.mjs";
const onProgress = ({ file, loaded, total }: Progress) => console.log(file, loaded, total ?? 0);
const model = await load({ threads: 2, onProgress });
const x = new Float32Array(160), { y }: { y: Float32Array } = PREDICT;
const { loss } = model.run({ x, target: TARGET }, "train_step");
const state = model.state(), bytes: Uint8Array = await model.stateFile(), rows: Compared[] = model.selfTest();
model.setState({ ...state });
await model.loadStateFile(bytes);
const there: boolean = await model.loadState();
const { x: fed }: { x: Float32Array } = await model.prepare({ x: new ImageData(4, 4) });
const stop: () => void = await camera(document.createElement("video"), { facing: "user" });
const heard: Recording = await record({ seconds: 2, onLevel: (level: number) => console.log(level) });
await model.prepare({ x: [heard, { samples: [x, x], rate: 16000 }] });
await model.prepare({ x: new OfflineAudioContext(1, 1, 16000).createBuffer(1, 1, 16000) });
console.log(loss[0], y.length, rows.length, there, fed, stop, model.kernels, model.threads, MsedgeError);
"""
WRONG = {
    "model.run({ x: new Int8Array(160) })": "Float32Array",
    'model.run({ x }, "other")': '"other"',
    "model.setState({ other: x })": "other",
    'await load({ threads: "two" })': "threads",
}


def test_types_are_those_of_the_model(folder: Path, package: Path, tmp_path: Path) -> None:
    command = compiler()
    if not command:
        pytest.skip("no TypeScript in npm's cache")
    signatures = node_ports(folder / "train")
    target = signatures["train_step"]["inputs"][1]
    output = signatures["predict"]["outputs"][0]["name"]
    kind = {"int64": "BigInt64Array", "int32": "Int32Array", "float32": "Float32Array"}[target["dtype"]]
    right = RIGHT.replace("target: TARGET", f"{json.dumps(target['name'])}: new {kind}(4)")
    right = right.replace(
        "{ y }: { y: Float32Array } = PREDICT", f"y: Float32Array = model.run({{ x }})[{json.dumps(output)}]"
    )
    options = [
        "--noEmit",
        "--strict",
        "--target",
        "es2023",
        "--module",
        "nodenext",
        "--lib",
        "es2023,dom",
        "--types",
        "",
    ]
    shutil.copytree(folder / "train", tmp_path / "train")
    (tmp_path / "train/right.mts").write_text(right)
    wrong = "".join(f"{line};\n" for line in WRONG)
    head = [*right.splitlines()[1:2], "const model = await load();"]
    (tmp_path / "train/wrong.mts").write_text("\n".join([*head, "const x = new Float32Array(160);", wrong]))
    done = subprocess.run([*command, *options, "train/right.mts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    done = subprocess.run([*command, *options, "train/wrong.mts"], cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("train/wrong.mts(")]
    assert [int(line.partition("(")[2].partition(",")[0]) - 4 for line in lines] == [0, 1, 2, 3], done.stdout
    shutil.copytree(package, tmp_path / "runtime")
    (tmp_path / "runtime/any.mts").write_text(
        'import { load } from "./msedge.mjs";\nconst model = await load("folder/", { threads: 1 });\n'
        'const out = model.run({ x: new Float32Array(3) }, "predict");\nmodel.setState({ w: new Int8Array(2) });\n'
        "console.log(out.y.length);\n"
    )
    done = subprocess.run([*command, *options, "runtime/any.mts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def node_ports(folder: Path) -> Any:
    return node.run(folder).answer["signatures"]


# -- state files ------------------------------------------------------------------------------------------------------


@node.needs_node
def test_state_goes_from_python_to_a_page_and_back(folder: Path, tmp_path: Path) -> None:
    """Python writes it, JavaScript reads it, trains and writes, Python reads: the same arrays each time."""
    model = lite_runtime.load(folder / "train.mslite")
    rng = np.random.default_rng(4)
    model.load_state_dict({n: rng.standard_normal(a.shape).astype(a.dtype) for n, a in model.state_dict().items()})
    wanted = model.state_dict()
    model.save_state(tmp_path / "python.msstate")
    told = node.ask(folder / "train", "state", str(tmp_path / "python.msstate"), str(tmp_path / "page.msstate"))
    assert told == {"names": sorted(wanted), "same": True}
    model.reset_state()
    model.load_state(tmp_path / "page.msstate")
    assert {n: a.tobytes() for n, a in model.state_dict().items()} == {n: a.tobytes() for n, a in wanted.items()}


@node.needs_node
def test_the_first_state_has_zeros_that_are_not_stored(folder: Path, tmp_path: Path) -> None:
    model = lite_runtime.load(folder / "train.mslite")
    model.save_state(tmp_path / "python.msstate")
    told = node.ask(folder / "train", "state", str(tmp_path / "python.msstate"), str(tmp_path / "page.msstate"))
    assert told["same"]
    model.load_state(tmp_path / "page.msstate")


@node.needs_node
def test_damaged_state_files_are_refused(folder: Path, tmp_path: Path) -> None:
    lite_runtime.load(folder / "train.mslite").save_state(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    rng = np.random.default_rng(6)
    files = [b"", whole[:63], whole[:-1], whole + b"\0", b"\x89MSLITE\n" + whole[8:]]
    for at in [*range(0, 256), *rng.integers(256, len(whole), 60).tolist()]:
        data = bytearray(whole)
        data[at] ^= 1 << int(rng.integers(8))
        files.append(bytes(data))
    found_ = node.many(folder / "train", "states", files, tmp_path)
    assert len(found_) == len(files)
    quiet = [i for i, text in enumerate(found_) if not text.startswith("MsedgeError: state file: expected ")]
    padding = {at for at in range(5, len(files)) if files[at] != whole and found_[at] == ""}
    assert set(quiet) <= padding and len(padding) <= 12, [(i, found_[i]) for i in quiet]


@node.needs_node
def test_state_files_with_right_digests_and_wrong_contents_are_refused(folder: Path, tmp_path: Path) -> None:
    wide = {"w": ["float32", [2**40]]}
    manifests: list[tuple[object, str]] = [
        ([], "a manifest with state and tensors"),
        ({"state": [], "tensors": []}, "a manifest with state and tensors"),
        ({"state": {"w": "length"}, "tensors": [[]]}, "a tensor for w"),
        ({"state": {"w": 1}, "tensors": [["float32", [1], "AAAAAA=="]]}, "a tensor for w"),
        ({"state": {"w": 0}, "tensors": [["text", [1], "AAAA"]]}, "w with a dtype and a shape"),
        ({"state": {"w": 0}, "tensors": [["float32", [-1], "AAAA"]]}, "w with a dtype and a shape"),
        ({"state": {"w": 0}, "tensors": [["float32", [1], "?"]]}, "w in base64"),
        ({"state": {"w": 0}, "tensors": [["float32", [1], "AAAA"]]}, "4 bytes of w"),
        ({"state": {"w": 0}, "tensors": [["float32", [1], 0, 4, "00"]]}, "w within the weights"),
        ({"state": wide, "tensors": []}, "w of at most 4 GiB"),
        ({"state": {"w": ["float32", [2**20]]}, "tensors": []}, "w with room for its zeros"),
    ]
    files = [
        assemble([("manifest", json.dumps(each).encode(), REQUIRED), ("weights", b"", REQUIRED)], STATE)
        for each, _ in manifests
    ]
    files.append(assemble([("weights", b"", REQUIRED)], STATE))
    files.append(assemble([("manifest", zlib.compress(bytes(1 << 26)), REQUIRED), ("weights", b"", REQUIRED)], STATE))
    parts = [*(part for _, part in manifests), "a section manifest", "a manifest of JSON"]
    for part, text in zip(parts, node.many(folder / "train", "states", files, tmp_path), strict=True):
        assert text.startswith(f"MsedgeError: state file: expected {part}"), text


# -- in Chromium ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if not found():
        pytest.skip("no Chromium")
    with Chromium() as started:
        yield started


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    with serving({"web": folder}, {}, policy=POLICY) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Chromium, site: Site) -> Iterator[Page]:
    with browser.page(f"{site.origin}/web/page.html") as opened:
        yield opened


def test_a_page_under_a_strict_policy_runs_and_trains(page: Page) -> None:
    told = page.evaluate("""(async () => {
        const { load } = await import("./train/msedge.mjs"), seen = [];
        const model = await load({ onProgress: ({ file, loaded, total }) => seen.push([file, loaded === total]) });
        const rows = model.selfTest(), step = model.sampleInputs("train_step"), losses = [];
        for (let i = 0; i < 20; i += 1) losses.push(model.run(step, "train_step").loss[0]);
        return { rows: rows.length, losses, seen: seen.at(-1), first: seen[0][0] };
    })()""")
    assert told["rows"] >= 2 and told["losses"][-1] < told["losses"][0]
    assert told["first"] == "model.msflat" and told["seen"] == ["kernels.wasm", True]
    assert "EvalError" in page.evaluate(
        "(() => { try { return `${new Function('1')}`; } catch (e) { return e.name; } })()"
    )


def test_threads_and_relaxed_instructions_give_the_same_bits_in_a_page(page: Page, folder: Path) -> None:
    told = page.evaluate("""(async () => {
        const { load } = await import("./int8/msedge.mjs"), { sumsBytes } = await import("./int8/msedge-engine.mjs");
        const kinds = [{ threads: 1, relaxed: false }, { threads: 1 }, { threads: 2, relaxed: false }, { threads: 2 }];
        const models = await Promise.all(kinds.map((kind) => load(kind)));
        const inputs = models[0].sampleInputs(), texts = models.map((model) => {
            const run = () => Object.values(model.run(inputs)).map((array) => `${array}`).join();
            return [...new Set(Array.from({ length: 12 }, run))];
        });
        for (const model of models) model.close();
        const kernels = models.map((model) => model.kernels);
        return { kernels, texts, sums: await sumsBytes(), isolated: crossOriginIsolated };
    })()""")
    more = "-relaxed" if told["sums"] else ""
    assert told["isolated"]
    assert told["kernels"] == [
        "kernels.wasm",
        f"kernels{more}.wasm",
        "kernels-threads.wasm",
        f"kernels{more}-threads.wasm",
    ]
    assert told["texts"] == [told["texts"][0]] * 4 and len(told["texts"][0]) == 1


def test_the_relaxed_sum_of_bytes_is_exact_for_seven_bits(page: Page, folder: Path) -> None:
    """On every engine; with eight bits too where `sumsBytes` says so."""
    target = named("wasm32-relaxed", WASM_PARTS)
    made, _ = retarget.object_of(operations.bitcode("dot", target.lanes), target, "test")
    (folder / "dot.wasm").write_bytes(link({"test": made}, [], {"run": "test.run"}))
    (so_far, a, w), exact = operations.rows("dot", target.lanes)
    sums = page.evaluate("import('./int8/msedge-engine.mjs').then(({ sumsBytes }) => sumsBytes())")
    for bits in (7, 8) if sums else (7,):
        left = np.ascontiguousarray(a & ((1 << bits) - 1)).view(np.uint8)
        pairs = left.reshape(*so_far.shape, 4).astype(np.int64) * w.view(np.int8).reshape(*so_far.shape, 4)
        wanted = (so_far.view(np.int32) + pairs.sum(-1)).astype(np.int32)
        assert bits == 7 or wanted.tobytes() == exact.tobytes()
        rows = [array.view(np.uint8).reshape(len(so_far), -1).tolist() for array in (so_far, left, w)]
        found_ = page.evaluate(
            f"""(async (rows) => {{
                const memory = new WebAssembly.Memory({{ initial: 2 }}), bytes = new Uint8Array(memory.buffer, 65536);
                const code = await (await fetch("dot.wasm")).arrayBuffer();
                const module = await WebAssembly.instantiate(code, {{ env: {{ memory }} }});
                return rows[0].map((_, i) => {{
                    rows.forEach((row, k) => bytes.set(row[i], 16 * k));
                    module.instance.exports.run(...[0, 16, 32, 48].map((at) => BigInt(65536 + at)));
                    return [...new Int32Array(memory.buffer, 65536 + 48, 4)];
                }});
            }})({json.dumps(rows)})"""
        )
        np.testing.assert_array_equal(found_, wanted)


def test_state_is_kept_in_the_browsers_database(browser: Chromium, site: Site) -> None:
    with browser.page(f"{site.origin}/web/page.html") as opened:
        first = opened.evaluate("""(async () => {
            const { load } = await import("./train/msedge.mjs"), model = await load();
            const before = await model.loadState();
            model.run(model.sampleInputs("train_step"), "train_step");
            await model.saveState();
            return { before, state: Object.values(model.state()).join(";") };
        })()""")
        second = opened.evaluate("""(async () => {
            const { load } = await import("./train/msedge.mjs"), model = await load();
            const text = () => Object.values(model.state()).join(";"), initial = text();
            const found = await model.loadState();
            return { initial, found, state: text(), other: await model.loadState("another") };
        })()""")
    assert first["before"] is False and second["found"] is True and second["other"] is False
    assert second["state"] == first["state"] != second["initial"]


def test_a_page_that_is_not_isolated_uses_one_thread(browser: Chromium, folder: Path) -> None:
    with (
        serving({"web": folder}, {}, policy=POLICY, isolated=False) as served,
        browser.page(f"{served.origin}/web/page.html") as opened,
    ):
        told = opened.evaluate("""(async () => {
                const { load } = await import("./int8/msedge.mjs"), { threads } = await load();
                return [threads, await load({ threads: 2 }).catch((error) => error.message)];
            })()""")
    assert told[0] == 1 and "Cross-Origin-Embedder-Policy: require-corp" in told[1]


def test_what_a_policy_or_a_server_refuses_is_told(browser: Chromium, folder: Path) -> None:
    ask = """(async () => {
        const { load } = await import("./int8/msedge.mjs");
        return load(OPTIONS).then(() => "", (error) => `${error.name}: ${error.message}`);
    })()"""
    for policy, options, part in (
        (POLICY.replace(" 'wasm-unsafe-eval'", ""), "{ threads: 1 }", "'wasm-unsafe-eval' in a page's script-src"),
        (POLICY.replace("worker-src 'self'", "worker-src 'none'"), "{ threads: 2 }", "allow it in worker-src"),
        (POLICY, "'./nowhere/'", "nowhere/model.msflat cannot be read: HTTP status 404"),
    ):
        with (
            serving({"web": folder}, {}, policy=policy) as served,
            browser.page(f"{served.origin}/web/page.html") as opened,
        ):
            told = opened.evaluate(ask.replace("OPTIONS", options))
        assert told.startswith("MsedgeError: ") and part in told, told


def test_the_driver_tells_what_a_page_throws(page: Page) -> None:
    with pytest.raises(MsedgeError, match="RangeError: far"):
        page.evaluate("Promise.reject(new RangeError('far'))")
