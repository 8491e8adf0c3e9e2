"""The compilers of a step: XLA for virtual CPU devices, and XLA for NVIDIA GPUs, which needs its wheels but no GPU."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax

from cloud import _jax
from cloud.errors import PlanError
from cloud.parallel.topology import DEVICES, Topology

__all__ = ["FOLDER", "WHEELS", "Compiler", "cpu", "gpu", "has_gpu", "reading", "running", "target"]

FOLDER = "MSEDGE_GPU_COMPILER"
"""The environment variable with the folder that the wheels were installed into; unset if they are installed like other
packages."""

WHEELS = (f"jax-cuda12-pjrt=={jax.__version__}", f"jax-cuda12-plugin=={jax.__version__}", "nvidia-cuda-nvcc-cu12")
"""What `python -m benchmarks.parallel.install_compiler FOLDER` installs there; 0.6 GB."""

_PLUGIN = "jax_plugins.xla_cuda12"


@dataclass(frozen=True)
class Compiler:
    """`name`: "cpu" or "gpu". `devices`: the devices of meshes, in the topology's order. `options`: for XLA."""

    name: str
    devices: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reduce_scatter(self) -> bool:
        """Whether it emits reduce-scatters; the CPU compiler emits an all-reduce, of which each device keeps a part."""
        return self.name == "gpu"

    def compile(self, lowered: Any) -> Any:
        """`jax.jit(...).lower(...)`, compiled."""
        return lowered.compile(compiler_options=dict(self.options) or None)


def cpu(count: int) -> Compiler:
    """The CPU compiler for `count` virtual devices. Raises `PlanError` if there are fewer."""
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise PlanError(f"expected {count} CPU devices; JAX has {len(devices)}: set XLA_FLAGS="
                        f"--xla_force_host_platform_device_count={count} before it starts")  # fmt: skip
    return Compiler("cpu", tuple(devices[:count]))


def has_gpu() -> bool:
    """Whether the GPU compiler is installed, or JAX can use a GPU."""
    return _jax.knows_platform("cuda") or _found() is not None


def gpu(topology: Topology) -> Compiler:
    """The GPU compiler for the devices of `topology`, which need not be present: programs can be read, but not run. It
    compiles without autotuning, and matrix products with cuBLAS. A device that is not in the table is compiled for as
    an H100 with the topology's memory. Raises `PlanError` if the wheels are missing; it names the command to install
    them."""
    folder = _load()
    hosts, devices = topology.size // topology.levels[-1].size, topology.levels[-1].size
    found = _jax.described_devices("cuda", f"1x{hosts}x{devices}", target(topology))
    options: dict[str, Any] = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    if folder is not None:
        options["xla_gpu_cuda_data_dir"] = str(folder / "nvidia" / "cuda_nvcc")
    return Compiler("gpu", tuple(found), options)


def running(devices: Sequence[Any]) -> Compiler | str:
    """The compiler of devices that are present, or why its programs cannot be read."""
    platform = devices[0].platform
    if platform == "cpu":
        return Compiler("cpu", tuple(devices))
    return Compiler("gpu", tuple(devices)) if platform in ("gpu", "cuda") else f"programs for {platform} are not read"


def reading(topology: Topology, backend: str) -> Compiler | str:
    """The compiler "cpu" or "gpu" for devices that need not be present, or why it cannot compile for them."""
    host = topology.device == DEVICES["cpu"][0]
    if backend == "gpu" and host:
        return "the plan is for the GPU's compiler and the devices are CPUs (--check cpu plans for theirs)"
    if backend == "gpu":
        return gpu(topology) if has_gpu() else f"there is no compiler for GPUs here ({FOLDER} names none)"
    count = len(jax.devices("cpu"))
    short = f"the CPU's compiler has {count} virtual devices here, not {topology.size}"
    return short if count < topology.size else cpu(topology.size)


def _found() -> Path | None:
    """The folder that holds the compiler's packages."""
    folder = os.environ.get(FOLDER)
    for place in [folder] if folder else sys.path:
        if (Path(place) / "jax_plugins" / "xla_cuda12" / "xla_cuda_plugin.so").is_file():
            return Path(place)
    return None


@cache
def _load() -> Path | None:
    """Register the compiler with JAX beside the CPU, which must have started: otherwise JAX would look for a GPU."""
    jax.devices()
    folder = _found()
    if _jax.knows_platform("cuda"):
        return folder
    if folder is None:
        looked = os.environ.get(FOLDER) or f"the installed packages ({FOLDER} is not set)"
        raise PlanError(f"expected the GPU compiler in {looked}; it is not there: run `python -m "
                        f"benchmarks.parallel.install_compiler FOLDER` and set {FOLDER}=FOLDER")  # fmt: skip
    with _no_gpu_expected(), _on_path(folder):
        importlib.import_module(_PLUGIN).initialize()
    return folder


@contextmanager
def _no_gpu_expected() -> Iterator[None]:
    """Without this, the plugin asks the driver for its version."""
    name = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Append the folder to the path, so that no other package is imported from it."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


# Properties of a GPU that the compiler needs: NVIDIA's data sheets and the tables of compute capabilities in the CUDA
# guide.
_LIMITS: Mapping[str, Mapping[str, float | str]] = {
    "h100": {"capability": "9 minor: 0", "cores": 132, "fpus": 128, "threads": 2048, "shared": 233472, "optin": 232448,
             "l2": 50 << 20, "clock": 1.98, "bandwidth": 3352e9},
    "a100": {"capability": "8 minor: 0", "cores": 108, "fpus": 64, "threads": 2048, "shared": 167936, "optin": 166912,
             "l2": 40 << 20, "clock": 1.41, "bandwidth": 2039e9},
    "l4": {"capability": "8 minor: 9", "cores": 58, "fpus": 128, "threads": 1536, "shared": 102400, "optin": 101376,
           "l2": 48 << 20, "clock": 2.04, "bandwidth": 300e9},
}  # fmt: skip

_TARGET = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {optin}
  threads_per_core_limit: {threads}
  core_count: {cores}
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth:.0f}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock}
  device_memory_size: {memory:.0f}
  cuda_compute_capability {{ major: {capability} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{name}"
"""


def target(topology: Topology) -> str:
    """The topology's device as XLA's `GpuTargetConfigProto` in text."""
    name = next((known for known in _LIMITS if DEVICES[known][0] == topology.device), "h100")
    return _TARGET.format(**{**_LIMITS[name], "memory": topology.memory, "name": name.upper()})
