from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sources.listing import Files, Folder, Listing, is_ensemble, merged


def versions(listing: Listing) -> dict[int, str]:
    return {version: os.path.basename(os.path.dirname(c.path)) for version, c in listing.versions.items()}


def test_a_folder_of_models(place: Any) -> None:
    for path in ("a/1/model.mslite", "a/12/model.mslite", "b/model.mslite", "c.mslite"):
        place.put(path, b"x")
    for path in ("a/01/model.mslite", "a/0/model.mslite", "a/x/model.mslite", "a/3/other.mslite", ".d/1/model.mslite"):
        place.put(path, b"x")
    for path in ("e/readme.txt", "notes.txt", "bad name/model.mslite", ".f.mslite", "-g.mslite"):
        place.put(path, b"x")
    found = Folder(place.root).scan()
    assert {name: versions(listing) for name, listing in found.items()} == {
        "a": {1: "1", 12: "12"}, "b": {1: "b"}, "c": {1: "models"},
    }  # fmt: skip
    assert all(not listing.problem for listing in found.values())


def test_a_version_found_twice_is_reported(place: Any) -> None:
    place.put("a/1/model.mslite", b"x")
    place.put("a/model.mslite", b"x")
    assert "version 1 exists twice" in Folder(place.root).scan()["a"].problem
    place.put("b/1/model.mslite", b"x")
    place.put("b.mslite", b"x")
    assert "version 1 exists twice" in Folder(place.root).scan()["b"].problem


def test_links_lead_anywhere_within_the_folder_and_nowhere_else(place: Any, tmp_path: Path) -> None:
    outside = tmp_path / "secret.mslite"
    outside.write_bytes(b"x")
    place.put("a/1/model.mslite", b"x")
    (place.root / "b").mkdir()
    (place.root / "b" / "1").symlink_to(place.root / "a" / "1")
    (place.root / "c.mslite").symlink_to(outside)
    (place.root / "d").symlink_to(tmp_path)
    (place.root / "e.mslite").symlink_to(tmp_path / "nothing")
    (place.root / "f.mslite").symlink_to(place.root / "f.mslite")
    (tmp_path / "model.mslite").write_bytes(b"x")
    found = Folder(place.root).scan()
    assert sorted(found) == ["a", "b", "c", "d", "f"]
    assert versions(found["b"]) == {1: "1"}
    for name in "cd":
        assert not found[name].versions and "leads out of" in found[name].problem
    assert not found["f"].versions


def test_entries_that_are_not_files_are_reported(place: Any) -> None:
    (place.root / "a" / "1" / "model.mslite").mkdir(parents=True)
    os.mkfifo(place.root / "b.mslite")
    found = Folder(place.root).scan()
    assert "expected a file" in found["a"].problem and "expected a file" in found["b"].problem


def test_configurations_next_to_models(place: Any) -> None:
    place.put("a/1/model.mslite", b"x")
    place.put("a/config.toml", "max_batch = 3")
    place.put("b.mslite", b"x")
    place.put("b.toml", "max_batch = 4")
    found = Folder(place.root).scan()
    assert [found[name].config.max_batch for name in "ab"] == [3, 4]
    for broken in ("max_batch = ", "max_batch = 'x'", "\xff", "x = 1", "[" * 10_000, "# " + "x" * (1 << 20)):
        place.put("a/config.toml", broken.encode("latin-1"))
        listing = Folder(place.root).scan()["a"]
        assert listing.config is None and "config.toml" in listing.misconfigured and listing.versions


def test_ensembles_are_found_where_bundles_are(place: Any) -> None:
    for path in ("a/1/ensemble.toml", "a/2/ensemble.json", "a/3/model.mslite", "b/ensemble.json", "c/1/other.toml"):
        place.put(path, b"x")
    place.put("a/config.toml", "timeout = 3")
    place.put("stray.json", b"x")
    found = Folder(place.root).scan()
    assert {name: {v: os.path.basename(c.path) for v, c in of.versions.items()} for name, of in found.items()} == {
        "a": {1: "ensemble.toml", 2: "ensemble.json", 3: "model.mslite"}, "b": {1: "ensemble.json"},
    }  # fmt: skip
    assert found["a"].config is not None and found["a"].config.timeout == 3
    assert [is_ensemble(found["a"].versions[v].path) for v in (1, 2, 3)] == [True, True, False]
    for path in ("b/model.mslite", "d/1/ensemble.toml", "d/1/ensemble.json"):
        place.put(path, b"x")
    assert all("version 1 exists twice" in Folder(place.root).scan()[name].problem for name in "bd")


