"""A small simulated fleet, over HTTP, against a hub that is killed twice: what `benchmarks.fleet` does with 10,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fleet


@pytest.mark.slow
def test_two_hundred_agents_and_a_hub_that_is_killed(tmp_path: Path, address: str) -> None:
    found = fleet.run(tmp_path, 200, address, processes=1, interval=2.0, watch=0.5, soak=0.5, steps=(25.0, 60.0, 100.0),
        limit=240.0)  # fmt: skip
    bad, good, lost = found["bad version"], found["good version"], found["lost"]
    assert bad["share"] <= 0.35
    assert "failed" in bad["reason"] or "confidence" in bad["reason"]
    assert (good["members"], good["bad"]) == (200, 0)
    assert (lost["devices"], lost["events"], lost["gaps"]) == (0, 0, 0)
    assert lost["stored_events"] >= 200
    assert len(found["restarts"]) == 2
