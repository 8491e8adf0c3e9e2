"""The page of a federated run shows the report's contents, also if parts are missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from converter.report import html
from edge.pages.charts import COLOURS
from edge.pages.fleet_page import fleet_page


def spread(mean: float) -> dict[str, float]:
    return {"mean": mean, "worst_decile": mean - 0.25}


def evaluation(before: float, after: float, **devices: list[float]) -> dict[str, Any]:
    summary = {
        "devices": len(devices), "silent": 0, "accuracy_before": spread(before), "accuracy_after": spread(after),
        "loss_before": spread(1.5), "loss_after": spread(1.25),
    }  # fmt: skip
    return {"summary": summary, "refused": {}, "by_device": devices}


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "round": number, "counted": True, "asked": 3, "answered": 3, "silent": 0, "refused": {}, "details": [],
        "loss": 2.0 / number, "norm": 1.0, "bytes_down": 3072, "bytes_up": 1024, "seconds": 0.5,
    } | more  # fmt: skip


def report(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "run": "r1", "algorithm": "fedavg", "bundle": "ab" * 32, "rounds": len(rows), "devices": 3, "turned_away": {},
        "refused": {}, "bytes_up": 1024 * len(rows), "bytes_down": 3072 * len(rows), "seconds": 1.0, "rows": list(rows),
    } | more  # fmt: skip


def test_figures_of_the_last_evaluation() -> None:
    training, held_out = evaluation(0.5, 0.75, a=[0.5, 0.7], b=[0.5, 0.8]), evaluation(0.4, 0.6, c=[0.4, 0.6])
    found = {"training": training, "held_out": held_out}
    page = fleet_page(report(row(1), row(2, evaluation=found)))
    for words in ("75.0 %", "60.0 %", "50.0 %", "1.0 KiB", "3.0 KiB", "held-out devices", ">a<", ">c<"):
        assert words in page
    assert "Nothing: every device" in page


def test_a_run_without_evaluation_or_loss() -> None:
    page = fleet_page(report(row(1, loss=None, counted=False, answered=0, silent=3)))
    assert "too few answers" in page
    assert "silent until the deadline" in page
    assert "Results per device" not in page


def test_refusals_are_named_and_escaped() -> None:
    words = "<script>d1</script>: norm: too large"
    only = row(1, refused={"norm": 1}, details=[words])
    page = fleet_page(report(only, refused={"norm": 1}, turned_away={"bundle": 2}))
    assert "turned away: bundle" in page
    assert "<script>" not in page
    assert "&lt;script&gt;d1" in page


@pytest.mark.parametrize("epsilon", [None, 1.25])
def test_privacy_is_shown_where_it_was_counted(epsilon: float | None) -> None:
    page = fleet_page(report(row(1, epsilon=epsilon), row(2, epsilon=epsilon)))
    assert ("privacy spent" in page) is (epsilon is not None)


def test_rounds_that_a_return_gave_up_are_in_the_totals() -> None:
    """What they sent and spent is shown, although the charts have the model's rounds only."""
    lost = [row(2, epsilon=2.0), row(3, epsilon=3.0)]
    totals = {"bytes_up": 3 * 1024, "bytes_down": 9 * 1024}
    page = fleet_page(report(row(1, epsilon=1.0), returns=[{"after": 3, "to": 1}], given_up=lost, **totals))
    assert "After round 3 the run returned to the model of round 1." in page
    assert "ε = 3<" in page and ">1.0 KiB<" in page and ">3.0 KiB<" in page
    with pytest.raises(ValueError, match="invalid literal"):
        fleet_page(report(row(1), returns=[{"after": "<script>", "to": 1}]))


def test_of_very_many_devices_the_ends_are_drawn() -> None:
    many = {f"d{i:03}": [0.1, i / 1000] for i in range(200)}
    page = fleet_page(report(row(1, evaluation={"training": evaluation(0.5, 0.5, **many)})))
    assert "140 devices in the middle" in page
    assert ">d000<" in page
    assert ">d199<" in page
    assert ">d100<" not in page


def test_zero_has_no_sign() -> None:
    """The report's figures may be negative zeros, or round to one."""
    found = evaluation(-0.0, -1e-9, a=[-0.0, -1e-9], b=[0.0, 1.0])
    found["summary"]["accuracy_before"] = {"mean": -0.0, "worst_decile": -0.0}
    page = fleet_page(report(row(1, evaluation={"training": found})))
    assert "0.0 %" in page and "-0.0" not in page and "-0 %" not in page


@pytest.mark.parametrize("groups", [("training",), ("held_out",), ("training", "held_out")])
def test_a_group_has_one_colour_and_before_is_hollow(groups: tuple[str, ...]) -> None:
    found = {group: evaluation(0.5, 0.75, a=[0.5, 0.75]) for group in groups}
    page = fleet_page(report(row(1, evaluation=found), row(2, evaluation=found)))
    chart = page[page.index("<figcaption>Accuracy, mean") : page.index("<figcaption>Training loss")]
    colours = {"training": "c0", "held_out": "c1"}
    styles = re.findall(r'<polyline class="([^"]+)"', chart)
    assert styles == [colours[group] + early for group in groups for early in (" early", "")]
    legend = re.findall(r'<circle class="([^"]+)" cx="\d+" cy="10"', chart)
    assert legend == [f"{colours[group]} {kind}" for group in groups for kind in ("hollow", "full")]


def test_no_series_has_a_colour_of_good_or_bad() -> None:
    css = (Path(html.__file__).parent / "page.css").read_text("utf-8")
    for series in COLOURS:
        rules = re.findall(rf"svg \.{series}(?:\.full)? {{ [a-z]+: var\(--([a-z]+)\) }}", css)
        assert len(rules) == 2 and not {*rules} & {"good", "poor"}


def test_evaluations_that_diverged_or_were_lost_are_shown() -> None:
    found = evaluation(0.5, 0.75, a=[0.0, 0.7])
    found["summary"] |= {"diverged": 1, "loss_before": {"mean": None, "worst_decile": None}}
    found |= {"diverged": ["a"], "lost": {"silent": 2}, "asked": 3, "answered": 1, "details": ["b: failed: crash"]}
    counts = {"lost_evaluations": {"silent": 2}, "limited": {"norm": 4}}
    lost = {"lost_devices": 5, "lost_aggregators": ["north"]}
    only = row(1, evaluation={"training": found}, **lost)
    page = fleet_page(report(only, **counts, gate="training devices: too bad"))
    for words in ("∞", "lost evaluation: silent", "diverged in an evaluation", "a: diverged", "b: failed: crash",
                  "lost with their aggregator", "cut to limits.influence: norm",
                  "not exported: training devices: too bad"):  # fmt: skip
        assert words in page
    assert "Nothing: every device" not in page


def test_a_round_that_drew_nobody() -> None:
    assert "nobody was drawn" in fleet_page(report(row(1, asked=0, answered=0, loss=None)))
