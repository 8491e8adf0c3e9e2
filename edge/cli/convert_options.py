"""The options of `msedge convert`, as annotated types: what each takes and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

__all__ = [
    "AccuracyBudget",
    "BatchNorm",
    "Calibration",
    "ClipNorm",
    "Evaluation",
    "Io",
    "KeepFloat",
    "LearningRate",
    "LoraRank",
    "Loss",
    "Method",
    "Metric",
    "Mode",
    "Model",
    "Optimizer",
    "Output",
    "Pipeline",
    "ReportFile",
    "Target",
    "Trainable",
    "WeightDecay",
]

_PRECISION, _ACCURACY, _TRAINING = "Precision", "Accuracy", "Training"

Model: TypeAlias = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX or TensorFlow Lite model.")]
Output: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", metavar="out.mslite", help="The file to write.")
]
Mode: TypeAlias = Annotated[
    Literal["none", "fp16", "dynamic", "int8", "int16x8", "w8", "w4"],
    typer.Option(
        "--quantize",
        help="fp16: half the space for weights. dynamic: int8, ranges measured at run time. int8, int16x8: ranges "
        "measured on --calibration. w8, w4: 8- or 4-bit weights, computed in float32.",
        rich_help_panel=_PRECISION,
    ),
]
Calibration: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE.npz|DIR",
        help="Samples like those the model will meet: arrays by input name, or a folder of arrays or images.",
        rich_help_panel=_PRECISION,
    ),
]
Method: TypeAlias = Annotated[
    Literal["auto", "minmax", "percentile", "entropy", "mse"],
    typer.Option(
        "--method",
        help="How observed values become a range; auto measures which is best.",
        rich_help_panel=_PRECISION,
    ),
]
KeepFloat: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-float",
        metavar="GLOB",
        help="Nodes or operators to keep in float; repeatable.",
        rich_help_panel=_PRECISION,
    ),
]
Io: TypeAlias = Annotated[
    Literal["float32", "int8"],
    typer.Option("--io", help="Element type of an int8 model's inputs and outputs.", rich_help_panel=_PRECISION),
]
AccuracyBudget: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--accuracy-budget",
        metavar="P",
        help="How much accuracy may be lost, such as 0.5%: the layers that lose most keep a higher precision.",
        rich_help_panel=_ACCURACY,
    ),
]
Metric: TypeAlias = Annotated[
    str,
    typer.Option(
        "--metric",
        help="agreement, error (against the float model), top1, auc, rmse (against labels), or "
        "a function of your own: module:function.",
        rich_help_panel=_ACCURACY,
    ),
]
Evaluation: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--evaluation",
        metavar="FILE.npz",
        help="Inputs by name to measure on, and their labels under labels; default: the calibration data.",
        rich_help_panel=_ACCURACY,
    ),
]
Trainable: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--trainable",
        metavar="GLOB",
        help="Parameters that devices train, by their initialisers' names; repeatable.",
        rich_help_panel=_TRAINING,
    ),
]
LoraRank: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="RANK[:GLOB]",
        help="Train low-rank adapters of this rank beside frozen weights: all of them, or those that match GLOB.",
        rich_help_panel=_TRAINING,
    ),
]
Loss: TypeAlias = Annotated[
    Literal["softmax_cross_entropy", "sigmoid_cross_entropy", "mse", "huber"],
    typer.Option("--loss", help="Between the model's first output and the labels.", rich_help_panel=_TRAINING),
]
Optimizer: TypeAlias = Annotated[
    Literal["sgd", "momentum", "adam"],
    typer.Option("--optimizer", help="How a training step applies gradients.", rich_help_panel=_TRAINING),
]
LearningRate: TypeAlias = Annotated[
    float,
    typer.Option("--learning-rate", help="The initial rate; devices may change it.", rich_help_panel=_TRAINING),
]
WeightDecay: TypeAlias = Annotated[
    float, typer.Option("--weight-decay", help="Applied to matrices and filters.", rich_help_panel=_TRAINING)
]
ClipNorm: TypeAlias = Annotated[
    float | None,
    typer.Option("--clip-norm", help="Upper bound of the global norm of the gradients.", rich_help_panel=_TRAINING),
]
BatchNorm: TypeAlias = Annotated[
    Literal["frozen", "train"],
    typer.Option(
        "--batch-norm",
        help="train: normalise by the batch where scale or shift are trained.",
        rich_help_panel=_TRAINING,
    ),
]
Pipeline: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--pipeline",
        metavar="FILE.toml",
        help="Pre- and post-processing for serving: images and sound in, labels and boxes out.",
    ),
]
Target: TypeAlias = Annotated[
    Literal["mslite", "onnx"], typer.Option("--to", help="onnx: standard ONNX, quantised models in QDQ form.")
]
ReportFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--report", metavar="out.html", help="A page of what was done, layer by layer; .json for machines."),
]
