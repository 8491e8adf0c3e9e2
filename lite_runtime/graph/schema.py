"""What a node of each operator may look like: how many operands, which attributes, of which kinds and values.

Facts of ONNX's specification (the newest version of each operator, preview domains included) with our widenings:
residual and bias operands, fused activations, `layout`, `transA`/`transB` of MatMul, `Silu`. To widen an operator, or
to add one of our own, change its row here.
"""

from __future__ import annotations

from functools import cache

__all__ = ["ARITY", "CHOICES", "RANGES", "attributes"]

_MANY = 1 << 16

_ARITY: dict[tuple[int, int, int, int], str] = {
    (0, 0, 1, 1): "Constant RandomNormal RandomUniform SequenceEmpty",
    (0, 1, 1, 1): "Optional OptionalHasElement",
    (1, 1, 1, 1): (
        "Abs Acos Acosh ArgMax ArgMin Asin Asinh Atan Atanh AveragePool Bernoulli Binarizer BitCast BitwiseNot "
        "BlackmanWindow Cast CastMap CategoryMapper Ceil Celu ConcatFromSequence ConstantOfShape Cos Cosh "
        "DepthToSpace Det DictVectorizer Elu Erf Exp EyeLike Flatten Floor Gelu GlobalAveragePool GlobalLpPool "
        "GlobalMaxPool HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity ImageDecoder Imputer IsInf "
        "IsNaN LRN LabelEncoder LeakyRelu LinearRegressor Log LogSoftmax LpNormalization LpPool "
        "MeanVarianceNormalization Mish Multinomial Neg NonZero Normalizer Not OneHotEncoder OptionalGetElement "
        "RandomNormalLike RandomUniformLike Reciprocal RegexFullMatch Relu Round SVMRegressor Scaler Selu "
        "SequenceLength Shape Shrink Sigmoid Sign Silu Sin Sinh Size Softmax Softplus Softsign SpaceToDepth Sqrt "
        "StringNormalizer Swish Tan Tanh TfIdfVectorizer ThresholdedRelu Transpose TreeEnsemble "
        "TreeEnsembleRegressor Unpack4 ZipMap"
    ),
    (1, 1, 1, 2): "MaxPool",
    (1, 1, 1, 4): "Unique",
    (1, 1, 1, _MANY): "If",
    (1, 1, 2, 2): "LinearClassifier SVMClassifier StringSplit TreeEnsembleClassifier",
    (1, 1, 3, 3): "DynamicQuantizeLinear",
    (1, 2, 1, 1): (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare SequenceErase SplitToSequence Squeeze Trilu"
    ),
    (1, 2, 1, _MANY): "Split",
    (1, 3, 1, 1): "Clip DFT",
    (1, 3, 1, 2): "Dropout",
    (1, 4, 1, 1): "QLinearResize Resize",
    (1, _MANY, 1, 1): "Concat Einsum FeatureVectorizer Max Mean Min SequenceConstruct Sum",
    (1, _MANY, 1, _MANY): "Scan SequenceMap",
    (2, 2, 1, 1): (
        "Add AffineGrid And ArrayFeatureExtractor AveragePoolGrad BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike "
        "CenterCropPad Compress ConvWeightGrad CumProd CumSum Div Equal Expand Gather GatherElements GatherND Greater "
        "GreaterOrEqual GridSample Less LessOrEqual LookupTable MaxPoolGrad MaxRoiPool Mod Mul Or PRelu Pow "
        "RMSNormalization Reshape ReverseSequence SequenceAt StringConcat Sub SwiGLU Tile Unsqueeze Xor"
    ),
    (2, 2, 2, 2): "TopK",
    (2, 3, 1, 1): (
        "ConvTranspose DequantizeLinear Gemm MaxUnpool NegativeLogLikelihoodLoss QuantizeLinear SequenceInsert "
        "TensorScatter"
    ),
    (2, 3, 1, 2): "SoftmaxCrossEntropyLoss",
    (2, 3, 1, 3): "LayerNormalization",
    (2, 4, 1, 1): "Conv ConvInteger MatMul MatMulInteger Pad STFT",
    (2, 4, 2, 2): "CausalConvWithState",
    (2, 5, 1, 1): "NonMaxSuppression",
    (2, 6, 1, 1): "NarrowMatMul",
    (2, _MANY, 1, _MANY): "Loop",
    (3, 3, 1, 1): (
        "Col2Im FlexAttention GroupNormalization InstanceNormalization OneHot Range RoiAlign ScatterElements ScatterND "
        "Where"
    ),
    (3, 4, 1, 1): "RotaryEmbedding",
    (3, 5, 1, 1): "DeformConv GroupedMatMul Slice",
    (3, 6, 0, 2): "RNN",
    (3, 7, 0, 2): "GRU",
    (3, 6, 2, 2): "LinearAttention",
    (3, 7, 1, 4): "Attention",
    (3, 9, 0, 3): "LSTM",
    (3, _MANY, 1, _MANY): "Adagrad Adam Momentum",
    (4, 9, 1, 5): "GRUGrad",
    (4, 11, 1, 6): "LSTMGrad",
    (5, 5, 1, 1): "MelWeightMatrix QLinearAveragePool QLinearGlobalAveragePool QLinearSoftmax",
    (5, 5, 1, 3): "BatchNormalizationGrad LayerNormalizationGrad",
    (5, 5, 1, 5): "BatchNormalization",
    (5, 6, 1, 1): "QLinearReduceMean",
    (6, 9, 1, 1): "QLinearConv QLinearConvTranspose QLinearMatMul",
    (8, 8, 1, 1): "QLinearAdd QLinearMul QLinearSub",
}

