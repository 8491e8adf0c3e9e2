"""A run that grows trees, as a TOML file: [trees], [data], [rounds], [privacy], [report]."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from federated.analytics.base import MOST_EXAMPLES, READ
from federated.analytics.config import Asking, Examples, Private
from federated.tables import Count, NotNegative, Number, Positive, Reader, Table
from federated.trees.grow import Growth

__all__ = ["Boosting", "TreesRun", "parse"]


class _Section(Table, frozen=True):
    reader: ClassVar[Reader] = READ


class Boosting(_Section, frozen=True):
    """What is grown; settings that XGBoost's scikit-learn interface has are named as there, with its defaults."""

    objective: Literal["binary:logistic", "reg:squarederror", "multi:softprob"]
    features: Annotated[int, Meta(ge=1, le=1 << 16)]
    """The number of columns of the input."""
    input: str = "x"
    classes: Annotated[int, Meta(ge=0, le=1000)] = 0
    n_estimators: Count = 100
    max_depth: Annotated[int, Meta(ge=1, le=12)] = 6
    learning_rate: Positive = 0.3
    reg_lambda: NotNegative = 1.0
    gamma: NotNegative = 0.0
    min_child_weight: NotNegative = 1.0
    colsample_bytree: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of the columns that a round may split, drawn by `rounds.seed`."""
    max_bin: Annotated[int, Meta(ge=2, le=1 << 12)] = 64
    base_score: Number | None = None
    """The prediction before the first tree; by default 0.5, or the middle of the labels' range."""
    edges: Literal["quantiles", "uniform"] = "quantiles"
    """Where the bins' edges are: at quantiles of each column, or at equal distances."""
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    """The range of the columns, one for all or one for each; (): devices are asked."""
    label_low: Number | None = None
    label_high: Number | None = None
    """The range of a regression's labels, to which they are cut."""
    most: Annotated[int, Meta(ge=0, le=MOST_EXAMPLES)] = 0
    """The most examples of a device that count; 0: all. Noise needs it."""
    bits: Annotated[int, Meta(ge=0, le=30)] | None = None
    """Gradients are rounded to multiples of 2^-bits; by default as fine as sums of 31 bits over the devices allow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        READ.need((self.classes > 1) == (self.objective == "multi:softprob"), "trees.classes",
                  "2 or more with multi:softprob, none otherwise", self.classes)  # fmt: skip
        ranged = self.label_low is not None and self.label_high is not None
        READ.need(
            ranged == (self.objective == "reg:squarederror") and (ranged or self.label_low is self.label_high),
            "trees.label_low and trees.label_high",
            "the range of the labels with reg:squarederror, none otherwise",
            (self.label_low, self.label_high),
        )
        READ.need(self.base_score is None or self.objective != "binary:logistic" or 0 < self.base_score < 1,
                  "trees.base_score", "a probability", self.base_score)  # fmt: skip
        fits = len(self.low) == len(self.high) and len(self.low) in (0, 1, self.features)
        fits = fits and all(low < high for low, high in zip(self.low, self.high, strict=False))
        READ.need(fits, "trees.low and trees.high", "no range, one, or one for each of the features, low below high",
                  (self.low, self.high))  # fmt: skip

    @property
    def growth(self) -> Growth:
        """How trees grow."""
        return Growth(**{key: getattr(self, key) for key in Growth.__dataclass_fields__})

    @property
    def questions(self) -> int:
        """The most questions that the run asks."""
        return self.n_estimators * self.max_depth + (not self.low) + (self.edges == "quantiles")

    @property
    def base(self) -> float:
        """`base_score` or its default."""
        if self.base_score is not None:
            return self.base_score
        return 0.5 if self.label_low is None or self.label_high is None else (self.label_low + self.label_high) / 2


class Outcome(_Section, frozen=True):
    """Files written at the end; "" for none. `model`: XGBoost's JSON."""

    json: str = ""
    model: str = ""


class Kept(_Section, frozen=True):
    """`checkpoint`: a file written after each round, from which --resume continues; "" for none."""

    checkpoint: str = ""


class _File(_Section, frozen=True):
    trees: Boosting
    state: Kept = Kept()
    data: Examples = Examples()
    rounds: Asking = Asking()
    privacy: Private = Private()
    report: Outcome = Outcome()


class TreesRun(_File, frozen=True, kw_only=True):
    """A run that grows trees. `folder`: the base of relative paths."""

    folder: Path = Path()

    def __post_init__(self) -> None:
        """Does nothing: its parts were checked when they were created."""

    def path(self, text: str) -> Path:
        """A path in the file, resolved."""
        return self.folder / text


def parse(words: Mapping[str, Any], folder: Path = Path()) -> TreesRun:
    """The run that a parsed file describes. Raises FederatedError, naming the key."""
    file = READ.read(_File, words)
    READ.need(file.privacy.noise == "none" or file.trees.most > 0, "trees.most",
              "a limit with noise, which covers what one device can change", 0)  # fmt: skip
    READ.need(not (file.state.checkpoint and file.privacy.secure), "state.checkpoint",
              "none with privacy.secure: devices mask an answer once, so an interrupted round cannot be repeated",
              file.state.checkpoint)  # fmt: skip
    READ.need(not (file.state.checkpoint and file.privacy.epsilon), "privacy.epsilon",
              "privacy.multiplier with state.checkpoint: resumed runs repeat rounds, which costs more than planned",
              file.privacy.epsilon)  # fmt: skip
    return TreesRun(**msgspec.structs.asdict(file), folder=folder)
