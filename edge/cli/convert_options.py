"""The options of `msedge convert`, as annotated types with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

__all__ = [
    "AccuracyBudget",
    "Activations",
    "BatchNorm",
    "Cache",
    "Calibration",
    "ClipNorm",
    "Context",
    "Evaluation",
    "Explainable",
    "Integers",
    "Io",
    "KeepFloat",
    "KeepW8",
    "LearningRate",
    "LoraOnlyB",
    "LoraRank",
    "Loss",
    "Method",
    "Metric",
    "Mode",
    "Model",
    "Normalize",
    "Optimizer",
    "Output",
    "Pooling",
    "Processing",
    "ReportFile",
    "State",
    "Target",
    "Tokenizer",
    "Trainable",
    "WeightDecay",
]

_PRECISION, _ACCURACY, _TRAINING, _LANGUAGE = "Precision", "Accuracy", "Training", "Language models"
_EMBEDDING = "Embedding models"

Model: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A model file, or the folder of a SavedModel, a language or an embedding model."
    ),
]
Output: TypeAlias = Annotated[Path, typer.Option("--output", "-o", metavar="out.mslite", help="The file to write.")]
Mode: TypeAlias = Annotated[
    Literal["none", "fp16", "dynamic", "int8", "int16x8", "w8", "w4"],
    typer.Option(
        "--quantize",
        help="fp16: float16 weights, half the size. dynamic: int8, ranges measured at run time. int8, int16x8: ranges "
        "measured on --calibration. w8, w4: 8- or 4-bit weights, computation in float32.",
        rich_help_panel=_PRECISION,
    ),
]
Calibration: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE.npz|DIR",
        help="Representative samples: arrays by input name, or a folder of arrays or images. "
        "For a language model a text.",
        rich_help_panel=_PRECISION,
    ),
]
Method: TypeAlias = Annotated[
    Literal["auto", "minmax", "percentile", "entropy", "mse"],
    typer.Option(
        "--method",
        help="How a range is chosen from the observed values; auto measures which method is best.",
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
        help="Largest accepted loss of accuracy, such as 0.5%: the layers that lose most keep a higher precision.",
        rich_help_panel=_ACCURACY,
    ),
]
Metric: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="agreement (by default), error (against the float model), top1, auc, rmse (against labels), or "
        "your own function: module:function; of language models, perplexity.",
        rich_help_panel=_ACCURACY,
    ),
]
Evaluation: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--evaluation",
        metavar="FILE.npz",
        help="Inputs by name to measure accuracy on, with labels in the array `labels`; default: the calibration data. "
        "For a language model a text; default: the last quarter of the calibration text.",
        rich_help_panel=_ACCURACY,
    ),
]
Trainable: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--trainable",
        metavar="GLOB",
        help="Names of the initialisers (weights) that devices train; repeatable.",
        rich_help_panel=_TRAINING,
    ),
]
LoraRank: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="RANK[:GLOB]",
        help="Train low-rank adapters of this rank beside the frozen weights: beside all, or those that match GLOB.",
        rich_help_panel=_TRAINING,
    ),
]
LoraOnlyB: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--lora-only-b",
        help="Train the second matrix of each adapter only: half of the numbers, for federated runs with noise.",
        rich_help_panel=_TRAINING,
    ),
]
Loss: TypeAlias = Annotated[
    Literal["softmax_cross_entropy", "sigmoid_cross_entropy", "mse", "huber", "inner_product"],
    typer.Option("--loss", help="Loss of the model's first output and the labels.", rich_help_panel=_TRAINING),
]
Optimizer: TypeAlias = Annotated[
    Literal["sgd", "momentum", "adam"],
    typer.Option(
        "--optimizer",
        help="How train_step applies gradients; federated runs have settings of their own.",
        rich_help_panel=_TRAINING,
    ),
]
LearningRate: TypeAlias = Annotated[
    float,
    typer.Option("--learning-rate", help="Initial learning rate; devices may change it.", rich_help_panel=_TRAINING),
]
WeightDecay: TypeAlias = Annotated[
    float, typer.Option("--weight-decay", help="Weight decay of matrices and filters.", rich_help_panel=_TRAINING)
]
ClipNorm: TypeAlias = Annotated[
    float | None,
    typer.Option("--clip-norm", help="Upper bound of the global norm of the gradients.", rich_help_panel=_TRAINING),
]
BatchNorm: TypeAlias = Annotated[
    Literal["frozen", "train"],
    typer.Option(
        "--batch-norm",
        help="train: batch statistics in the normalisations whose scale or shift is trained; frozen: the stored ones.",
        rich_help_panel=_TRAINING,
    ),
]
SecondOrder: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--second-order",
        help="Add products with the Hessian, for the federated algorithms maml and meta_sgd_exact.",
        rich_help_panel=_TRAINING,
    ),
]
Explainable: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--explainable",
        help="Add the signature explain: gradients of the scores, in float32, for `msedge explain` and the gateway.",
    ),
]
Slopes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--slopes",
        metavar="INPUT",
        help="Compute the loss's gradient by this input too, for `msedge vertical`; repeatable.",
        rich_help_panel=_TRAINING,
    ),
]
Processing: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--processing",
        metavar="FILE.toml",
        help="Pre- and post-processing for serving: images and audio in, labels and boxes out.",
    ),
]
State: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        help="An input that continues an output of the run before: kept between runs, zeros at first; repeatable.",
    ),
]
Integers: TypeAlias = Annotated[
    Literal["exact", "litert"] | None,
    typer.Option(
        "--integers",
        help="How the quantised operators of a .tflite file round: as LiteRT does (by default), or exactly.",
    ),
]
Activations: TypeAlias = Annotated[
    Literal["int8", "float32"] | None,
    typer.Option(
        "--activations",
        help="What products with weights in blocks read: activations as 8-bit integers (by default), or as floats.",
        rich_help_panel=_LANGUAGE,
    ),
]
Context: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        metavar="N",
        help="Most tokens of a text, also for embeddings; default: the model's.",
        rich_help_panel=_LANGUAGE,
    ),
]
Tokenizer: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="tokenizer.json",
        help="Make an embedding model, which turns texts into vectors, of an encoder and this tokenizer.",
        rich_help_panel=_EMBEDDING,
    ),
]
Pooling: TypeAlias = Annotated[
    Literal["mean", "cls", "last", "none"] | None,
    typer.Option(
        "--pooling",
        help="What becomes a text's vector: the mean of its tokens' states (by default), the first or last one, or what"
        " the model gives.",
        rich_help_panel=_EMBEDDING,
    ),
]
Normalize: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize",
        help="Whether vectors get length 1; by default they do.",
        rich_help_panel=_EMBEDDING,
    ),
]
Cache: TypeAlias = Annotated[
    Literal["float16", "float32", "int8"] | None,
    typer.Option(
        "--cache",
        help="What keys and values of a text are kept as: int8 with scales (by default where activations have 8 "
        "bits), float16 in twice the memory, or float32.",
        rich_help_panel=_LANGUAGE,
    ),
]
KeepW8: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-w8",
        metavar="GLOB",
        help="Products with 8 bits in --quantize w4: down, layer.0.*, embedding; repeatable.",
        rich_help_panel=_LANGUAGE,
    ),
]
Target: TypeAlias = Annotated[
    Literal["mslite", "onnx"], typer.Option("--to", help="onnx: standard ONNX, quantised models in QDQ form.")
]
ReportFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--report", metavar="out.html", help="Write a report of all changes, layer by layer: .html or .json."),
]
