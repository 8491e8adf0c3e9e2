"""The table of extras agrees with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from edge.extras import EXTRAS, explain_missing
from lite_runtime._extras import install_line

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
    left_out = {"mlflow", "oidc", "otel", "parquet", "peers", "postgres", "ray", "torch", "wandb"}
    assert set(re.findall(r"\[(.*)\]", everything)[0].split(",")) == set(EXTRAS) - left_out
    assert not any("cuda" in requirement for name in ("all", "dev", *EXTRAS) for requirement in OPTIONAL[name])


def test_a_missing_extra_names_packages_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody owns msedge's name on an index: installing it by name would run whatever somebody puts there."""
    listed = ["numpy>=2", "a~=1.0; extra == 'x'", "b (<2,>=1) ; extra == \"x\"", "msedge[x] ; extra == 'y'",
              "c[d]>=3; extra == 'y' and python_version > '3'", "msedge[y,x]; extra == 'all'"]  # fmt: skip
    monkeypatch.setattr(metadata, "requires", lambda name: listed)
    monkeypatch.setattr(metadata, "version", _nothing)
    assert install_line("x") == "pip install 'a~=1.0' 'b <2,>=1'"
    assert install_line("y") == "pip install 'a~=1.0' 'b <2,>=1' 'c[d]>=3'" == install_line("all")
    assert "wheel or checkout" in install_line("other") and install_line("other", ["numba"]) == "pip install numba"
    monkeypatch.setattr(metadata, "version", lambda name: {"a": "1"}[name] if name == "a" else _nothing(name))
    assert install_line("x") == "pip install 'b <2,>=1'"  # a is here
    monkeypatch.setattr(metadata, "requires", _nothing)
    for name, extra in EXTRAS.items():
        error = explain_missing(ModuleNotFoundError(name=next(reversed(extra.packages))))
        assert error is None or "msedge" not in str(error).partition("Install it with:")[2], name


def _nothing(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_only_packages_of_extras_are_explained() -> None:
    explained = explain_missing(ModuleNotFoundError(name="onnx.checker"))
    assert explained is not None and explained.extra == "convert"
    assert explain_missing(ModuleNotFoundError(name="nobody")) is None