ARITY: dict[str, tuple[int, int, int, int]] = {op: arity for arity, ops in _ARITY.items() for op in ops.split()}
"""Operator to (fewest inputs, most inputs, fewest outputs, most outputs)."""

_ATTRS: dict[str, str] = {
    "Adagrad": "decay_factor:f epsilon:f norm_coefficient:f",
    "Adam": "alpha:f beta:f epsilon:f norm_coefficient:f norm_coefficient_post:f",
    "AffineGrid": "align_corners:i",
    "ArgMax ArgMin": "axis:i keepdims:i select_last_index:i",
    "Attention": (
        "is_causal:i kv_num_heads:i left_window_size:i q_num_heads:i qk_matmul_output_mode:i right_window_size:i "
        "scale:f softcap:f softmax_precision:i"
    ),
    "AveragePool QLinearAveragePool": (
        "auto_pad:s ceil_mode:i count_include_pad:i dilations:I kernel_shape:I! layout:s pads:I strides:I"
    ),
    "AveragePoolGrad": "ceil_mode:i count_include_pad:i dilations:I kernel_shape:I! layout:s pads:I strides:I",
    "BatchNormalization": "epsilon:f layout:s momentum:f training_mode:i",
    "BatchNormalizationGrad": "layout:s",
    "Bernoulli": "dtype:i seed:f",
    "Binarizer": "threshold:f",
    "BitCast": "to:i!",
    "BitShift": "direction:s!",
    "BlackmanWindow HammingWindow HannWindow": "output_datatype:i periodic:i",
    "Cast": "round_mode:s saturate:i to:i!",
    "CastLike": "round_mode:s saturate:i",
    "CastMap": "cast_to:s map_form:s max_map:i",
    "CategoryMapper": "cats_int64s:I cats_strings:S default_int64:i default_string:s",
    "CausalConvWithState": "activation:s",
    "Celu Elu LeakyRelu SwiGLU Swish ThresholdedRelu": "alpha:f",
    "CenterCropPad MeanVarianceNormalization": "axes:I",
    "Col2Im": "dilations:I pads:I strides:I",
    "Compress Flatten Gather GatherElements Hardmax LogSoftmax OneHot QLinearSoftmax Softmax": "axis:i",
    "Concat": "axis:i!",
    "ConcatFromSequence": "axis:i! new_axis:i",
    "Constant": "value:T value_float:f value_floats:F value_int:i value_ints:I value_string:s value_strings:S",
    "ConstantOfShape": "value:T",
    "Conv": (
        "activation:s activation_alpha:f activation_beta:f activation_max:f activation_min:f auto_pad:s "
        "dilations:I group:i kernel_shape:I layout:s pads:I strides:I"
    ),
    "ConvWeightGrad": "dilations:I group:i kernel_shape:I! layout:s pads:I strides:I",
    "ConvInteger": "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I",
    "QLinearConv": (
        "activation:s activation_max:f activation_min:f auto_pad:s dilations:I group:i kernel_shape:I layout:s pads:I "
        "strides:I"
    ),
    "QLinearConvTranspose": (
        "activation:s activation_max:f activation_min:f auto_pad:s dilations:I group:i kernel_shape:I layout:s "
        "output_padding:I output_shape:I pads:I strides:I"
    ),
    "QLinearAdd QLinearMul QLinearSub": "activation:s activation_max:f activation_min:f",
    "QLinearMatMul": "activation:s activation_max:f activation_min:f transB:i",
    "ConvTranspose": (
        "activation:s activation_alpha:f activation_beta:f activation_max:f activation_min:f auto_pad:s "
        "dilations:I group:i kernel_shape:I layout:s output_padding:I output_shape:I pads:I strides:I"
    ),
    "CumProd CumSum": "exclusive:i reverse:i",
    "DFT": "inverse:i onesided:i",
    "DeformConv": "dilations:I group:i kernel_shape:I offset_group:i pads:I strides:I",
    "DepthToSpace SpaceToDepth": "blocksize:i! layout:s mode:s",
    "DynamicQuantizeLinear": "dtype:s kept:i",
    "DequantizeLinear": "axis:i block_size:i output_dtype:i",
    "DictVectorizer": "int64_vocabulary:I string_vocabulary:S",
    "Dropout": "seed:i",
    "Einsum": "equation:s!",
    "EyeLike": "dtype:i k:i",
    "FeatureVectorizer": "inputdimensions:I",
    "FlexAttention": "prob_mod:G scale:f score_mod:G softmax_precision:i",
    "GRU": (
        "activation_alpha:F activation_beta:F activations:S block_size:i clip:f direction:s hidden_size:i layout:i "
        "linear_before_reset:i"
    ),
    "GRUGrad": "direction:s hidden_size:i layout:i linear_before_reset:i",
    "GatherND": "batch_dims:i",
    "Gelu": "approximate:s",
    "Gemm": "alpha:f beta:f transA:i transB:i",
    "GlobalAveragePool GlobalMaxPool QLinearGlobalAveragePool": "layout:s",
    "GlobalLpPool": "p:i",
    "GridSample": "align_corners:i mode:s padding_mode:s",
    "GroupNormalization": "epsilon:f num_groups:i! stash_type:i",
    "GroupedMatMul": "activation:s activation_alpha:f activation_beta:f activation_max:f activation_min:f",
    "HardSigmoid": "alpha:f beta:f",
    "If": "else_branch:G! then_branch:G!",
    "ImageDecoder": "pixel_format:s",
    "Imputer": "imputed_value_floats:F imputed_value_int64s:I replaced_value_float:f replaced_value_int64:i",
    "InstanceNormalization": "epsilon:f layout:s",
    "IsInf": "detect_negative:i detect_positive:i",
    "LRN": "alpha:f beta:f bias:f size:i!",
    "LSTM": (
        "activation_alpha:F activation_beta:F activations:S block_size:i clip:f direction:s hidden_size:i "
        "input_forget:i layout:i"
    ),
    "LSTMGrad": "direction:s hidden_size:i layout:i",
    "LabelEncoder": (
        "default_float:f default_int64:i default_string:s default_tensor:T keys_floats:F keys_int64s:I "
        "keys_strings:S keys_tensor:T values_floats:F values_int64s:I values_strings:S values_tensor:T"
    ),
    "LayerNormalizationGrad": "axis:i",
    "LayerNormalization RMSNormalization": "axis:i epsilon:f stash_type:i",
    "LinearAttention": "chunk_size:i kv_num_heads:i! q_num_heads:i! scale:f update_rule:s",
    "LinearClassifier": (
        "classlabels_ints:I classlabels_strings:S coefficients:F! intercepts:F multi_class:i post_transform:s"
    ),
    "LinearRegressor": "coefficients:F intercepts:F post_transform:s targets:i",
    "Loop SequenceMap": "body:G!",
    "LpNormalization": "axis:i p:i",
    "LpPool": "auto_pad:s ceil_mode:i dilations:I kernel_shape:I! layout:s p:i pads:I strides:I",
    "MatMul": ("activation:s activation_alpha:f activation_beta:f activation_max:f activation_min:f transA:i transB:i"),
    "NarrowMatMul": (
        "activation:s activation_alpha:f activation_beta:f activation_max:f activation_min:f block_size:i shape:I "
        "signed:i transB:i"
    ),
    "MaxPool": "auto_pad:s ceil_mode:i dilations:I kernel_shape:I! layout:s pads:I storage_order:i strides:I",
    "MaxPoolGrad": "ceil_mode:i dilations:I kernel_shape:I! layout:s pads:I strides:I",
    "MaxRoiPool": "pooled_shape:I! spatial_scale:f",
    "MaxUnpool": "kernel_shape:I! pads:I strides:I",
    "MelWeightMatrix": "output_datatype:i",
    "Mod": "fmod:i",
    "Momentum": "alpha:f! beta:f! mode:s! norm_coefficient:f!",
    "Multinomial": "dtype:i sample_size:i seed:f",
    "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss": "ignore_index:i reduction:s",
    "NonMaxSuppression": "center_point_box:i",
    "Normalizer": "norm:s",
    "OneHotEncoder": "cats_int64s:I cats_strings:S zeros:i",
    "Optional": "type:*",
    "Pad": "mode:s",
    "QuantizeLinear": "axis:i block_size:i output_dtype:i precision:i saturate:i",
    "RNN": "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i layout:i",
    "RandomNormal": "dtype:i mean:f scale:f seed:f shape:I!",
    "RandomNormalLike": "dtype:i mean:f scale:f seed:f",
    "RandomUniform": "dtype:i high:f low:f seed:f shape:I!",
    "RandomUniformLike": "dtype:i high:f low:f seed:f",
    "Range": "stash_type:i",
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax": "keepdims:i noop_with_empty_axes:i",
    "QLinearReduceMean ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare": "keepdims:i noop_with_empty_axes:i",
    "RegexFullMatch": "pattern:s",
    "Reshape": "allowzero:i",
    "QLinearResize Resize": (
        "antialias:i axes:I coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i "
        "extrapolation_value:f keep_aspect_ratio_policy:s mode:s nearest_mode:s"
    ),
    "ReverseSequence": "batch_axis:i time_axis:i",
    "RoiAlign": (
        "coordinate_transformation_mode:s mode:s output_height:i output_width:i sampling_ratio:i spatial_scale:f"
    ),
    "RotaryEmbedding": "interleaved:i num_heads:i rotary_embedding_dim:i",
    "STFT": "onesided:i",
    "SVMClassifier": (
        "classlabels_ints:I classlabels_strings:S coefficients:F kernel_params:F kernel_type:s post_transform:s "
        "prob_a:F prob_b:F rho:F support_vectors:F vectors_per_class:I"
    ),
    "SVMRegressor": (
        "coefficients:F kernel_params:F kernel_type:s n_supports:i one_class:i post_transform:s rho:F support_vectors:F"
    ),
    "Scaler": "offset:F scale:F",
    "Scan": (
        "body:G! num_scan_inputs:i! scan_input_axes:I scan_input_directions:I scan_output_axes:I "
        "scan_output_directions:I"
    ),
    "ScatterElements": "axis:i reduction:s",
    "ScatterND": "reduction:s",
    "Selu": "alpha:f gamma:f",
    "SequenceEmpty": "dtype:i",
    "Shape": "end:i start:i",
    "Shrink": "bias:f lambd:f",
    "Split": "axis:i num_outputs:i",
    "SplitToSequence": "axis:i keepdims:i",
    "StringNormalizer": "case_change_action:s is_case_sensitive:i locale:s stopwords:S",
    "StringSplit": "delimiter:s maxsplit:i",
    "TensorScatter": "axis:i mode:s",
    "TfIdfVectorizer": (
        "max_gram_length:i! max_skip_count:i! min_gram_length:i! mode:s! ngram_counts:I! ngram_indexes:I! "
        "pool_int64s:I pool_strings:S weights:F"
    ),
    "TopK": "axis:i largest:i sorted:i",
    "Transpose": "perm:I",
    "TreeEnsemble": (
        "aggregate_function:i leaf_targetids:I! leaf_weights:T! membership_values:T n_targets:i "
        "nodes_falseleafs:I! nodes_falsenodeids:I! nodes_featureids:I! nodes_hitrates:T "
        "nodes_missing_value_tracks_true:I nodes_modes:T! nodes_splits:T! nodes_trueleafs:I! nodes_truenodeids:I! "
        "post_transform:i tree_roots:I!"
    ),
    "TreeEnsembleClassifier": (
        "base_values:F base_values_as_tensor:T class_ids:I class_nodeids:I class_treeids:I class_weights:F "
        "class_weights_as_tensor:T classlabels_int64s:I classlabels_strings:S nodes_falsenodeids:I "
        "nodes_featureids:I nodes_hitrates:F nodes_hitrates_as_tensor:T nodes_missing_value_tracks_true:I "
        "nodes_modes:S nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I nodes_values:F nodes_values_as_tensor:T "
        "post_transform:s"
    ),
    "TreeEnsembleRegressor": (
        "aggregate_function:s base_values:F base_values_as_tensor:T n_targets:i nodes_falsenodeids:I "
        "nodes_featureids:I nodes_hitrates:F nodes_hitrates_as_tensor:T nodes_missing_value_tracks_true:I "
        "nodes_modes:S nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I nodes_values:F nodes_values_as_tensor:T "
        "post_transform:s target_ids:I target_nodeids:I target_treeids:I target_weights:F "
        "target_weights_as_tensor:T"
    ),
    "Trilu": "upper:i",
    "Unique": "axis:i sorted:i",
    "Unpack4": "shape:I! signed:i!",
    "ZipMap": "classlabels_int64s:I classlabels_strings:S",
}
"""Operators to their attributes, each `name:kind`: i int, f float, s text, I F S tuples of these, T array, G graph,
* anything; "!" marks those that must be there."""

