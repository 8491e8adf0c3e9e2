"""A C library that `msedge build` made computes what the runtime computes here bit for bit, and refuses wrong files."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from converter import convert
from converter.ahead import assembling, build
from lite_runtime.errors import MsedgeError
from lite_runtime.native.target import host
from lite_runtime.targets import named
from tests.converter.ahead import clib, models, node, tables
from tests.converter.ahead.clib import Library, Opened, Status
from tests.converter.ahead.test_build import SHARED, random

HOST = host()
pytestmark = [pytest.mark.skipif(HOST is None, reason="no native kernels on this processor"), clib.needs_cc]
TARGET = HOST.name if HOST is not None else ""
RUN = Path(__file__).parents[3] / "examples/c/run.c"


def opened(library: Library) -> Opened:
    found = library.open()
    assert isinstance(found, Opened)
    return found


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("stream")
    build(models.stream(), folder, TARGET)
    return Library(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """The last layer of a small integer model can be trained; built for a batch of 3."""
    made = models.int8_head()
    folder = tmp_path_factory.mktemp("trained")
    build(made, folder, TARGET, shapes={"train_step/x": (3, 2, 6, 5)})
    return made, folder


@pytest.mark.parametrize("name", ["int8_convnet", "float_convnet", "lstm", "several"])
def test_c_computes_what_kernels_compute_here(name: str, tmp_path: Path) -> None:
    source = models.MODELS[name]()
    made = build(source, tmp_path, TARGET)
    assert "kernels.o" in made.files and "kernels.wasm" not in made.files
    model, library = lite_runtime.load(source, backend="native"), opened(Library(tmp_path))
    assert library.test("predict") == Status.OK
    for seed in range(2):
        inputs = random(model.inputs(), seed)
        found, wanted = library.run(inputs), model.run(inputs)
        assert list(found) == list(wanted)
        for key, want in wanted.items():
            assert (found[key].dtype, found[key].shape) == (want.dtype, want.shape)
            assert found[key].tobytes() == want.tobytes()


@pytest.mark.parametrize("name", SHARED[:1])
def test_a_real_model(name: str, shared_models: Path, tmp_path: Path) -> None:
    source = convert(shared_models / name).bundle
    assert source is not None
    build(source, tmp_path, TARGET)
    model, library = lite_runtime.load(source, backend="native"), opened(Library(tmp_path))
    inputs = random(model.inputs(), 1)
    [want], [got] = model.run(inputs).values(), library.run(inputs).values()
    assert library.test("predict") == Status.OK and got.tobytes() == want.tobytes()
    code = subprocess.run(["size", tmp_path / "kernels.o"], capture_output=True, text=True, check=True).stdout
    assert int(code.split("\n")[1].split()[0]) < 200_000


def test_training_gives_the_bits_of_the_runtime(trained: tuple[bytes, Path]) -> None:
    source, folder = trained
    model, library = lite_runtime.load(source, backend="native"), opened(Library(folder))
    rng = np.random.default_rng(3)
    losses = set()
    for seed in range(5):
        x = random((model.inputs("train_step")[0]._replace(shape=(3, 2, 6, 5)),), seed)
        batch = {**x, "labels": rng.integers(0, 4, 3)}
        [want] = model.run(batch, "train_step").values()
        [got] = library.run(batch, "train_step").values()
        assert got.tobytes() == want.tobytes()
        losses.add(want.tobytes())
        for key, value in model.state_dict().items():
            assert library.state()[key].tobytes() == value.tobytes()
    assert len(losses) == 5
    before = {key: value.copy() for key, value in library.state().items()}
    assert [library.test(name) for name in library.names] == [Status.OK] * 4
    start = lite_runtime.load(source).state_dict()  # to which the tests return
    assert all(library.state()[key].tobytes() == value.tobytes() for key, value in start.items())
    assert any(value.tobytes() != start[key].tobytes() for key, value in before.items())


def test_state_goes_on_and_stays_as_it_was_after_a_run_that_failed(stream: Library) -> None:
    model, library = lite_runtime.load(models.stream(), backend="native"), opened(stream)
    library.state()["a"][...] = [7, 8, 9]
    model.load_state_dict({"a": np.float32([7, 8, 9])}, strict=False)
    for seed in range(4):
        inputs = {**random(model.inputs()[:1], seed), "i": np.array([2, 0, seed % 3])}
        found, wanted = library.run(inputs), model.run(inputs)
        for key, want in wanted.items():
            np.testing.assert_array_equal(found[key], want)
    before = {key: value.copy() for key, value in library.state().items()}
    wrong = {"x": np.float32([1, 2, 3]), "i": np.array([0, 3, 1])}
    assert library.try_run(wrong) == Status.INDEX
    assert b"Gather" in library.model.where
    for key, value in before.items():
        np.testing.assert_array_equal(library.state()[key], value)
    assert library.run({**wrong, "i": np.array([0, 2, -1])}).keys() == wanted.keys()
    stream.c.msedge_reset(ctypes.byref(library.model))
    assert not library.state()["a"].any()


def test_a_model_that_computes_wrongly_is_found(tmp_path: Path) -> None:
    build(models.float_convnet(), tmp_path, TARGET)
    library = Library(tmp_path)
    [port] = [row for row in tables.table(library.flat, "ports").rows if tables.text(library.flat, row["text"]) != "x"]
    for told, value in ((Status.OK, 1), (Status.DIFFERS, 1 << 20), (Status.DIFFERS, 0x7FC00000)):
        (now,) = struct.unpack_from("<I", library.flat, port["sample"])
        found = library.open(tables.with_word(library.flat, port["sample"], now ^ value))
        assert isinstance(found, Opened)
        assert found.test("predict") == told
        assert found.model.where == (b"" if told == Status.OK else found.signatures[0].outputs[0].name)


@node.needs_node
def test_large_outputs_have_no_sample_beside_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.int8_head()
    monkeypatch.setattr(assembling, "LARGE", 20)
    build(source, tmp_path / "c", TARGET)
    library = opened(Library(tmp_path / "c"))
    outputs = [
        (name, signature.outputs[i].name.decode(), bool(signature.outputs[i].sample))
        for name, signature in zip(library.names, library.signatures, strict=True)
        for i in range(signature.output_count)
    ]
    assert [name for _, name, there in outputs if not there] == ["grad/c_11"]  # 96 bytes
    assert [library.test(name) for name in library.names] == [Status.OK] * 4
    build(source, tmp_path / "web")
    rows = node.run(tmp_path / "web").answer["compared"]
    assert [(row["signature"], row["name"]) for row in rows] == [(one, name) for one, name, there in outputs if there]


def test_wrong_files_and_memory_have_statuses_of_their_own(stream: Library, tmp_path: Path) -> None:
    flat, size = stream.flat, stream.size
    status, needed = size(flat)
    assert status == Status.OK and needed % 64 == 0
    damaged = bytearray(flat)
    damaged[1000] ^= 1
    target = tables.with_word(flat, 28, 0)
    kernels = clib.Kernels(1, TARGET.encode(), (ctypes.c_uint8 * 32)())
    wrong = {
        Status.MISALIGNED: size(clib.aligned(flat, 8)),
        Status.NOT_FLAT: size(b"\x7fELF" + flat[4:]),
        Status.VERSION: size(tables.with_word(flat, 8, 1)),
        Status.LENGTH: size(flat[:-1]),
        Status.DIGEST: size(bytes(damaged)),
        Status.TARGET: size(target),
        Status.KERNELS: size(flat, ctypes.byref(kernels)),
    }
    assert {status: found[0] for status, found in wrong.items()} == {status: status for status in wrong}
    assert {found[1] for found in wrong.values()} == {0}
    assert {size(flat[:count])[0] for count in (1, 7, 15)} == {Status.LENGTH}
    assert {size(flat[:count])[0] for count in (16, 100, 191, 223, len(flat) // 2)} == {Status.LENGTH}
    assert size(flat + b"\0")[0] == Status.LENGTH
    assert stream.open(memory=clib.aligned(needed, 8)) == Status.MISALIGNED
    for less in (0, 64, needed - 1):
        memory = clib.aligned(max(less, 1))[:less]
        assert stream.open(memory=memory) == Status.MEMORY and (memory == 0xA5).all()
    assert stream.c.msedge_run(ctypes.byref(opened(stream).model), 1) == Status.NO_SIGNATURE
    texts = [stream.c.msedge_text(status) for status in Status]
    assert len(set(texts)) == len(Status) and stream.c.msedge_text(99) == b"unknown status"


def test_operands_outside_their_buffers_are_found(stream: Library) -> None:
    wrong = tables.wrong_words(stream.flat)
    assert len(wrong) > 60
    assert {stream.size(file)[0] for file, _ in wrong} == {Status.PROGRAM}


@node.needs_node
def test_both_readers_refuse_the_same_files(stream: Library, tmp_path: Path) -> None:
    """Every word of the header and of the tables replaced."""
    build(models.stream(), tmp_path / "web")
    flat = (tmp_path / "web/model.msflat").read_bytes()
    count = len(tables.table(flat, "kernels").rows)
    kernels = clib.Kernels(count, b"wasm32", (ctypes.c_uint8 * 32).from_buffer_copy(flat, 32))
    files, what = [flat], ["whole"]
    for name, at in tables.words(flat):
        now = int.from_bytes(flat[at : at + 4], "little")
        # Not sizes that no engine gives, and not names of kernels and targets, which only one of the readers compares.
        values = {0, 1, 3, 8, now + 1, max(now, 1) - 1, now + 4, 2**24, 2**32 - 1} - {now}
        if name not in ("arena", "buffers.bytes", "target", "kernels.text", "kernels at"):
            files += [tables.with_word(flat, at, value) for value in values]
            what += [f"{name} {now} -> {value}" for value in values]
    by_node = [text == "" for text in node.load(tmp_path / "web", files, tmp_path)]
    by_c = [stream.size(file, ctypes.byref(kernels))[0] == Status.OK for file in files]
    assert by_node[0] and sum(by_node) > 50
    assert [w for w, one, other in zip(what, by_node, by_c, strict=True) if one != other] == []


@pytest.mark.parametrize("name", ["stream", "trained"])
def test_mutants_are_refused_or_harmless(
    name: str, stream: Library, trained: tuple[bytes, Path], tmp_path: Path
) -> None:
    """100,000 files with random words, under sanitizers: whatever is opened can be run and read."""
    path = tmp_path / "model.msflat"
    path.write_bytes(stream.flat if name == "stream" else (trained[1] / "model.msflat").read_bytes())
    command = [str(clib.CC), *clib.WARNINGS[:5], *clib.SANITIZED, "-DMSEDGE_NO_DIGEST", f"-I{clib.SOURCES}"]
    sources = [str(Path(__file__).with_name("mutate.c")), str(clib.SOURCES / "msedge.c")]
    subprocess.run([*command, *sources, "-o", str(tmp_path / "mutate")], check=True)
    done = subprocess.run([tmp_path / "mutate", path, "50000", "1"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    counts = [int(word) for word in done.stdout.split()]
    assert sum(counts[:32]) == 50000 and counts[32] > 1000
    assert all(counts[status] for status in range(Status.TABLES, Status.MEMORY)) and counts[Status.LENGTH]


def digests(folder: Path, run: list[str], scratch: Path, inputs: list[Path], signature: str) -> tuple[str, str]:
    """SHA-256 of results and state of `examples/c/run.c`."""
    results, state = scratch / "results", scratch / "state"
    state.unlink(missing_ok=True)
    options = ["-s", signature, "-o", str(results), "-k", str(state), str(folder / "model.msflat")]
    done = subprocess.run([*run, *options, *map(str, inputs)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{signature}: as the sample" in done.stdout and "runs," in done.stdout
    return results.read_bytes().hex(), state.read_bytes().hex()


def batches(source: bytes, scratch: Path) -> list[Path]:
    """Raw inputs of four training steps."""
    rng = np.random.default_rng(5)
    x = lite_runtime.load(source).inputs("train_step")[0]
    made = [
        *(random((x._replace(shape=(3, 2, 6, 5)),), seed)[x.name].tobytes() for seed in range(4)),
        rng.integers(0, 4, (4, 3)).tobytes(),
    ]
    (scratch / "x.bin").write_bytes(b"".join(made[:4]))
    (scratch / "labels.bin").write_bytes(made[4])
    return [scratch / "x.bin", scratch / "labels.bin"]


def test_the_example_runs_under_sanitizers(trained: tuple[bytes, Path], tmp_path: Path) -> None:
    source, folder = trained
    inputs = batches(source, tmp_path)
    program = clib.program(folder, RUN, tmp_path / "run", *clib.SANITIZED)
    results, state = digests(folder, [str(program)], tmp_path, inputs, "train_step")
    model = lite_runtime.load(source, backend="native")
    x, labels = (np.frombuffer(path.read_bytes(), d) for path, d in zip(inputs, ("float32", "int64"), strict=True))
    name = model.inputs("train_step")[0].name
    wanted = [
        model.run({name: a.reshape(3, 2, 6, 5), "labels": b}, "train_step")["loss"]
        for a, b in zip(np.split(x, 4), np.split(labels, 4), strict=True)
    ]
    assert results == b"".join(loss.tobytes() for loss in wanted).hex()
    assert state == b"".join(value.tobytes() for value in model.state_dict().values()).hex()
    for arguments, told in (
        (["-s", "none", folder / "model.msflat"], "no signature none"),
        ([folder / "model.msflat", inputs[0], inputs[1]], "expected 1 inputs of predict"),
        (["-s", "train_step", folder / "model.msflat", inputs[1], inputs[1]], "expected values of 720 bytes"),
        ([inputs[0]], "status 2: the file is no flat file"),
        ([tmp_path / "none"], "cannot be read"),
    ):
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert done.returncode == 1 and told in done.stderr, done.stderr


EMULATED = {
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "cortex-a72"),
    "armv7": ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "cortex-a15"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64-static", "rv64,v=false"),
}


@pytest.mark.parametrize("target", EMULATED)
def test_other_processors_give_the_same_bits(target: str, trained: tuple[bytes, Path], tmp_path: Path) -> None:
    compiler, emulator, cpu = EMULATED[target]
    if not shutil.which(compiler) or not shutil.which(emulator):
        pytest.skip(f"no {compiler}, or no {emulator}")
    if not named(TARGET).shape.fused:
        pytest.skip("this machine does not fuse multiply-adds, and float results differ in last bits")
    source, folder = trained
    inputs = batches(source, tmp_path)
    build(source, tmp_path / "built", target, shapes={"train_step/x": (3, 2, 6, 5)})
    program = clib.program(tmp_path / "built", RUN, tmp_path / "run", "-O1", "-static", compiler=compiler)
    here = clib.program(folder, RUN, tmp_path / "here", "-O1")
    wanted = digests(folder, [str(here)], tmp_path, inputs, "train_step")
    assert digests(tmp_path / "built", [emulator, "-cpu", cpu, str(program)], tmp_path, inputs, "train_step") == wanted
    needs = subprocess.run(["nm", "-u", tmp_path / "built/kernels.o"], capture_output=True, text=True, check=True)
    assert needs.stdout == ""


def test_sizes_of_gigabytes_do_not_wrap_around_on_32_bits(tmp_path: Path) -> None:
    """Every word of the header and of the tables becomes a size near 2^31 or 2^32: a 32-bit reader says what a 64-bit
    one says or, where the memory is 4 GiB or more, that there is too little."""
    compiler, emulator, cpu = EMULATED["armv7"]
    if not shutil.which(compiler) or not shutil.which(emulator):
        pytest.skip(f"no {compiler}, or no {emulator}")
    build(models.trainable(), tmp_path / "built", "armv7", shapes={"x": (4, 2, 5, 4)})
    path = tmp_path / "built/model.msflat"
    places = [at for _, at in tables.words(path.read_bytes())]
    values = (2**31 - 64, 2**31 - 1, 2**31, 2**32 - 64, 2**32 - 1)
    changes = "".join(f"{at} {value}\n" for at in places for value in values)
    said = []
    for name, by, run in (("cc", str(clib.CC), []), ("arm", compiler, [emulator, "-cpu", cpu])):
        reader = [str(clib.SOURCES / "msedge.c"), str(Path(__file__).with_name("sizes.c")), "-DMSEDGE_NO_DIGEST"]
        command = [by, "-std=c99", "-O1", "-static", f"-I{clib.SOURCES}", *reader, "-o", str(tmp_path / name)]
        subprocess.run(command, check=True)
        done = subprocess.run(
            [*run, str(tmp_path / name), str(path)], input=changes, capture_output=True, text=True, check=True
        )
        said.append([(Status(int(status)), int(bytes_)) for status, bytes_ in map(str.split, done.stdout.splitlines())])
    here, there = said
    assert len(here) == len(there) == len(places) * len(values) > 1000
    large = [(Status.MEMORY, 0) for status, bytes_ in here if bytes_ >= 2**32]
    assert len(large) > 5
    for wide, narrow in zip(here, there, strict=True):
        # Pointers have half the bytes there, and so have the tables of signatures and ports.
        if wide[1] >= 2**32 + 2**16:
            assert narrow == (Status.MEMORY, 0)
        elif wide[1] < 2**32:
            assert narrow[0] == wide[0] and wide[1] - 2**16 < narrow[1] <= wide[1]


def test_the_reader_needs_no_library(tmp_path: Path) -> None:
    compilers = [("cc", []), ("clang-19", []), ("arm-none-eabi-gcc", ["-mcpu=cortex-m4", "-mthumb"])]
    for compiler, flags in compilers:
        if not shutil.which(compiler):
            continue
        for name in ("msedge.c", "msedge_test.c"):
            command = [compiler, *flags, *clib.WARNINGS, "-Os", "-ffreestanding", "-c", str(clib.SOURCES / name)]
            subprocess.run([*command, "-o", str(tmp_path / "one.o")], check=True)
            found = subprocess.run(["nm", "-u", tmp_path / "one.o"], capture_output=True, text=True, check=True).stdout
            needs = {line.split()[-1] for line in found.splitlines()}
            allowed = {"memcpy", "memset", "memmove", "msedge_run", "msedge_reset", "_GLOBAL_OFFSET_TABLE_"}
            assert {name for name in needs if not name.startswith("__aeabi_")} <= allowed


def test_the_readme_compiles(trained: tuple[bytes, Path], tmp_path: Path) -> None:
    text = (trained[1] / "README.md").read_text()
    code = text.partition("```c\n")[2].partition("```")[0]
    (tmp_path / "use.c").write_text(
        code.replace("static struct", "void fill(void *);\nvoid use(void *);\n\nstatic struct")
    )
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{clib.SOURCES}", "-fsyntax-only"]
    subprocess.run([str(clib.CC), *flags, tmp_path / "use.c"], check=True)
    assert "| `train_step` | input | `labels` | int64 | 3 | `int64_t` |" in text and "## State" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_header_is_also_for_cpp(tmp_path: Path) -> None:
    (tmp_path / "use.cc").write_text(
        '#include "msedge.h"\n'
        "enum msedge_status use(struct msedge *model, void *memory, size_t bytes) {\n"
        "  return msedge_open(model, &msedge_kernels, msedge_model, 4096, memory, bytes);\n"
        "}\n"
    )
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{clib.SOURCES}", "-fsyntax-only"]
    subprocess.run(["g++", *flags, tmp_path / "use.cc"], check=True)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_cmake_makes_a_program(tmp_path: Path) -> None:
    build(models.stream(), tmp_path / "model", TARGET)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(run C)\nadd_subdirectory(model)\n"
        f"add_executable(run {RUN})\ntarget_link_libraries(run PRIVATE msedge_model)\n"
    )
    for command in (["-S", ".", "-B", "build"], ["--build", "build"]):
        subprocess.run(["cmake", *command], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "build/run", tmp_path / "model/model.msflat"], capture_output=True, text=True)
    assert done.returncode == 0 and "predict: as the sample" in done.stdout


def test_a_folder_for_another_kind_of_target_is_left_alone(tmp_path: Path) -> None:
    build(models.dense(), tmp_path, TARGET)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    build(models.dense(), tmp_path, TARGET)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(MsedgeError, match="choose a new folder"):
        build(models.dense(), tmp_path, "wasm32")
