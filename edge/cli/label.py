"""`msedge label`: which examples are worth a label, and the labels that people gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.options import Bundle, Json, Seed, Threads
from edge.cli.output import emit, say

if TYPE_CHECKING:
    from lite_runtime.graph import Array

__all__ = ["COMMANDS"]


def ask(
    bundle: Bundle,
    data: Annotated[
        Path, typer.Option("--data", metavar="POOL.npz", help="Examples without labels: an array for each input.")
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="How many labels to ask for.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder of the request.")],
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", metavar="NAME", help="least_confident, margin, entropy, bald, coreset, badge or random."
        ),
    ] = "margin",
    features: Annotated[
        str | None,
        typer.Option("--features", metavar="OUTPUT", help="The output that coreset and badge compare rows by."),
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", metavar="FILE.npz", help="Examples with labels: coreset stays away from them."),
    ] = None,
    scores: Annotated[
        str | None, typer.Option("--scores", metavar="OUTPUT", help="The output of the classes, if there are several.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="NAME,NAME,…", help="Names of the classes, for people.")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=2, max=1000, help="Random dropouts that bald compares.")] = 20,
    seed: Seed = 0,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Choose the examples whose labels would teach a model most, and write a request for them to a folder.

    FOLDER/index.html is the request for people: it shows each example, and saves answers.json. A program of yours may
    write answers.json or answers.csv (ID,CLASS) instead. `msedge label collect FOLDER` then has the labelled examples.
    """
    import lite_runtime
    from edge.measuring.samples import read_arrays
    from edge.pages.label_page import label_page
    from lite_runtime._files import write_atomically
    from lite_runtime.active import ask as asked
    from lite_runtime.active import choose
    from lite_runtime.active.keeping import Example, identity
    from lite_runtime.active.predicting import look

    model = lite_runtime.load(bundle, threads=threads)
    pool = read_arrays(data)
    known = None if labelled is None else read_arrays(labelled)
    seen, guesses = look(
        model, pool, strategy, scores=scores, features=features, labelled=known, draws=draws, seed=seed
    )
    rows = choose(strategy, count, seen, seed)
    names = tuple(name.strip() for name in classes.split(",")) if classes else ()
    inputs = {value.name: pool[value.name] for value in model.inputs() if value.name in pool}
    examples = []
    for place, row in enumerate(rows):
        one = {name: array[row] for name, array in inputs.items()}
        examples.append(Example(identity(one), one, float(len(rows) - place), int(guesses[row])))
    unique = list({one.id: one for one in examples}.values())
    request = asked(output, unique, classes=names, model=model.bundle.digest, strategy=strategy)
    page = output / "index.html"
    write_atomically(page, label_page(unique, names, seen.probabilities.shape[1]).encode())  # type: ignore[union-attr]
    if as_json:
        emit({"request": str(request), "page": str(page), "strategy": strategy, "examples": len(unique),
              "pool": len(guesses), "ids": [one.id for one in unique]})  # fmt: skip
        return
    print(f"{request}: {len(unique)} of {len(guesses)} examples, by {strategy}")
    print(f"label them: open {page} in a browser and save answers.json in {output}")
    print(f"then:       msedge label collect {output} -o labelled.npz")


def collect(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Folders that `msedge label ask` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.npz", help="The labelled examples.")],
    label: Annotated[str, typer.Option("--label", metavar="NAME", help="The name of the array of labels.")] = "y",
    as_json: Json = False,
) -> None:
    """Write the examples that have labels by now, with the labels, to one .npz file.

    Exit code 1 while some examples have no answer.
    """
    import numpy as np

    from lite_runtime._arrays import packed_arrays
    from lite_runtime._files import write_atomically
    from lite_runtime.active import answers
    from lite_runtime.errors import MsedgeError

    found = [answers(folder) for folder in folders]
    kinds = {tuple((n, a.shape[1:]) for n, a in sorted(one.inputs.items())) for one in found}
    if len(kinds) > 1:
        raise MsedgeError("the folders ask about different inputs; collect them to files of their own")
    if label in found[0].inputs:
        raise MsedgeError(f"--label {label!r}: an input has this name; choose another one")
    arrays: dict[str, Array] = {n: np.concatenate([one.inputs[n] for one in found]) for n in found[0].inputs}
    arrays[label] = np.concatenate([one.labels for one in found])
    left, unknown = (sum(len(getattr(one, name)) for one in found) for name in ("left", "unknown"))
    count = len(arrays[label])
    if not count:
        raise MsedgeError(f"no labels yet: {left} examples have no answer, {unknown} nobody could label")
    write_atomically(output, packed_arrays(arrays))
    if as_json:
        emit({"output": str(output), "labelled": count, "unknown": unknown, "left": left})
    else:
        print(f"{output}: {count} labelled examples; {unknown} that nobody could label, {left} without an answer")
    if left:
        say("some examples have no answer yet")
        raise typer.Exit(1)


COMMANDS: Mapping[str, Callable[..., None]] = {"ask": ask, "collect": collect}
