"""The page of a cluster: every span at its place, well-formed, nothing from outside."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from cloud.cluster.jobs import Job, Option, Serving
from cloud.cluster.result import Outage, Result
from cloud.cluster.scheduler import Scheduler
from cloud.cluster.simulate import simulate
from edge.pages.cluster_page import cluster_page
from tests.cloud.cluster.world import cluster, job, options, pool

TWO = cluster(pool("new", 2, 4), pool("<old>", 2, 4))


def page() -> tuple[str, Result]:
    served = Serving("s", (Option(0, 1, 10.0),), ((0.0, 5.0),), 0.5, starting=4.0)
    jobs: list[Job] = [served, *(job(f"j<{n}>", options(TWO), 60.0, arrives=5.0 * n) for n in range(12))]
    result = simulate(TWO, jobs, Scheduler(TWO), outages=[Outage(1, 1, 20.0, 60.0)])
    return cluster_page(result, "a & b"), result


def test_every_span_is_drawn_in_its_pool() -> None:
    text, result = page()
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    spans = result.all()
    for index, chart in enumerate(charts[:2]):
        own = [span for span in spans if span.place.pool == index]
        bars = [g for g in chart.iter("g") if g.find("title") is not None]
        assert len(bars) == len(own)
        end = max(result.seconds, *(span.end for span in spans))
        for bar, span in zip(bars, own, strict=True):
            place = bar.find("rect")
            assert place is not None and (bar.findtext("title") or "").startswith(f"{span.gang}: ")
            x, wide, y = (float(place.get(key, "")) for key in ("x", "width", "y"))
            assert abs(x - 4 - span.start / end * 992) < 0.1 and abs(wide - (span.end - span.start) / end * 992) < 0.5
            assert abs(y / float(charts[index].get("viewBox", "").split()[3]) - span.place.first / 8) < 0.1
    assert len([rect for rect in charts[1].iter("rect") if rect.get("class") == "off"]) == 1


def test_the_page_is_by_itself() -> None:
    text, result = page()
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text
    assert "j<0>" not in text and "j&lt;0&gt;" in text and "a &amp; b" in text
    assert f"{len(result.jobs)} of {len(result.jobs)}" in text


def test_nothing_happened() -> None:
    assert "0 of 0" in cluster_page(Result(TWO), "empty")
