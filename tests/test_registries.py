"""Every operator is in every registry, or there is a reason why not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lite_runtime.operators import OPERATORS, require
from tests.registries import REASONS, ROOT, Registries, findings, registries, selected


@pytest.fixture(scope="module")
def there() -> dict[str, frozenset[str]]:
    return registries()


def test_a_missing_operator_has_one_reason(there: Registries) -> None:
    assert findings(there) == []


def test_every_registry_is_checked(there: Registries) -> None:
    assert set(there) == set(REASONS)
    assert all(why and selected(text) for rows in REASONS.values() for why, text in rows)


@pytest.mark.parametrize("registry", sorted(REASONS))
def test_a_removed_operator_is_noticed(there: Registries, registry: str) -> None:
    op = min(there[registry])
    found = findings({registry: there[registry] - {op}})
    assert found == [f"{registry} lacks {op}, and no reason says why"]


@pytest.mark.parametrize("registry", sorted(name for name, rows in REASONS.items() if rows))
def test_a_reason_that_no_longer_holds_is_found(there: Registries, registry: str) -> None:
    why, text = REASONS[registry][0]
    op = min(selected(text))
    assert findings({registry: there[registry] | {op}}) == [f"{registry} has {op}, although: {why}"]


def test_names_without_a_record_are_found(there: Registries) -> None:
    assert findings({"jax": there["jax"] | {"Relo"}}) == ["jax has Relo, for which there is no record"]
    with pytest.raises(LookupError, match="lowerings to JAX: expected names of operators, got Relo"):
        require(["Relu", "Relo"], "lowerings to JAX")


def test_swiglu_is_everywhere_an_operator_of_two_operands_can_be(there: Registries) -> None:
    assert "SwiGLU" in OPERATORS
    assert {name for name, ops in there.items() if "SwiGLU" not in ops} == {"fused", "tflite", "export"}


WITHOUT_TRAITS = """
from lite_runtime.operators import activation, elementwise
for module, op, trait in ((activation, "SwiGLU", "elementwise"), (elementwise, "Floor", "flat")):
    module.RECORDS = tuple(
        row._replace(traits=tuple(t for t in row.traits if t != trait)) if row.name == op else row
        for row in module.RECORDS
    )
from tests.registries import findings, registries
print(*findings(registries()), sep="\\n")
"""


def test_registries_follow_traits() -> None:
    """That removing any trait from any record is noticed is shown in tests/lite_runtime/operators/test_records.py."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_TRAITS],
        capture_output=True, text=True, cwd=ROOT, check=True, timeout=300,
    )  # fmt: skip
    assert {
        "rows lacks SwiGLU, and no reason says why",
        "gradient lacks Floor, and no reason says why",
    } <= set(done.stdout.splitlines())
