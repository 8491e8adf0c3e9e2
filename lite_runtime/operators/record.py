"""The type of operator records, and the notation for their attributes.

An attribute is written `name:kind`, followed in this order, where they apply, by `!` if it is required, `(a|b)` for the
strings it may hold, `=number` for ONNX's default. Kinds: i int, f float, s string; I, F, S tuples of these; T array,
G graph, * anything.
"""

from __future__ import annotations

from typing import Literal

from lite_runtime.frozen import NamedTuple

__all__ = [
    "ACTIVATION",
    "ANY",
    "BOOL",
    "CLAMP",
    "CUSTOM",
    "EPILOGUE",
    "FLOATS",
    "INTS",
    "LAYOUT",
    "MANY",
    "NUMBERS",
    "ONNX",
    "OURS",
    "PADDING",
    "RANGES",
    "SIGNED",
    "Attribute",
    "Fused",
    "Operator",
    "Trait",
    "parsed",
]

MANY = 1 << 16
"""As a greatest number of inputs or outputs: effectively unlimited."""

ONNX = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""ONNX's domains."""
OURS = "msedge"
"""The domain that the converter's models use for operators of all other domains."""

CUSTOM = "::"
"""Between domain and name of an operator of a user's program, as bundles name it: see `lite_runtime.custom`."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTS)
BOOL = ("bool",)
ANY: tuple[str, ...] = ()
"""Every element type."""

Trait = Literal[
    "elementwise",  # each result element depends on operand elements at its position; operands broadcast as in NumPy
    "broadcasts",  # elementwise, and the result has the shape that all operands broadcast to
    "scaled",  # elementwise on quantised integers, except that scales and zero points may be given per index of an axis
    "exact",  # IEEE arithmetic defines every bit of the result; elementwise operators without it are approximate
    "commutes",  # elementwise, and its two operands may be exchanged
    "wraps",  # integer results may overflow and wrap
    "accumulates",  # sums products of operand 0 with weights, and has a form on floats and one on integers with scales
    "quantised",  # every quantised operand is followed by its scale and zero point
    "flat",  # piecewise constant: the derivative is 0 wherever it exists
    "table",  # a function of one number that 8 bits represent well: becomes a look-up table when quantised
    "homogeneous",  # f(s * x) = s * f(x) for every s > 0
    "movement",  # the results consist of elements of the first operand, moved, repeated or dropped
    "view",  # movement that keeps all elements in their order
    "selects",  # selects the greatest or least elements, so every result element occurs in an operand
    "idle",  # no arithmetic that counts as work
    "grows",  # the result may be much larger than all operands together
    "shape_only",  # the result depends only on the operands' shapes
    "along_axis",  # computes along attribute `axis`, -1 by default; indices of the other axes are independent
    "reduction",  # reduces the axes that input 1 names, or all
    "normalizes",  # by a mean, variance or norm of the operand
    "recurrent",  # iterates over time steps with a state
    "wide",  # computes internally with more range or precision than half-precision operands have
    "random",  # another result at every run
    "control",  # executes graphs given as attributes
    "optional_first",  # even required inputs may be left out by an empty name
]
"""Properties of operators, from which membership lists elsewhere are derived."""

LAYOUT = "layout:s(NCHW|NHWC)"
PADDING = "auto_pad:s(NOTSET|SAME_UPPER|SAME_LOWER|VALID)"
CLAMP = "activation:s(|Relu|Clip) activation_max:f activation_min:f"
"""The activations of operators on quantised integers."""
EPILOGUE = "@"
"""Among the strings an attribute may hold: the names that `epilogues` gives."""
ACTIVATION = "activation:s(@) activation_alpha:f activation_beta:f activation_max:f activation_min:f"
"""The fused activations of operators on floats."""


class Attribute(NamedTuple):
    """One attribute of an operator. `choices`: the strings it may hold; empty means any."""

    kind: str
    required: bool = False
    choices: tuple[str, ...] = ()
    default: float | None = None
    """ONNX's default, if it is a number and this code needs it."""


