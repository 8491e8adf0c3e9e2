"""Options that several commands share, and the parser of `--input-shape`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

__all__ = ["BackendName", "Bundle", "Changes", "Custom", "InputShapes", "Json", "Seed", "Threads", "read_shapes"]

Bundle: TypeAlias = Annotated[Path, typer.Argument(metavar="M.mslite", help="A bundle that `msedge convert` made.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Threads: TypeAlias = Annotated[int, typer.Option("--threads", min=1, max=256, metavar="N", help="Worker threads.")]
BackendName: TypeAlias = Annotated[
    Literal["auto", "native", "reference"],
    typer.Option("--backend", help="native: compiled kernels; reference: NumPy only; auto: native if available."),
]
InputShapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape", metavar="NAME=1,3,224,224", help="Shape of an input with dynamic dimensions; repeatable."
    ),
]


def _imported(names: list[str] | None) -> list[str] | None:
    """Import modules that register operators: FILE.py, or a module by its name. Their code runs."""
    import importlib
    import importlib.util
    import sys

    for name in names or ():
        path = Path(name)
        try:
            if path.suffix != ".py":
                importlib.import_module(name)
                continue
            found = importlib.util.spec_from_file_location(path.stem, path)
            if found is None or found.loader is None or not path.is_file():
                raise typer.BadParameter(f"no module at {name}; give FILE.py or an importable module's name")
            module = importlib.util.module_from_spec(found)
            sys.modules.setdefault(path.stem, module)
            found.loader.exec_module(module)
        except typer.BadParameter:
            raise
        except Exception as error:  # user code: a module raises what it likes
            raise typer.BadParameter(f"importing {name} failed: {type(error).__name__}: {error}") from error
    return names


Custom: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--custom",
        metavar="MODULE",
        callback=_imported,
        help="Import FILE.py or a module that registers operators of your own; this runs its code. Repeatable.",
    ),
]
Changes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a value of the configuration; repeatable."),
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", help="Seed of the random numbers.")]


def read_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """`["x=1,3"]` -> `{"x": (1, 3)}`; wrong usage is reported in typer's way."""
    return dict(_shape(text) for text in texts or ())


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not equals or not name or not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"expected NAME=1,3,224,224, got {text!r}", param_hint="--input-shape")
    return name, tuple(int(part) for part in parts)
