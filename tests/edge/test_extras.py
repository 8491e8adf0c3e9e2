"""The table of extras agrees with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from edge.extras import EXTRAS, explain_missing

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    found = {re.split(r"[\[<>=~]", r, maxsplit=1)[0].lower().replace("-", "_") for r in requirements}
    return found - {"msedge"}


def test_every_extra_lists_its_packages() -> None:
    listed = {name: {p.lower().replace("-", "_") for p in extra.packages.values()} for name, extra in EXTRAS.items()}
    assert listed == {name: names(OPTIONAL[name]) for name in EXTRAS}


def test_a_device_installs_numpy_alone() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy"}


def test_the_extra_all_is_everything_except_cuda_and_some_others() -> None:
    (everything,) = OPTIONAL["all"]
    left_out = {"oidc", "otel", "peers", "ray", "torch"}
    assert set(re.findall(r"\[(.*)\]", everything)[0].split(",")) == set(EXTRAS) - left_out
    assert not any("cuda" in requirement for name in ("all", "dev", *EXTRAS) for requirement in OPTIONAL[name])


def test_only_packages_of_extras_are_explained() -> None:
    explained = explain_missing(ModuleNotFoundError(name="onnx.checker"))
    assert explained is not None and "msedge[convert]" in str(explained)
    assert explain_missing(ModuleNotFoundError(name="nobody")) is None