class Operator(NamedTuple):
    """One operator. Everything else (its gradient, quantisation scheme, JAX lowering, rules that need code) is in
    registries keyed by the names of these records."""

    name: str
    since: int = 1
    """The first version of its domain's operator set that includes it."""
    inputs: tuple[int, int] = (1, 1)
    """The least and greatest number; likewise for `outputs`."""
    outputs: tuple[int, int] = (1, 1)
    attrs: str = ""
    """Its attributes, in the notation above; `lite_runtime.operators.attributes` parses it."""
    traits: tuple[Trait, ...] = ()
    domain: str = ""
    """Empty for ONNX's own; "msedge" for ours, which ONNX lacks."""
    also: tuple[str, ...] = ()
    """Other domains that define it with the same name and meaning: models that use them can be imported."""
    reference: str = ""
    """The file of `lite_runtime/reference/` that defines it."""
    types: tuple[str, ...] | None = None
    """Element types of all operands, ANY for every one; None: a rule in `lite_runtime/ops/` infers the result types."""
    result: str = ""
    """The result's element type; "" for that of the operands."""
    numpy: str = ""
    """The function that implements it, under the same name in NumPy and jax.numpy."""
    f32: int = -1
    """Number of the float32 machine's instruction with the operator's name, -1 for none; `kernels/elementwise.py`
    defines the instructions."""
    i64: int = -1
    """The same for the integer machine."""
    settings: tuple[int, ...] = ()
    """Operands that configure it: constants, never parameters that training changes."""
    runs_as: str = ""
    """Another operator that computes this one from the same operands and attributes, with this one's defaults filled
    in: its instruction is used, and exported ONNX contains it instead."""
    epilogue: int = -1
    """Its number as the fused last step of matrix products and convolutions, -1 if they do not support it."""

    @property
    def unary(self) -> bool:
        """Whether it is an elementwise function of one operand."""
        return self.inputs == (1, 1) and "elementwise" in self.traits


class Fused(NamedTuple):
    """An activation fused into a matrix product or convolution as its last step."""

    code: int
    """Its number in the kernels."""
    op: str
    """The operator that computes the same unfused."""
    parameters: tuple[tuple[str, str, float], ...] = ()
    """At most two entries: the fused operator's attribute, this operator's attribute, ONNX's default."""
    form: tuple[tuple[str, str], ...] = ()
    """Attributes of `op` with fixed values."""


_KINDS = "ifsIFSTG*"


def parsed(text: str) -> dict[str, Attribute]:
    """The attributes that `text` describes, by name and in order; raises ValueError if it does not follow the notation.
    Parsed without a regular expression, which would take longer to compile than parsing all attributes of a model."""
    found: dict[str, Attribute] = {}
    for column in text.split():
        name, _, rest = column.partition(":")
        kind, rest = rest[:1], rest[1:]
        required = rest.startswith("!")
        texts: tuple[str, ...] = ()
        default: float | None = None
        rest = rest[required:]
        if rest.startswith("("):
            inside, _, rest = rest[1:].partition(")")
            texts = tuple(inside.split("|"))
        if rest.startswith("="):
            default, rest = float(rest[1:]), ""
        if not name.isidentifier() or kind not in _KINDS or not kind or rest:
            raise ValueError(f"expected an attribute as name:kind, followed by !, (a|b) and =number, got {column!r}")
        found[name] = Attribute(kind, required, texts, default)
    return found


_INT32 = (1 << 31) - 1

_RANGES: dict[tuple[int, int], str] = {
    (1, _INT32): (
        "blocksize dilations group hidden_size kernel_shape num_groups num_outputs num_scan_inputs offset_group "
        "output_height output_width pooled_shape size strides"
    ),
    (0, _INT32): "block_size output_padding output_shape p sample_size",
    (-_INT32, _INT32): "pads",
    (-64, 63): "axis axes batch_axis time_axis scan_input_axes scan_output_axes",
    (0, 63): "batch_dims dtype kept output_datatype output_dtype perm to",
    (0, 1): (
        "allowzero ceil_mode count_include_pad keepdims scan_input_directions scan_output_directions signed "
        "training_mode transA transB"
    ),
    (0, 1 << 48): "shape",
}

RANGES: dict[str, tuple[int, int]] = {name: ends for ends, names in _RANGES.items() for name in names.split()}
"""Attribute name to the least and greatest value of its integers, for every operator."""
