"""What a machine says of itself, read from copies of /sys and /proc; and the rules on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.agent.conditions import Conditions, Window, cannot, closed, waits
from edge.agent.machine import Facts, Machine
from lite_runtime.updates.release import Requirements

ROUTE = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"


def system(tmp_path: Path, files: dict[str, str]) -> Facts:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=tmp_path).facts(tmp_path)


def supply(name: str, **words: str) -> dict[str, str]:
    return {f"sys/class/power_supply/{name}/{key}": f"{value}\n" for key, value in words.items()}


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    found = system(tmp_path, {})
    assert (found.memory, found.total, found.battery, found.charging, found.metered) == (None,) * 5
    assert found.free is not None and found.free > 0 and found.runtime and 0 <= found.minute < 1440


def test_this_machine() -> None:
    found = Machine().facts("/")
    assert found.total is None or found.total > 1 << 20


def test_a_phone(tmp_path: Path) -> None:
    found = system(tmp_path, {
        "proc/meminfo": "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n",
        **supply("BAT0", type="Battery", capacity="81", status="Discharging"),
        **supply("BAT1", type="Battery", capacity="17", status="Discharging"),
        **supply("usb", type="USB", online="0"),
        **supply("mouse", type="Battery", capacity="3", scope="Device"),
        "proc/net/route": ROUTE + "wwan0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n",
    })  # fmt: skip
    assert (found.memory, found.total) == (1_024_000, 2_048_000)
    assert (found.battery, found.charging, found.metered) == (17, False, True)


@pytest.mark.parametrize(
    ("files", "charging"),
    [
        (supply("AC", type="Mains", online="1"), True),
        (supply("AC", type="Mains", online="0"), False),
        (supply("B", type="Battery", capacity="50", status="Charging"), True),
        (supply("B", type="Battery", capacity="full", status="?"), False),
    ],
)
def test_power(tmp_path: Path, files: dict[str, str], charging: bool) -> None:
    assert system(tmp_path, files).charging is charging


@pytest.mark.parametrize(
    ("files", "metered"),
    [
        ({"proc/net/route": ROUTE + "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n"}, False),
        ({"proc/net/route": ROUTE + "wwan0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"}, None),
        ({"proc/net/ipv6_route": " ".join(["0" * 32, "00", "0" * 32, "00", "f" * 32, *"0000", "rmnet1"])}, True),
        ({"proc/net/ipv6_route": " ".join(["0" * 32, "00", "0" * 32, "00", "f" * 32, *"0000", "lo"])}, None),
        ({"proc/net/route": "garbage\n\x00\n"}, None),
    ],
)
def test_networks(tmp_path: Path, files: dict[str, str], metered: bool | None) -> None:
    assert system(tmp_path, files).metered is metered


RULES = Conditions(free=100, battery=50, metered=False, window=Window(22 * 60, 6 * 60))


@pytest.mark.parametrize(
    ("facts", "asked", "words"),
    [
        (Facts(), {"disk": 1 << 50, "download": 1}, ""),
        (Facts(free=150), {"disk": 50}, ""),
        (Facts(free=149), {"disk": 50}, "disk: expected 150 bytes free, got 149"),
        (Facts(free=0), {}, ""),
        (Facts(battery=49, charging=False), {}, "battery"),
        (Facts(battery=49, charging=True), {}, ""),
        (Facts(metered=True), {"download": 1}, "network"),
        (Facts(metered=True), {}, ""),
        (Facts(metered=True), {"download": 1, "urgent": True}, ""),
        (Facts(battery=1), {"urgent": True}, "battery"),
        (Facts(memory=9), {"memory": 10}, "memory"),
    ],
)
def test_what_an_update_waits_for(facts: Facts, asked: dict[str, Any], words: str) -> None:
    found = waits(RULES, facts, **asked)
    assert found.startswith(words) and bool(found) == bool(words)


@pytest.mark.parametrize(
    ("minute", "inside"), [(22 * 60, True), (1439, True), (0, True), (6 * 60 - 1, True), (6 * 60, False), (720, False)]
)
def test_windows(minute: int, inside: bool) -> None:
    assert (closed(RULES, Facts(minute=minute)) == "") is inside
    assert not closed(RULES, Facts(minute=minute), urgent=True)
    assert Window(5, 5).holds(minute)


def test_versions_are_compared_as_numbers() -> None:
    needs = Requirements(runtime="0.9.0")
    assert not cannot(needs, Facts(runtime="0.10.0rc1")) and not cannot(needs, Facts(runtime="0.9.0+local"))
    assert cannot(needs, Facts(runtime="0.8.12")) and cannot(needs, Facts(runtime="0.9")) and cannot(needs, Facts())
