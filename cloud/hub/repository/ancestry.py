"""Where a release comes from, as a chain: data and models, runs, bundles, the release. From its signed document alone.

`origin` and `msedge hub add --lineage` have written what it says: FILE.source, FILE.run and FILE.parent of a bundle,
and other names, such as data, of the whole release.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloud.track.lineage import Link
from lite_runtime.updates.release import Release

__all__ = ["OF_A_FILE", "chain"]

OF_A_FILE = {"source": "model", "run": "training run", "parent": "bundle"}
"""What the lineage says of a file, by the ending of its name, and what that is."""


def chain(release: Release, known: Mapping[str, str]) -> list[Link]:
    """Elements of the chain, each after what it was made of. known: versions of the application by the digests of their
    bundles, which say where a parent was released."""
    links: list[Link] = []
    places: dict[tuple[str, str], int] = {}

    def put(kind: str, digest: str, text: str, sources: tuple[int, ...] = ()) -> int:
        if (kind, digest) not in places:
            links.append(Link(kind, digest, text, sources))
            places[kind, digest] = len(links) - 1
        return places[kind, digest]

    of_files: dict[str, dict[str, str]] = {name: {} for name in release.files}
    general: list[int] = []
    for name, value in release.lineage.items():
        of, _, what = name.rpartition(".")
        if of in of_files and what in OF_A_FILE:
            of_files[of][what] = value
        else:
            general.append(put(name, value, ""))
    bundles = []
    for name, file in release.files.items():
        said, made_of = of_files[name], tuple(general)
        if "run" in said:
            made_of = (put(OF_A_FILE["run"], said["run"], "", made_of),)
        if "source" in said:
            made_of = (put(OF_A_FILE["source"], said["source"], "what was converted", made_of),)
        if "parent" in said:
            version = known.get(said["parent"], "")
            made_of += (put(OF_A_FILE["parent"], said["parent"], f"version {version}" if version else "not released"),)
        bundles.append(put("bundle", file.digest, name, made_of))
    put("release", f"{release.application} {release.version}", "signed", tuple(dict.fromkeys(bundles)))
    return links
