"""The options of `msedge explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

__all__ = [
    "Baseline", "Classes", "Compare", "Given", "Inputs", "Kind", "Layer", "Method", "Model", "Names", "Page",
    "Position", "Row", "Rows", "Rule", "Rules", "Samples", "Save", "Scores", "Seconds", "Size", "Steps", "Superpixels",
    "Target", "Text", "Tokenizer", "Twin",
]  # fmt: skip

Model: TypeAlias = Annotated[Path, typer.Argument(metavar="MODEL", help="A bundle, or a float model such as ONNX.")]
Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="FILE.npy",
        help="The sample: FILE.npy, NAME=FILE.npy for each of several inputs, or FILE.npz; repeatable.",
    ),
]  # fmt: skip
Method: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m", metavar="NAME",
        help="saliency, input_x_gradient, integrated_gradients, smoothgrad, occlusion, rise, kernel_shap, grad_cam, "
        "lrp, or all; repeatable. Default: integrated_gradients, or kernel_shap where there is no gradient.",
    ),
]  # fmt: skip
Row: TypeAlias = Annotated[int, typer.Option("--row", min=0, metavar="N", help="Which row of the file, from 0.")]
Target: TypeAlias = Annotated[
    int | None,
    typer.Option("--target", metavar="N", help="The output to explain; default: that with the highest score."),
]
Twin: TypeAlias = Annotated[
    Path | None,
    typer.Option("--float", metavar="FILE", help="The float model of an integer bundle, for methods by gradients."),
]
Compare: TypeAlias = Annotated[
    bool, typer.Option("--compare", help="Measure how faithful the explanations are to the model as deployed.")
]
Page: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="page.html", help="Write a page with pictures.")
]
Save: TypeAlias = Annotated[
    Path | None, typer.Option("--save", metavar="out.npz", help="Save the attributions, by method.")
]
Kind: TypeAlias = Annotated[
    Literal["image", "sound", "series", "table", "text"] | None,
    typer.Option("--kind", help="What the sample is; default: by its shape."),
]
Given: TypeAlias = Annotated[
    str | None,
    typer.Option("--explain", metavar="NAME", help="Of several inputs, the one to explain; others stay as they are."),
]
Scores: TypeAlias = Annotated[
    str | None, typer.Option("--scores", metavar="NAME", help="The output with the scores; default: the first.")
]
Position: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--position", metavar="N",
        help="Of scores at each position, as of a language model, those to explain; default: the last, or that of "
        "--text's last token.",
    ),
]  # fmt: skip
Text: TypeAlias = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="A text as the sample, instead of --input.")
]
Tokenizer: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="FILE",
        help="tokenizer.json, or the tokens one a line from id 0, so that token ids are shown as words; default: that "
        "of the bundle.",
    ),
]  # fmt: skip
Baseline: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline", metavar="HOW",
        help="What a removed element becomes: zero, mean, blur, low, high, a number, or FILE.npy; repeatable for "
        "integrated_gradients, which takes the mean over all. Default: zero.",
    ),
]  # fmt: skip
Size: TypeAlias = Annotated[
    int | None, typer.Option("--size", metavar="N", help="Elements of a part along rows, columns or time.")
]
Superpixels: TypeAlias = Annotated[
    int | None,
    typer.Option("--superpixels", metavar="N", help="About N parts of an image by colour, instead of squares."),
]
Steps: TypeAlias = Annotated[int, typer.Option("--steps", metavar="N", help="Points of integrated_gradients.")]
Rule: TypeAlias = Annotated[
    Literal["gauss_legendre", "middle", "left", "right", "trapezoid"],
    typer.Option("--rule", help="How integrated_gradients adds up."),
]
Samples: TypeAlias = Annotated[
    int | None,
    typer.Option("--samples", metavar="N", help="Samples of smoothgrad (default 32), rise and kernel_shap (1000)."),
]
Layer: TypeAlias = Annotated[
    str, typer.Option("--layer", metavar="NAME", help="The layer of grad_cam; default: the last convolution.")
]
Rules: TypeAlias = Annotated[
    Literal["epsilon", "gamma", "z_plus", "composite", "composite_flat"],
    typer.Option("--rules", help="The rules of lrp."),
]
Rows: TypeAlias = Annotated[
    int | None, typer.Option("--rows", min=1, metavar="N", help="The most rows that a method may ask of the model.")
]
Seconds: TypeAlias = Annotated[
    float | None, typer.Option("--seconds", metavar="S", help="The longest that a method may take.")
]
Names: TypeAlias = Annotated[
    Path | None, typer.Option("--names", metavar="FILE", help="Names of features, tokens or channels, one a line.")
]
Classes: TypeAlias = Annotated[
    Path | None, typer.Option("--classes", metavar="FILE", help="Names of the outputs, one a line.")
]
