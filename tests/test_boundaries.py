"""Where product code may catch every exception: CONTRIBUTING.md names four kinds of boundary; this is the list.

A handler that cleans up and raises the same exception again does not count and is always allowed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("cloud", "converter", "edge", "federated", "lite_runtime", "msedge.py")
EVERYTHING = {"Exception", "BaseException"}
KINDS = {
    "user code": "functions, modules and objects that users give us raise what they like",
    "library": "an optional library that promises no type of error",
    "thread": "whatever ends a worker is handed to whoever waits for it",
    "request": "one request, model or job fails; the server answers, says so and goes on with the others",
}
BOUNDARIES: dict[str, dict[str, int]] = {
    "cloud/data/reading/device.py": {"thread": 1},
    "cloud/data/reading/sources.py": {"library": 1},
    "cloud/data/reading/steps.py": {"user code": 1},
    "cloud/data/reading/streams.py": {"user code": 1},
    "cloud/data/reading/views.py": {"user code": 1},
    "cloud/data/reading/workers.py": {"user code": 1},
    "cloud/hub/database/writing.py": {"thread": 2},
    "cloud/track/copies/mlflow.py": {"library": 1},
    "cloud/track/copies/wandb.py": {"library": 1},
    "cloud/train/jobs/named.py": {"user code": 3},
    "cloud/train/jobs/graphs.py": {"library": 1},
    "cloud/train/keeping/checkpoint.py": {"library": 3},
    "cloud/train/many/processes.py": {"thread": 1},
    "cloud/train/tasks/exported.py": {"library": 1},
    "cloud/train/tuning/history.py": {"library": 1},
    "cloud/train/tuning/trial.py": {"user code": 1},
    "converter/frontends/pt2.py": {"library": 1},
    "converter/frontends/sklearn.py": {"library": 1},
    "converter/frontends/tensorflow.py": {"library": 1},
    "converter/frontends/torch/exporting.py": {"library": 1},
    "converter/frontends/trees/xgboost.py": {"library": 1},
    "edge/agent/application.py": {"user code": 1},
    "edge/agent/checking/child.py": {"request": 1},
    "edge/agent/checking/health.py": {"user code": 1},
    "edge/cli/options.py": {"user code": 1},
    "edge/demo/updates/device.py": {"thread": 1},
    "edge/gateway/apart.py": {"thread": 1},
    "edge/gateway/batching/executor.py": {"thread": 1},
    "edge/gateway/batching/runner.py": {"request": 5},
    "edge/gateway/batching/scheduler.py": {"request": 1},
    "edge/gateway/ensembles/execution.py": {"request": 1},
    "edge/gateway/gateway.py": {"request": 2},
    "edge/gateway/grpc/service.py": {"request": 1},
    "edge/gateway/http/app.py": {"request": 2},
    "edge/gateway/http/inside.py": {"thread": 1},
    "edge/gateway/http/texts.py": {"request": 1},
    "edge/gateway/infer.py": {"request": 2},
    "edge/gateway/language/embedder.py": {"request": 1},
    "edge/gateway/language/host.py": {"request": 2, "thread": 1},
    "edge/gateway/models/loading.py": {"request": 1},
    "edge/gateway/models/shadow.py": {"request": 1},
    "edge/gateway/personal/runner.py": {"request": 3},
    "edge/gateway/personal/together.py": {"request": 1},
    "edge/gateway/processing/images.py": {"library": 2},
    "edge/gateway/running.py": {"request": 3},
    "federated/transport/grid.py": {"user code": 1},
    "lite_runtime/custom.py": {"user code": 1},
}


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Names of what a handler catches; everything, where it names nothing."""
    if handler.type is None:
        return set(EVERYTHING)
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in ast.walk(handler.type)
            if isinstance(node, ast.Name | ast.Attribute)}  # fmt: skip


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether the exception leaves the handler, whatever else that does."""
    last = handler.body[-1]
    leaves = any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(handler))
    return isinstance(last, ast.Raise) and last.exc is None and not leaves


def swallowing(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a source that catch everything, and the kind of boundary that each is said to be ("" for none)."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and caught(node) & EVERYTHING and not raises_again(node):
            said = re.search(r"#\s*([\w ]+):", lines[node.lineno - 1])
            yield node.lineno, said[1] if said else ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            yield from ((node.lineno, "") for argument in node.args if ast.unparse(argument) in EVERYTHING)


def found() -> dict[str, list[tuple[int, str]]]:
    files: dict[str, list[tuple[int, str]]] = {}
    for name in PRODUCT:
        there = ROOT / name
        for path in sorted(there.rglob("*.py")) if there.is_dir() else [there]:
            text = path.read_text(encoding="utf-8")
            if re.search(r"except:|\bBaseException\b|\bException\b", text) and (lines := list(swallowing(text))):
                files[path.relative_to(ROOT).as_posix()] = lines
    return files


def test_all_exceptions_are_caught_only_at_known_boundaries() -> None:
    """A new one needs a reason on its line and a row above; a row whose handler is gone goes too."""
    here = {path: dict(Counter(kind for _, kind in lines)) for path, lines in found().items()}
    assert here == BOUNDARIES
    assert {kind for kinds in BOUNDARIES.values() for kind in kinds} == set(KINDS)


def test_each_kind_is_explained_to_contributors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []


@pytest.mark.parametrize(
    ("handler", "kinds"),
    [
        ("except ValueError: pass", []),
        ("except Exception: pass", [""]),
        ("except (ValueError, Exception): pass", [""]),
        ("except builtins.BaseException: pass", [""]),
        ("except: pass", [""]),
        ("except Exception as e:  # user code: why\n  raise Other() from e", ["user code"]),
        ("except BaseException:\n  undo()\n  raise", []),
        ("except BaseException:\n  if fine: return\n  raise", [""]),
    ],
)
def test_catching_all_exceptions_is_noticed(handler: str, kinds: list[str]) -> None:
    text = f"for i in x:\n try:\n  f()\n {handler}".replace("return", "continue")
    assert [kind for _, kind in swallowing(text)] == kinds


def test_suppressing_all_exceptions_is_noticed() -> None:
    text = "with contextlib.suppress(OSError): f()\nwith contextlib.suppress(Exception): f()\n"
    assert [line for line, _ in swallowing(text)] == [2]
