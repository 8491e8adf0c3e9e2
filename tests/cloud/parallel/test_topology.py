from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from cloud.errors import PlanError
from cloud.parallel.topology import PRESETS, Topology, meshes, read_topology

GOOD = """
name = "ours"
memory = 80e9
overlap = 0.5
device = {flops = {float32 = 494e12, bfloat16 = 989e12}, bandwidth = 3.35e12, launch = 3e-6}
[[levels]]
size = 2
latency = 20e-6
bandwidth = 42e9
[[levels]]
size = 8
latency = 10e-6
bandwidth = 360e9
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "there.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_a_preset_says(tmp_path: Path) -> None:
    found = read_topology(written(tmp_path, GOOD))
    assert (found.size, found.memory, found.overlap, found.levels) == (16, 80e9, 0.5, PRESETS["h100x2x8"].levels)
    assert found.device.peak("bfloat16") == 989e12
    assert found.device.peak("float64") == 247e12
    assert Topology.named(str(tmp_path / "there.toml")) == found


def test_a_known_device_brings_its_memory(tmp_path: Path) -> None:
    text = 'device = "l4"\n[[levels]]\nsize = 4\nlatency = 1e-5\nbandwidth = 1e10\n'
    found = read_topology(written(tmp_path, text))
    assert (found.name, found.memory, found.device) == ("there", 24e9, PRESETS["l4x4"].device)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("memory = 80e9", "memori = 80e9"), "memori: no such key; did you mean .memory"),
        (("memory = 80e9", "memory = -1"), "memory: expected a number above 0, got -1"),
        (("memory = 80e9", "memory = true"), "memory: expected a number above 0, got True"),
        (("memory = 80e9", ""), r"memory: expected a number above 0 \(required if"),
        (("memory = 80e9", "memory = inf"), "memory: expected a number above 0, got inf"),
        (("overlap = 0.5", "overlap = 1.5"), "overlap: expected a share from 0 to 1, got 1.5"),
        (("size = 8", "size = 8.0"), r"levels\[1\].size: expected a whole number of at least 1, got 8.0"),
        (("size = 8", "size = 80000"), r"levels: expected at most 65536 devices in total, got "),
        (("size = 8", "size = 0"), r"levels\[1\].size: expected a whole number of at least 1, got 0"),
        (("bandwidth = 42e9", "bandwidth = 0"), r"levels\[0\].bandwidth: expected a number above 0, got 0"),
        (("latency = 20e-6", "alpha = 20e-6"), r"levels\[0\].alpha: no such key; expected one of size, lat"),
        (("float32 = 494e12", "float33 = 494e12"), "device.flops: expected types of float8, .*got 'float33'"),
        (("float32 = 494e12", "float32 = 1, f4 = 1"), "device.flops: expected types of float8, .*got 'f4'"),
        (('name = "ours"', "name = 3"), "name: expected a non-empty string, got 3"),
        (("device = {", 'device = "gpu" #'), "device: expected one of h100, a100, l4, cpu or a table, got 'gpu'"),
        (("[[levels]]", "[[hosts]]"), "hosts: no such key"),
        (("bandwidth = 42e9", "bandwidth = 420e9"), r"levels: expected the slowest links first: .*got \[4200+.0, 36"),
        (("bandwidth = 360e9", "bandwidth = 9e12"), r"levels\[1\].bandwidth: expected at most that of the device's"),
        (("memory = 80e9", "memory = "), "expected TOML"),
    ],
)
def test_every_field_is_checked(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(PlanError, match=said) as raised:
        read_topology(written(tmp_path, GOOD.replace(*change)))
    assert "there.toml" in str(raised.value)


def test_no_such_topology() -> None:
    with pytest.raises(PlanError, match=r"h100x8.*got 'h100x9'"):
        Topology.named("h100x9")


def test_meshes_are_the_ascending_factors_of_each_level() -> None:
    assert [mesh.sizes for mesh in meshes(PRESETS["h100x8"])] == [(8,), (2, 4), (2, 2, 2)]
    assert [(mesh.sizes, mesh.levels) for mesh in meshes(PRESETS["h100x2x8"])] == [
        ((2, 8), (0, 1)),
        ((2, 2, 4), (0, 1, 1)),
    ]
    one = replace(PRESETS["cpu8"], levels=(replace(PRESETS["cpu8"].levels[0], size=1),))
    assert [mesh.sizes for mesh in meshes(one)] == [(1,)]
    for topology in PRESETS.values():
        assert all(math.prod(mesh.sizes) == topology.size for mesh in meshes(topology))
    with pytest.raises(PlanError, match="2 levels do not fit a mesh of 1 axes"):
        meshes(PRESETS["h100x2x8"], most=1)


def test_the_digest_is_of_the_figures_not_the_name() -> None:
    topology = PRESETS["h100x8"]
    assert topology.digest == replace(topology, name="other").digest
    assert topology.digest != replace(topology, memory=79e9).digest
    assert len({preset.digest for preset in PRESETS.values()}) == len(PRESETS)


def test_the_topology_of_this_machine() -> None:
    devices = jax.devices()
    found = Topology.of_devices(devices)
    assert (found.size, len(found.levels)) == (len(devices), 1)


def test_processes_are_a_separate_level() -> None:
    def device(process: int, kind: str = "NVIDIA H100 80GB HBM3") -> SimpleNamespace:
        return SimpleNamespace(platform="gpu", device_kind=kind, process_index=process, memory_stats=lambda: None)

    found = Topology.of_devices([device(0), device(0), device(1), device(1)])
    assert [level.size for level in found.levels] == [2, 2]
    assert found.levels[0].bandwidth < found.levels[1].bandwidth
    with pytest.raises(PlanError, match=r"equally many devices; got \{0: 2, 1: 1\}"):
        Topology.of_devices([device(0), device(0), device(1)])
    with pytest.raises(PlanError, match="got 'gpu abacus'"):
        Topology.of_devices([device(0, "abacus")])