_BY_OP = {op: text for ops, text in _ATTRS.items() for op in ops.split()}


@cache
def attributes(op: str) -> dict[str, tuple[str, bool]]:
    """Attribute name to (kind, required) for an operator of `ARITY`."""
    rows = (column.partition(":") for column in _BY_OP.get(op, "").split())
    return {name: (kind[0], kind.endswith("!")) for name, _, kind in rows}


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
        "training_mode "
        "transA transB"
    ),
    (0, 1 << 48): "shape",
}

RANGES: dict[str, tuple[int, int]] = {name: ends for ends, names in _RANGES.items() for name in names.split()}
"""Attribute name to the least and greatest value of its integers, whatever the operator."""

_ACTIVATION = (
    *("", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh"),
    *("HardSwish", "HardSigmoid", "Silu", "Gelu", "GeluTanh", "Elu"),
)
_LAYOUT = ("NCHW", "NHWC")
_DIRECTION = ("forward", "reverse", "bidirectional")

CHOICES: dict[str, tuple[str, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "layout": _LAYOUT,
    "Conv.activation": _ACTIVATION,
    "ConvTranspose.activation": _ACTIVATION,
    "MatMul.activation": _ACTIVATION,
    "GroupedMatMul.activation": _ACTIVATION,
    "NarrowMatMul.activation": _ACTIVATION,
    "QLinearAdd.activation": ("", "Relu", "Clip"),
    "QLinearConv.activation": ("", "Relu", "Clip"),
    "QLinearConvTranspose.activation": ("", "Relu", "Clip"),
    "QLinearMatMul.activation": ("", "Relu", "Clip"),
    "QLinearMul.activation": ("", "Relu", "Clip"),
    "QLinearSub.activation": ("", "Relu", "Clip"),
    "DynamicQuantizeLinear.dtype": ("uint8", "int8"),
    "BitShift.direction": ("LEFT", "RIGHT"),
    "GRU.direction": _DIRECTION,
    "GRUGrad.direction": _DIRECTION,
    "LSTM.direction": _DIRECTION,
    "LSTMGrad.direction": _DIRECTION,
    "RNN.direction": _DIRECTION,
    "DepthToSpace.mode": ("DCR", "CRD"),
    "GridSample.mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "GridSample.padding_mode": ("zeros", "border", "reflection"),
    "Pad.mode": ("constant", "reflect", "edge", "wrap"),
    "Resize.mode": ("nearest", "linear", "cubic"),
    "RoiAlign.mode": ("avg", "max"),
    "Gelu.approximate": ("none", "tanh"),
    "ScatterElements.reduction": ("none", "add", "mul", "max", "min"),
    "ScatterND.reduction": ("none", "add", "mul", "max", "min"),
    "NegativeLogLikelihoodLoss.reduction": ("none", "sum", "mean"),
    "SoftmaxCrossEntropyLoss.reduction": ("none", "sum", "mean"),
}
"""Attribute, or operator.attribute, to the texts it may hold."""
