"""Which operator is in which registry, and the reasons for missing ones.

`REASONS` has a row for every class of operators that a registry leaves out. Operators are named, or selected by
`family:NAME` (a file of records), `trait:NAME` or `domain:NAME`; `-NAME` takes one out of what was selected so far.
`findings` lists what the rows do not explain, and rows that explain what is there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lite_runtime.operators import ONNX, OPERATORS, family

__all__ = ["REASONS", "Registries", "findings", "registries", "selected"]

ROOT = Path(__file__).parents[1]
Registries = Mapping[str, frozenset[str]]


def registries() -> dict[str, frozenset[str]]:
    """The operators of every registry, by the registry's name."""
    import lite_runtime.ops  # noqa: F401  # fills its tables
    from cloud.engine.lowering import LOWERINGS
    from converter import export
    from converter.ir.grad import RULES as GRADIENTS
    from converter.passes import fuse_activation, sink_transposes
    from converter.passes.integer.lookup_tables import ELEMENTWISE
    from converter.quantize.schemes import SCHEMES
    from lite_runtime.learning import rowwise
    from lite_runtime.ops.registry import BINDS, INFERS
    from lite_runtime.reference import DEFINITIONS

    return {
        "reference": frozenset(DEFINITIONS),
        "inference": frozenset(INFERS),
        "native": frozenset(BINDS),
        "rows": frozenset(rowwise.RULES),
        "transposes": frozenset(op for _, op in sink_transposes.RULES),
        "tables": frozenset(ELEMENTWISE),
        "scheme": frozenset(SCHEMES),
        "fused": frozenset(fuse_activation.ACTIVATIONS),
        "gradient": frozenset(GRADIENTS),
        "jax": frozenset(LOWERINGS),
        "tflite": named_in_rules(),
        "export": frozenset(export.STANDARD),
    }


def named_in_rules() -> frozenset[str]:
    """The operators that rules for TensorFlow Lite's operators name."""
    trees = (ast.parse(path.read_bytes()) for path in (ROOT / "converter/frontends/tflite/ops").glob("*.py"))
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return frozenset(text for text in texts if isinstance(text, str) and text in OPERATORS)


_FOREST = "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor"
_LOSSES = "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"
_REGIONS = "MaxRoiPool NonMaxSuppression NonMaxSuppressionPadded RoiAlign"
_LOGIC = "And Or Xor Not BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitShift"
_COMPARISONS = "Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN"

REASONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "reference": (),
    "inference": (
        ("its results are sequences or optional values, which have no one type", "family:sequences"),
        ("how much text there is follows from the text", "family:strings"),
        ("the size of its result follows from values", "NonMaxSuppression Unique ImageDecoder"),
        ("its types follow from the graphs it runs", "trait:control FlexAttention"),
        ("maps, labels or text go in or come out, whose kinds and sizes are in attributes or values",
         "CastMap CategoryMapper DictVectorizer FeatureVectorizer LinearClassifier OneHotEncoder SVMClassifier "
         "SVMRegressor ZipMap"),
        ("no kernel reads its type: the reference runs it, and the rest is planned with what it gave",
         "CausalConvWithState LinearAttention family:losses"),
    ),
    "native": (
        ("its result is known when a run is planned", "Constant EyeLike Range Shape Size"),
        ("the size of its result follows from values, which only a run tells",
         "Compress NonZero Unique NonMaxSuppression"),
        ("sequences and optional values are Python objects", "family:sequences"),
        ("text is Python objects", "family:strings"),
        ("the graphs it runs have programs of their own", "trait:control"),
        ("it draws from NumPy's generator, so that a seed gives the same numbers everywhere", "trait:random"),
        ("its weights are unpacked once, when the model is loaded", "Unpack4"),
        ("NumPy's Fourier transform is native code", "DFT STFT"),
        ("it opens files of images", "ImageDecoder"),
        ("labels, text and small linear models: NumPy computes them in one call",
         "family:trees -TreeEnsemble -TreeEnsembleClassifier -TreeEnsembleRegressor"),
        ("windows and filters follow from sizes that are constants in models: they are folded when converted",
         "BlackmanWindow HammingWindow HannWindow MelWeightMatrix"),
        ("training graphs have losses and optimizers made of other operators", "family:losses"),
        ("NumPy computes it in a few native calls over whole arrays: copies, products, sums",
         "BitCast CenterCropPad ReverseSequence Einsum Det Inverse Hardmax ArrayFeatureExtractor TensorScatter "
         "AffineGrid LpPool Col2Im MaxUnpool"),
        ("none of the models of the comparison has it, and in NumPy it is slow: a kernel is worth adding with the "
         "first model that needs it",
         "CausalConvWithState DeformConv FlexAttention LinearAttention GridSample MaxRoiPool RoiAlign"),
    ),
    "rows": (
        ("its result depends on shapes alone, not on rows", "trait:shape_only Constant ConstantOfShape EyeLike Range"),
        ("its indices may name elements of other rows",
         "ArrayFeatureExtractor Compress GatherElements GatherND ScatterElements ScatterND TensorScatter"),
        ("it compares all elements, or lists them in one order", "NonZero Unique"),
        ("time comes first in its operands, rows second", "trait:recurrent"),
        ("what it draws for a row depends on the rows drawn before", "family:random"),
        ("the graphs it runs may mix rows", "trait:control FlexAttention"),
        ("language models keep the rows of several texts apart by themselves", "family:language"),
        ("it sums over rows", f"{_LOSSES} family:gradients"),
        ("it updates parameters, which have no rows", "Adagrad Adam Momentum"),
        ("by default it normalises over rows too", "MeanVarianceNormalization"),
        ("it is made of graphs whose rows are known already", "GroupedMatMul"),
        ("it unpacks weights, which have no rows", "Unpack4"),
        ("its operand is no tensor with rows", "family:sequences family:strings ImageDecoder family:signal -DFT -STFT"),
        ("its indices count elements of all rows", "MaxUnpool"),
        ("its regions name images of any row", _REGIONS),
        ("its types are known when it has run, and rows are looked for before",
         "CategoryMapper CastMap DictVectorizer FeatureVectorizer LinearClassifier OneHotEncoder SVMClassifier "
         "SVMRegressor ZipMap"),
    ),
    "transposes": (
        ("two of them are merged, none passes the other", "Transpose"),
        ("a rule of its own in the pass turns its last two axes", "MatMul"),
        ("it has a layout of its own, which passes/channels_last.py gives it",
         "Conv ConvTranspose AveragePool GlobalAveragePool GlobalMaxPool LpPool MaxPool BatchNormalization "
         "InstanceNormalization DepthToSpace SpaceToDepth"),
        ("its elements change axes, so axes cannot be mapped", "Flatten Reshape"),
        ("its result has no axes of an operand", "trait:shape_only Constant ConstantOfShape EyeLike Range"),
        ("it is made when Transposes have moved already",
         "QLinearAdd QLinearAveragePool QLinearConv QLinearConvTranspose QLinearGlobalAveragePool "
         "QLinearMatMul QLinearMul QLinearReduceMean QLinearResize QLinearSoftmax QLinearSub GroupedMatMul "
         "NarrowMatMul Unpack4 family:language"),
        ("its axes have fixed roles, and it has no form for others",
         "Gemm Einsum ConvInteger MatMulInteger Col2Im DeformConv CausalConvWithState Det Inverse GlobalLpPool "
         "MaxUnpool GroupNormalization LRN MeanVarianceNormalization trait:recurrent family:attention family:vision "
         "-Resize family:losses family:gradients family:signal family:trees"),
        ("its operands are no tensors, or its result is none", "family:sequences family:strings"),
        ("the graphs it runs have axes of their own", "trait:control"),
        ("what it draws for an element depends on the element's place", "family:random"),
        ("it works on the last two axes, or on the first two", "Trilu ReverseSequence"),
        ("it lists elements in the order of the axes", "NonZero Unique Compress"),
        ("its indices or updates have the axes of the data: a Transpose of them would take the other's place",
         "GatherElements ScatterElements"),
        ("its indices count axes from the first", "GatherND ScatterND TensorScatter ArrayFeatureExtractor"),
        ("it makes an axis of indices, which have no layout", "OneHot"),
    ),
    "tables": (
        ("its result is no function of the elements at one place",
         "without:elementwise -DequantizeLinear -QLinearAdd -QLinearMul -QLinearSub -QuantizeLinear"),
    ),
    "scheme": (
        ("it works on booleans, bits or comparisons, which are not quantised", f"{_LOGIC} {_COMPARISONS}"),
        ("it changes the element type, which decides about quantisers itself", "Cast CastLike BitCast"),
        ("it is a step: the error of 8 bits before it moves its result by a whole number", "Ceil Floor Round Sign"),
        ("it jumps from its largest result to its least", "Mod"),
        ("it is defined for some numbers alone: the next of 256 steps may give NaN", "Acos Acosh Asin Atanh"),
        ("its results span too many magnitudes for 8 bits",
         "Cosh Div Exp Log Pow Reciprocal Sinh Sqrt Tan CumProd LogSoftmax ReduceLogSum ReduceLogSumExp ReduceProd "
         "ReduceSumSquare"),
        ("it sums many numbers or their squares: its results need more than the operand's 8 bits",
         "CumSum GlobalLpPool LpPool ReduceL1 ReduceL2 ReduceSum"),
        ("a mean and variance of 8-bit numbers lose too much, and float costs little", "trait:normalizes"),
        ("errors add up over time steps; its weights are 8 bits wide", "trait:recurrent"),
        ("the kernel keeps scores in float", "family:attention -RotaryEmbedding"),
        ("it folds into a convolution, or stays a scale and shift in float", "BatchNormalization"),
        ("it is quantised already, or quantises", "family:integer family:language NarrowMatMul Unpack4"),
        ("its result is no computed number: shapes, indices or a constant",
         "trait:shape_only Constant ConstantOfShape EyeLike Range Hardmax NonZero OneHot Unique"),
        ("nothing is quantised in a training graph", "family:losses family:gradients GroupedMatMul"),
        ("random numbers are drawn in float", "family:random"),
        ("the graphs it runs stay float", "trait:control"),
        ("models of ai.onnx.ml stay float", "family:trees"),
        ("its operands are no tensors, or its result is none", "family:sequences family:strings"),
        ("spectra span too many magnitudes for 8 bits", "family:signal"),
        ("it gives indices, or decodes images to bytes", "NonMaxSuppression NonMaxSuppressionPadded ImageDecoder"),
        ("no kernel computes it on integers: 8 bits would cost two conversions and save nothing",
         "CenterCropPad Trilu CausalConvWithState Col2Im DeformConv Det Inverse Einsum MaxUnpool ArrayFeatureExtractor "
         "Compress ScatterElements ScatterND TensorScatter TopK RotaryEmbedding AffineGrid GridSample MaxRoiPool "
         "RoiAlign"),
    ),
    "fused": (
        ("it is no function of single elements of one operand", "not:unary -Clip"),
        ("every activation is code in each kernel that may end with one: these stand alone, or in a chain",
         "is:unary -Relu -LeakyRelu -Sigmoid -Tanh -HardSwish -HardSigmoid -Silu -Gelu -Elu -Swish -Identity"),
        ("it computes nothing", "Identity"),
    ),
    "gradient": (
        ("its result does not move smoothly with its operands", "trait:flat"),
        ("its results are integers, or the passes that make it come after training graphs",
         "family:integer -DequantizeLinear -QuantizeLinear -FixedPointDiv -FixedPointRsqrt -FixedPointSigmoid "
         "-FixedPointTanh -Rescale GroupedMatMul NarrowMatMul Unpack4 family:language -MatMulNBits"),
        ("it updates parameters: nothing depends on what it gives", "Adagrad Adam Momentum"),
        ("it gives numbers that depend on no operand, or bits", "RandomNormal RandomUniform BitCast"),
        ("its operands are no tensors of floats", "family:sequences family:strings Unique ImageDecoder"),
        ("models of ai.onnx.ml are not trained here", "family:trees ArrayFeatureExtractor"),
        ("it runs graphs, and the backward graph is one flat graph", "trait:control FlexAttention"),
        ("its result depends on sizes alone", "BlackmanWindow HammingWindow HannWindow MelWeightMatrix"),
        ("it turns sound into spectra before the first layer: nothing ahead of it is trained", "DFT STFT"),
        ("the size of its result follows from values, and the backward graph needs sizes", "Compress"),
        ("its gradient divides by the operand, which may be 0", "CumProd"),
        ("its gradient needs an inverse matrix, which ONNX's operators cannot say", "Det"),
        ("models invert matrices of cameras and poses, which are not trained", "Inverse"),
        ("its gradient needs an operator of ours and a kernel, as MaxPoolGrad, ConvWeightGrad and LSTMGrad are",
         "CausalConvWithState Col2Im DeformConv GridSample LinearAttention MaxRoiPool MaxUnpool RNN RoiAlign"),
        ("networks that are trained pool by the maximum or the mean", "LpPool GlobalLpPool"),
        ("it feeds GridSample, which has none", "AffineGrid"),
        ("it fills the caches of a model that generates text, which is not trained so", "TensorScatter"),
        ("nothing takes second derivatives through time", "GRUGrad LSTMGrad"),
    ),
    "jax": (
        ("ours: the engine reads models as they are before any pass makes it", "domain:msedge"),
        ("the engine reads quantised models in QDQ form", "QLinearConv QLinearMatMul"),
        ("JAX has no text", "family:strings"),
        ("its results have sizes that JAX cannot trace", "Unique NonMaxSuppression"),
        ("optional values and mapped sequences do not exist in a traced program",
         "Optional OptionalGetElement OptionalHasElement SequenceMap"),
        ("models of ai.onnx.ml are not trained here", "family:trees ArrayFeatureExtractor"),
        ("the trainer has optimizers of its own", "Adagrad Adam Momentum"),
        ("it opens files of images", "ImageDecoder"),
        ("the converter has no gradient for it: what is trained with it here could not be trained on a device",
         "CausalConvWithState DeformConv FlexAttention LinearAttention MaxRoiPool RoiAlign"),
    ),
    "tflite": (
        ("its operator in TensorFlow Lite (ONE_HOT, FILL, ADD_N, L2_NORMALIZATION, RIGHT_SHIFT) becomes others",
         "OneHot ConstantOfShape Sum LpNormalization BitShift"),
        ("ours: passes make it later",
         "domain:msedge -NonMaxSuppressionPadded -QLinearConvTranspose -FixedPointDiv -FixedPointRsqrt "
         "-FixedPointSigmoid -FixedPointTanh -InterpolatedTable -LookupTable -QLinearAveragePool -QLinearSoftmax "
         "-Rescale"),
        ("NON_MAX_SUPPRESSION becomes the form with zeros behind its rows", "NonMaxSuppression"),
        ("a constant is a buffer of the file", "Constant"),
        ("TensorFlow Lite has no operator with this meaning",
         "Acos Acosh Asin Asinh Atanh BitwiseAnd BitwiseNot BitwiseOr CastLike Cosh IsInf IsNaN Mean Sinh Tan "
         "Celu Erf HardSigmoid Mish QuickGelu Selu Shrink Softplus Softsign SwiGLU Swish ThresholdedRelu "
         "CenterCropPad EyeLike Flatten Trilu CausalConvWithState Col2Im DeformConv Det Inverse Einsum ConvInteger "
         "CumProd GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxUnpool ReduceL1 ReduceLogSum "
         "ReduceLogSumExp ReduceSumSquare BatchNormalization GroupNormalization Hardmax InstanceNormalization "
         "MeanVarianceNormalization RMSNormalization ArrayFeatureExtractor Compress GatherElements ScatterElements "
         "TensorScatter GRU family:attention AffineGrid ImageDecoder MaxRoiPool RoiAlign Bernoulli Dropout "
         "RandomNormal RandomUniform SequenceMap BlackmanWindow HammingWindow HannWindow MelWeightMatrix STFT "
         "family:sequences family:strings family:trees family:losses"),
    ),
    "export": (
        ("ONNX has it", "without:ours -DynamicQuantizeLinear -QLinearConv -QLinearMatMul"),
        ("training graphs are not exported", "family:gradients"),
        ("it is made by passes after those that an exported model has seen",
         "LookupTable QLinearAdd QLinearAveragePool QLinearConvTranspose QLinearGlobalAveragePool QLinearMul "
         "QLinearReduceMean QLinearResize QLinearSoftmax QLinearSub GroupedMatMul NarrowMatMul Unpack4 "
         "family:language"),
        ("ONNX has nothing that splits text by regular expressions, or inverts matrices", "Tokenizer Inverse"),
        ("LiteRT's own arithmetic is kept in bundles alone",
         "FixedPointDiv FixedPointRsqrt FixedPointSigmoid FixedPointTanh InterpolatedTable Rescale"),
    ),
}
"""Registry -> rows of (why they are not there, which)."""

