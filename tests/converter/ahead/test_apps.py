"""The examples for Android and iOS, as far as they can be compiled, linked and run on Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from converter.ahead import build
from lite_runtime.native.target import host
from tests.converter.ahead import clib, models
from tests.converter.ahead.test_build import random

ANDROID = Path(__file__).parents[3] / "examples/android"
JAVAC = shutil.which("javac")
INCLUDE = Path(os.path.realpath(JAVAC)).parents[1] / "include" if JAVAC else Path()
ARM_HEADERS = Path("/usr/aarch64-linux-gnu/include")
APPLE_LINKER = next(Path("/usr/lib").glob("llvm-*/bin/ld64.lld"), None)
CLANG = shutil.which("clang-19")
HOST = host()

pytestmark = pytest.mark.skipif(HOST is None, reason="no native kernels on this processor")
needs_java = pytest.mark.skipif(not (INCLUDE / "jni.h").exists(), reason="no Java development kit")

TRY = """
import java.nio.file.*;
import msedge.Model;

public class Try {
  static void fails(Class<?> kind, Runnable action) {
    try {
      action.run();
    } catch (RuntimeException error) {
      if (!kind.isInstance(error)) throw error;
      System.out.println(error.getMessage());
      return;
    }
    throw new AssertionError("nothing was thrown");
  }

  public static void main(String[] paths) throws Exception {
    Model model = new Model();
    model.test();
    for (int i = 0; i < model.signatures(); i++) System.out.println(model.signature(i));
    for (int i = 0; i < model.states(); i++) System.out.println(model.stateName(i));
    byte[] x = Files.readAllBytes(Path.of(paths[0])), labels = Files.readAllBytes(Path.of(paths[1]));
    byte[] loss = new byte[4];
    try (var results = Files.newOutputStream(Path.of(paths[2]))) {
      for (int step = 0; step < 3; step++) {
        model.input(3, 0).put(x);
        model.input(3, 1).put(labels);
        model.run(3);
        model.output(3, 0).get(loss);
        results.write(loss);
      }
      for (int i = 0; i < model.states(); i++) {
        byte[] state = new byte[model.state(i).remaining()];
        model.state(i).get(state);
        results.write(state);
      }
    }
    fails(IndexOutOfBoundsException.class, () -> model.input(0, 1));
    fails(IndexOutOfBoundsException.class, () -> model.output(-1, 0));
    fails(IndexOutOfBoundsException.class, () -> model.state(model.states()));
    fails(IndexOutOfBoundsException.class, () -> model.signature(4));
    fails(IllegalStateException.class, () -> model.run(4));
    model.close();
    model.close();
    fails(IllegalStateException.class, () -> model.run(0));
  }
}
"""


def run(command: Sequence[str | Path], **options: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def sources(folder: Path) -> list[Path]:
    return [
        *(folder / name for name in ("msedge.c", "msedge_test.c", "model.S", "kernels.o")),
        ANDROID / "msedge_jni.c",
    ]


@needs_java
@clib.needs_cc
def test_java_trains_with_the_bits_of_the_runtime(tmp_path: Path) -> None:
    assert JAVAC is not None and HOST is not None
    source, folder = models.int8_head(), tmp_path / "model"
    build(source, folder, HOST.name)
    headers = ["-I", folder, "-I", INCLUDE, "-I", INCLUDE / "linux", f"-Wa,-I{folder}"]
    run(
        [
            str(clib.CC),
            *clib.WARNINGS[:5],
            "-fPIC",
            "-shared",
            *headers,
            *sources(folder),
            "-o",
            tmp_path / "libmodel_jni.so",
        ]
    )
    (tmp_path / "Try.java").write_text(TRY)
    run([JAVAC, "-Xlint:all", "-Werror", "-d", tmp_path, ANDROID / "msedge/Model.java", tmp_path / "Try.java"])
    model = lite_runtime.load(source, backend="native")
    inputs = {**random(model.inputs()[:1], 1), "labels": np.array([2])}
    for name, array in inputs.items():
        (tmp_path / name).write_bytes(array.tobytes())
    java = ["java", "-Xcheck:jni", f"-Djava.library.path={tmp_path}", "-cp", tmp_path, "Try"]
    told = run([*java, tmp_path / "x", tmp_path / "labels", tmp_path / "results"]).splitlines()
    assert told[:4] == ["predict", "evaluate", "gradients", "train_step"]
    assert told[4 : 4 + len(model.state_dict())] == list(model.state_dict())
    assert told[-1] == "the model was closed" and not [line for line in told if "WARNING" in line]
    losses = [model.run(inputs, "train_step")["loss"].tobytes() for _ in range(3)]
    wanted = b"".join([*losses, *(array.tobytes() for array in model.state_dict().values())])
    assert (tmp_path / "results").read_bytes() == wanted


@needs_java
@pytest.mark.skipif(CLANG is None or not ARM_HEADERS.exists(), reason="no clang 19, or no headers for Arm")
def test_the_library_for_android_is_linked(tmp_path: Path) -> None:
    """With Debian's headers instead of Android's, and without its C library."""
    build(models.int8_head(), tmp_path, "aarch64-dotprod", signatures=["predict"])
    headers = ["-I", tmp_path, "-I", INCLUDE, "-I", INCLUDE / "linux", "-isystem", ARM_HEADERS, f"-Wa,-I{tmp_path}"]
    linker = ["-fuse-ld=lld", "-nostdlib", "-shared", "-Wl,-z,max-page-size=16384", "-Wl,-z,text"]
    flags = [
        "--target=aarch64-linux-android21",
        *clib.WARNINGS[:5],
        "-Wno-unused-command-line-argument",
        "-fPIC",
        "-O2",
    ]
    run([str(CLANG), *flags, *headers, *linker, *sources(tmp_path), "-o", tmp_path / "libmodel_jni.so"])
    shown = run(["readelf", "-lW", tmp_path / "libmodel_jni.so"])
    assert {line.split()[-1] for line in shown.splitlines() if line.strip().startswith("LOAD")} == {"0x4000"}


@pytest.mark.skipif(CLANG is None or APPLE_LINKER is None, reason="no clang 19, or no linker for Mach-O")
@pytest.mark.parametrize("target", ["ios", "macos"])
def test_the_library_for_apple_is_linked(target: str, tmp_path: Path) -> None:
    """Without Apple's headers and libraries."""
    build(models.int8_head(), tmp_path, target, signatures=["predict"])
    triple, platform = {
        "ios": ("arm64-apple-ios14.0", ["ios", "14.0", "17.0"]),
        "macos": ("arm64-apple-macosx11.0", ["macos", "11.0", "14.0"]),
    }[target]
    objects = []
    for name in ("msedge.c", "msedge_test.c", "model.S"):
        flags = [f"--target={triple}", *clib.WARNINGS[:5], "-Wno-unused-command-line-argument", "-ffreestanding"]
        objects.append(tmp_path / f"{name}.o")
        run([str(CLANG), *flags, "-fno-stack-protector", "-O2", "-c", tmp_path / name, "-o", objects[-1]], cwd=tmp_path)
    link = [
        str(APPLE_LINKER),
        "-dylib",
        "-arch",
        "arm64",
        "-platform_version",
        *platform,
        "-undefined",
        "dynamic_lookup",
    ]
    run([*link, *objects, tmp_path / "kernels.o", "-o", tmp_path / "libmodel.dylib"])
    assert (tmp_path / "libmodel.dylib").read_bytes().startswith(b"\xcf\xfa\xed\xfe")