def test_a_configuration_in_tritons_text_is_no_silence(place: Any) -> None:
    place.put("a/config.pbtxt", b"platform: 'ensemble'")
    (place.root / "a" / "1").mkdir()
    place.put("b/1/model.mslite", b"x")
    place.put("b/config.pbtxt", b"")  # beside a bundle it is what Triton needs, and says nothing about us
    found = Folder(place.root).scan()
    assert "config.pbtxt is not read" in found["a"].problem and "ensemble.toml" in found["a"].problem
    assert found["b"].versions and not found["b"].problem


def test_an_invalid_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="expected a folder of models"):
        Folder(tmp_path / "none").scan()


def test_bundles_one_by_one(place: Any) -> None:
    one, two = place.put("one.mslite", b"x"), place.put("deep/3/model.mslite", b"x")
    graph = place.put("graph.toml", b"x")
    words = [str(one), f"two={two}", f"three={place.root / 'deep'}", "none.mslite", f"four={one}", str(graph)]
    found = Files(words).scan()
    assert {name: sorted(listing.versions) for name, listing in found.items()} == {
        "one": [1], "two": [1], "three": [3], "none": [], "four": [1], "graph": [1],
    }  # fmt: skip
    assert not found["graph"].misconfigured
    assert "expected a bundle, got nothing" in found["none"].problem
    with pytest.raises(GatewayError, match="another model has the name 'one'"):
        Files([str(one), "one=x"])
    with pytest.raises(GatewayError, match="expected a model's name"):
        Files(["bad name.mslite"])


def test_a_folder_is_a_model_or_has_models(place: Any) -> None:
    place.put("a/1/model.mslite", b"x")
    place.put("b/model.mslite", b"x")
    for name in "ab":
        one = Folder(place.root / name)
        assert {name: sorted(listing.versions) for name, listing in one.scan().items()} == {name: [1]}
        assert one.named == {name} and not one.problem
    several = Folder(place.root)
    assert sorted(several.scan()) == ["a", "b"] and not several.named


@pytest.mark.parametrize("own", ["model.mslite", "2/model.mslite", "ensemble.toml", "2/ensemble.json"])
def test_a_folder_that_is_a_model_and_has_models_is_refused(place: Any, own: str) -> None:
    """Otherwise one of the two would be hidden after a restart, silently."""
    place.put("other.mslite", b"x")
    hot = Folder(place.root)
    assert sorted(hot.scan()) == ["other"]
    place.put(own, b"x")
    with pytest.raises(GatewayError, match=r"holds a model itself .* such as 'other'; move"):
        Folder(place.root).scan()
    assert sorted(hot.scan()) == ["other"] and "holds a model itself" in hot.problem
    (place.root / own).unlink()
    assert sorted(hot.scan()) == ["other"] and not hot.problem


def test_models_added_to_a_model_s_folder_do_not_end_it(place: Any) -> None:
    place.put("model.mslite", b"x")
    hot = Folder(place.root)
    assert sorted(hot.scan()) == ["models"]
    place.put("other.mslite", b"x")
    assert sorted(hot.scan()) == ["models"] and hot.problem in hot.scan()["models"].problem
    with pytest.raises(GatewayError, match="holds a model itself"):
        Folder(place.root).scan()


def test_models_may_have_numbers_as_names(place: Any) -> None:
    place.put("7/1/model.mslite", b"x")
    assert sorted(Folder(place.root).scan()) == ["7"]


def test_for_a_model_in_two_sources_the_first_source_counts() -> None:
    one, other = Listing({}, None, "one"), Listing({}, None, "other")
    found = merged([{"a": one}, {"a": other, "b": other}])
    assert found["b"] == other
    assert found["a"].problem == "one; 'a' is in two sources; the first one is used"
