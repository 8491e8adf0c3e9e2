"""What is known of an operator, as data: the type of the records, and the small language of their attributes.

An attribute is written `name:kind`, then in this order, where they apply: `!` if it must be there, `(a|b)` for the
texts it may hold, `=number` for ONNX's default. Kinds: i int, f float, s text; I, F, S tuples of these; T array, G
graph, * anything.

Annotations are evaluated here: of text, typing would make the record's class three times as slowly, at every start.
"""

from typing import Literal, NamedTuple

__all__ = [
    "ACTIVATION",
    "ANY",
    "BOOL",
    "CLAMP",
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
"""As a greatest number of inputs or outputs: no limit that anybody meets."""

ONNX = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""ONNX's domains."""
OURS = "msedge"
"""The domain that operators of any other have in the converter's models."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTS)
BOOL = ("bool",)
ANY: tuple[str, ...] = ()
"""Every element type."""

Trait = Literal[
    "elementwise",  # an element of the result comes from the elements at its place; operands broadcast as in NumPy
    "broadcasts",  # elementwise, and the result has the shape that all operands broadcast to
    "scaled",  # elementwise on numbers stored as integers, but for scales and zero points, which may belong to an axis
    "exact",  # IEEE arithmetic defines every bit of the result; elementwise operators without it are approximate
    "commutes",  # elementwise, and two operands may change places
    "wraps",  # the result may need more bits than its integer type has, and loses the high ones
    "accumulates",  # sums products of operand 0 with weights, and has a form on floats and one on integers with scales
    "quantised",  # every operand that stands for real numbers is followed by its scale and zero point
    "flat",  # the result does not move smoothly with the operands: its derivative is 0 wherever there is one
    "table",  # a function of one number that 8-bit numbers represent well: a look-up table when quantised
    "homogeneous",  # f(s * x) = s * f(x) for every s > 0
    "movement",  # the results hold elements of the first operand, moved, repeated or left out
    "view",  # movement that leaves all elements in their order
    "selects",  # the result holds the greatest or least elements, so it holds no number that the operands do not
    "idle",  # no arithmetic worth counting
    "grows",  # the result may be far larger than all operands together
    "shape_only",  # the result follows from the operands' shapes alone
    "along_axis",  # computes along attribute `axis`, -1 by default; the other axes stay apart
    "reduction",  # over the axes that input 1 names, or all
    "normalizes",  # by a mean, variance or norm of the operand
    "recurrent",  # has state: goes through time steps
    "wide",  # computes inside with more range or precision than half-precision operands have
    "random",  # another result every time
    "control",  # runs graphs that are its attributes
    "optional_first",  # the inputs that must be there may be left out by an empty name
]
"""What membership lists elsewhere are derived from."""

LAYOUT = "layout:s(NCHW|NHWC)"
PADDING = "auto_pad:s(NOTSET|SAME_UPPER|SAME_LOWER|VALID)"
CLAMP = "activation:s(|Relu|Clip) activation_max:f activation_min:f"
"""The activations of operators on integers."""
EPILOGUE = "@"
"""Among the texts an attribute may hold: the names that `epilogues` gives."""
ACTIVATION = "activation:s(@) activation_alpha:f activation_beta:f activation_max:f activation_min:f"
"""The activations that operators on floats may end with."""


class Attribute(NamedTuple):
    """One attribute of an operator. `choices`: the texts it may hold; none means any."""

    kind: str
    required: bool = False
    choices: tuple[str, ...] = ()
    default: float | None = None
    """ONNX's, where it is a number and something here needs it."""


class Operator(NamedTuple):
    """One operator. What is not said here (its gradient, its scheme when quantised, its JAX lowering, rules that need
    code) is in registries that take their names from these records."""

    name: str
    since: int = 1
    """The first version of its domain's operator set that has it."""
    inputs: tuple[int, int] = (1, 1)
    """The fewest and the most; likewise `outputs`."""
    outputs: tuple[int, int] = (1, 1)
    attrs: str = ""
    """Its attributes, in the language above; `lite_runtime.operators.attributes` reads it."""
    traits: tuple[Trait, ...] = ()
    domain: str = ""
    """"" for ONNX's own; "msedge": ours, which ONNX does not have."""
    also: tuple[str, ...] = ()
    """Other domains that have it under the same name and with the same meaning: models that use it are imported."""
    reference: str = ""
    """The file of `lite_runtime/reference/` that defines it."""
    types: tuple[str, ...] | None = None
    """Element types of all operands, ANY for every one; None: a rule in `lite_runtime/ops/` infers what comes out."""
    result: str = ""
    """The result's element type; "" for the operands'."""
    numpy: str = ""
    """The function that NumPy and jax.numpy have for it under one name."""
    f32: int = -1
    """The number of the float32 machine's instruction with the operator's name, -1 for none; `kernels/elementwise.py`
    has the instructions."""
    i64: int = -1
    """Likewise of the integer machine."""
    settings: tuple[int, ...] = ()
    """The operands that configure it: a number there is a constant, never a parameter that training changes."""
    runs_as: str = ""
    """Another operator, which computes this one from the same operands and attributes, this one's defaults filled in:
    its instruction runs it, and ONNX that we write has it instead."""
    epilogue: int = -1
    """The number by which matrix products and convolutions know it as their last step, -1 if they do not."""

    @property
    def unary(self) -> bool:
        """Whether it is a function of single elements of one operand."""
        return self.inputs == (1, 1) and "elementwise" in self.traits


class Fused(NamedTuple):
    """An activation as the last step of a matrix product or convolution."""

    code: int
    """Its number in the kernels."""
    op: str
    """The operator that computes the same alone."""
    parameters: tuple[tuple[str, str, float], ...] = ()
    """At most two: the fused operator's attribute, this operator's, ONNX's default."""
    form: tuple[tuple[str, str], ...] = ()
    """Attributes of `op` with fixed values."""


_KINDS = "ifsIFSTG*"


def parsed(text: str) -> dict[str, Attribute]:
    """The attributes that `text` describes, by name and in its order; ValueError where it does not follow the
    language. Without a regular expression, which takes longer to compile than all attributes of a model to read."""
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
            raise ValueError(f"expected an attribute as name:kind, with !, (a|b) and =number behind it, got {column!r}")
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
"""Attribute name to the least and greatest value of its integers, whatever the operator."""
