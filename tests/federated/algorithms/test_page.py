"""docs/algorithms.md says what the code does."""

from __future__ import annotations

import pytest

from cloud.zoo import mlp
from converter import convert
from federated.algorithms import ALGORITHMS, algorithm_from
from federated.client.lite import LiteLearner
from federated.errors import FederatedError
from tests import algorithms_page
from tests.federated.quadratic import batches


def test_the_page_is_up_to_date() -> None:
    found = algorithms_page.PAGE.read_text(encoding="utf-8")
    assert found == algorithms_page.page(), "run python -m tests.algorithms_page --update"


@pytest.fixture(scope="module")
def lite() -> LiteLearner:
    return LiteLearner(convert(mlp(3, 2), trainable="*").bundle, backend="reference")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_said_to_run_on_devices_does(lite: LiteLearner, name: str) -> None:
    words = {"own": ["*bias"]} if "own" in {entry.name for entry in algorithms_page.settings(ALGORITHMS[name])} else {}
    algorithm = algorithm_from({"name": name, **words})
    drawn = batches(2 * algorithm.batches_a_step)
    drawn = drawn._replace(labels=(drawn.labels > 0).astype("int64"))
    broadcast = algorithm.broadcast(algorithm.init(lite.params))
    row = next(line for line in algorithms_page.page().splitlines() if line.startswith(f"| `{name}` |"))
    assert (row.split(" | ")[2] == "`--second-order`") == ALGORITHMS[name].second_order
    if row.split(" | ")[2] == "yes":
        update, _ = algorithm.local(lite, broadcast, algorithm.enrol(broadcast), drawn)
        assert update.loss > 0
    else:
        with pytest.raises(FederatedError):
            algorithm.local(lite, broadcast, algorithm.enrol(broadcast), drawn)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_listed_settings_are_those_that_are_read(name: str) -> None:
    kind = ALGORITHMS[name]
    listed = {entry.name: entry.default for entry in algorithms_page.settings(kind)}
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in listed.items()}
    assert algorithm_from({"name": name, **plain}) == kind()