_SELECT: Mapping[str, Callable[[str], set[str]]] = {
    "family": lambda name: {record.name for record in family(name)},
    "trait": lambda name: {op for op, record in OPERATORS.items() if name in record.traits},
    "without": lambda name: {
        op for op, r in OPERATORS.items() if (r.domain in ONNX if name == "ours" else name not in r.traits)
    },
    "domain": lambda name: {op for op, record in OPERATORS.items() if record.domain == name},
    "is": lambda name: {op for op, record in OPERATORS.items() if record.unary},
    "not": lambda name: {op for op, record in OPERATORS.items() if not record.unary},
}


def selected(text: str) -> frozenset[str]:
    """The operators that a row's text selects; ValueError for a word that selects none, or takes out what is not in."""
    found: set[str] = set()
    for word in text.split():
        kind, _, name = word.partition(":")
        if word.startswith("-"):
            if word[1:] not in found:
                raise ValueError(f"{word} takes out what is not selected")
            found.discard(word[1:])
            continue
        more = _SELECT[kind](name) if name else {word} & set(OPERATORS)
        if not more:
            raise ValueError(f"{word} selects no operator")
        found |= more
    return frozenset(found)


def findings(there: Registries) -> list[str]:
    """What is wrong: operators that are missing without a reason or for two, reasons for what is there."""
    wrong = []
    for registry, ops in there.items():
        wrong += [f"{registry} has {op}, for which there is no record" for op in sorted(ops - set(OPERATORS))]
        explained: dict[str, str] = {}
        for why, text in REASONS[registry]:
            for op in sorted(selected(text)):
                if op in ops:
                    wrong.append(f"{registry} has {op}, although: {why}")
                elif op in explained:
                    wrong.append(f"{registry} lacks {op} for two reasons: {explained[op]}; {why}")
                explained[op] = why
        missing = sorted(set(OPERATORS) - ops - set(explained))
        wrong += [f"{registry} lacks {op}, and no reason says why" for op in missing]
    return wrong
