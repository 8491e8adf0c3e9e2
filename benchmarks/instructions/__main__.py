"""See the package."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.instructions import __doc__ as usage
from lite_runtime.native import build, wheel
from tests.emulated import systems

HERE = Path(__file__).parent
TARGET, RUNS = "aarch64-dotprod", 3
DOTS = "bfe0fc00:0e809400 bfc0f400:0f80e000 bfe0fc00:2e809400 bfc0f400:2f80e000 bfe0fc00:0e809c00 bfc0f400:0f80f000"
"""Masks and values of sdot, udot and usdot: of vectors, and by an element."""
PEERS = {".tflite": "litert", ".onnx": "onnxruntime"}
WHEELS = ("onnxruntime", "ai-edge-litert", "flatbuffers", "packaging", "protobuf")
PROCESSOR = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
"""/proc/cpuinfo of the emulated Neoverse N1, which peers read; qemu shows this machine's."""
CPUS = [f"sys/devices/system/cpu/{name}" for name in ("possible", "present", "online")]


class Counted(NamedTuple):
    """Instructions of one run."""

    all: float
    dots: float


class Machine(NamedTuple):
    """The emulated system, qemu's plugin, and a folder for programs."""

    root: Path
    plugin: Path
    scratch: Path

    def counted(self, who: str, model: Path, site: Path) -> Counted:
        """Instructions of a run: the difference between RUNS and twice as many. Raises RuntimeError if it fails."""
        self._total(who, model, site, 1)  # bytecode and plans are kept from here on
        # The lesser of two: what waits for a time, in a peer's start, runs more instructions on a busy machine.
        first, second = (min(self._total(who, model, site, count) for _ in range(2)) for count in (RUNS, 2 * RUNS))
        return Counted((second[0] - first[0]) / RUNS, (second[1] - first[1]) / RUNS)

    def _total(self, who: str, model: Path, site: Path, count: int) -> tuple[int, int]:
        told = self.scratch / "counted"
        seen = {
            "PYTHONPATH": str(site),
            "PYTHONHASHSEED": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "MSEDGE_TARGET": TARGET,
            "MSEDGE_CACHE": str(self.scratch / "cache"),
        }
        settings = [part for name, value in seen.items() for part in ("-E", f"{name}={value}")]
        plugin = f"{self.plugin},kinds={'+'.join(DOTS.split())}"
        python = str(self.root / "usr" / "bin" / "python3")
        command = ["qemu-aarch64", "-plugin", plugin, "-d", "plugin", "-D", str(told), "-cpu", "neoverse-n1"]
        command += ["-L", str(self.root), *settings, python, str(HERE / "device.py"), who, str(model), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        words = told.read_text().split() if told.exists() else []
        if done.returncode or len(words) < 5:
            raise RuntimeError(f"{who} {model.name}: {done.stderr.strip()[-300:] or 'no count'}")
        told.unlink()
        return int(words[-4]), int(words[-1])


def main() -> int:
    """0 if every model was counted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", type=Path, help="a folder of .tflite and .onnx files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
    args = parser.parse_args()
    system = systems.named("aarch64")
    if problem := missing():
        print(problem, file=sys.stderr)
        return 1
    systems.prepare(system)
    with tempfile.TemporaryDirectory() as folder:
        machine = prepared(Path(folder), systems.folder(system))
        rows = {}
        for path in sorted(args.models.iterdir()):
            if path.suffix in PEERS:
                rows[path.name] = row(machine, path)
                print(f"{path.name}: {said(rows[path.name])}", flush=True)
    if ratios := [one["ratio"] for one in rows.values() if "ratio" in one]:
        print(f"geometric mean of {len(ratios)}: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all("ratio" in one for one in rows.values()) else 1


def missing() -> str:
    """What is not installed; "" if nothing."""
    for program, package in (("qemu-aarch64", "qemu-user"), ("mmdebstrap", "mmdebstrap"), ("gcc", "gcc")):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install {package}"
    return ""


def prepared(scratch: Path, system: Path) -> Machine:
    """A copy of the system that says which processor it has, the plugin, a device's files and the peers' wheels."""
    root, plugin = scratch / "root", scratch / "count.so"
    shutil.copytree(system, root, symlinks=True, ignore=shutil.ignore_patterns("dev"))
    for path, text in {"proc/cpuinfo": PROCESSOR, **dict.fromkeys(CPUS, "0\n")}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", plugin, HERE / "count.c"], check=True)
    wheel.fill(str(scratch / "msedge" / "lite_runtime"), [TARGET])
    wheels = Path(build.cache_folder()) / "emulated" / "peers-aarch64"
    if not wheels.is_dir():
        python = next((root / "usr" / "lib").glob("python3.*")).name.removeprefix("python")
        download(wheels, python)
    for held in wheels.glob("*.whl"):
        with zipfile.ZipFile(held) as archive:
            archive.extractall(scratch / "peers")
    return Machine(root, plugin, scratch)


def download(into: Path, python: str) -> None:
    """The peers' wheels for this Python on aarch64."""
    platforms = [f"--platform=manylinux{name}_aarch64" for name in ("_2_28", "_2_27", "2014", "_2_17", "_2_34")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    part = into.with_suffix(f".{os.getpid()}")
    subprocess.run([*command, f"--python-version={python}", *platforms, "-d", part, *WHEELS], check=True)
    part.rename(into)


def row(machine: Machine, path: Path) -> dict[str, Any]:
    """A model's figures, or why there are none."""
    import converter

    peer = PEERS[path.suffix]
    try:
        bundle = machine.scratch / f"{path.name}.mslite"
        converter.convert(path, output=bundle)
        ours = machine.counted("msedge", bundle, machine.scratch / "msedge")
        theirs = machine.counted(peer, path, machine.scratch / "peers")
    except (RuntimeError, converter.ConvertError) as problem:
        return {"peer": peer, "problem": str(problem)}
    figures = {"msedge": ours.all, peer: theirs.all, "ratio": ours.all / theirs.all}
    return {"peer": peer, **figures, "dots": ours.dots, f"dots_{peer}": theirs.dots}


def said(one: dict[str, Any]) -> str:
    """A row in words."""
    if "ratio" not in one:
        return str(one["problem"])
    share = f"; {100 * one['dots'] / one['msedge']:.0f} % dot products" if one["dots"] else ""
    return f"{one['msedge']:,.0f} instructions, {one['peer']} {one[one['peer']]:,.0f}: {one['ratio']:.2f}{share}"


if __name__ == "__main__":
    sys.exit(main())
