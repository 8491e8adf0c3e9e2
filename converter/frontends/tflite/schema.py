"""The TensorFlow Lite file format as data: its flatbuffer tables, unions and enumerations.

Source: tensorflow/lite/schema/schema.fbs (schema version 3c). The text form of tables is that of
`converter.frontends.flatbuffer`.
"""

from __future__ import annotations

from collections.abc import Mapping

from converter.frontends.flatbuffer import Field, parse

__all__ = [
    "ACTIVATIONS",
    "BUILTINS",
    "DETAILS",
    "IDENTIFIER",
    "OPTIONS",
    "OPTIONS_2",
    "PADDINGS",
    "SPARSE_INDICES",
    "TABLES",
    "TENSOR_TYPES",
]

IDENTIFIER = b"TFL3"

_CORE = """
Model: version u4, operator_codes [OperatorCode], subgraphs [SubGraph], description str, buffers [Buffer],
    metadata_buffer [i4], metadata [Metadata], signature_defs [SignatureDef]
OperatorCode: deprecated_builtin_code i1, custom_code str, version i4=1, builtin_code i4
SubGraph: tensors [Tensor], inputs [i4], outputs [i4], operators [Operator], name str, debug_metadata_index i4=-1
Tensor: shape [i4], type i1, buffer u4, name str, quantization QuantizationParameters, is_variable b, sparsity
    SparsityParameters, shape_signature [i4], has_rank b, -, external_buffer u4
QuantizationParameters: min [f4], max [f4], scale [f4], zero_point [i8], details_type u1, details union,
    quantized_dimension i4
BlockwiseQuantization: scales i4, zero_points i4, block_size i4, block_shape [i4]
MultiAxisQuantization: scales i4, zero_points i4, block_size i4, quantized_dimensions [i4]
SparsityParameters: traversal_order [i4], block_map [i4], dim_metadata [DimensionMetadata]
DimensionMetadata: format i1, dense_size i4, array_segments_type u1, array_segments union, array_indices_type u1,
    array_indices union
Int32Vector: values [i4]
Uint16Vector: values [u2]
Uint8Vector: values [u1]
Operator: opcode_index u4, inputs [i4], outputs [i4], builtin_options_type u1, builtin_options union, custom_options
    [u1], custom_options_format i1, mutating_variable_inputs [b], intermediates [i4], large_custom_options_offset
    u8, large_custom_options_size u8, builtin_options2_type u1, builtin_options2 union, debug_metadata_index i4=-1
Buffer: data [u1], offset u8, size u8
Metadata: name str, buffer u4
SignatureDef: inputs [TensorMap], outputs [TensorMap], signature_key str, -, subgraph_index u4
TensorMap: name str, tensor_index u4
"""

_OPTIONS = """
Conv2DOptions: padding i1, stride_w i4, stride_h i4, fused_activation_function i1, dilation_w_factor i4=1,
    dilation_h_factor i4=1, quantized_bias_type i1
DepthwiseConv2DOptions: padding i1, stride_w i4, stride_h i4, depth_multiplier i4, fused_activation_function i1,
    dilation_w_factor i4=1, dilation_h_factor i4=1
ConcatEmbeddingsOptions: num_channels i4, num_columns_per_channel [i4], embedding_dim_per_channel [i4]
LSHProjectionOptions: type i1
Pool2DOptions: padding i1, stride_w i4, stride_h i4, filter_width i4, filter_height i4, fused_activation_function i1
SVDFOptions: rank i4, fused_activation_function i1, asymmetric_quantize_inputs b
RNNOptions: fused_activation_function i1, asymmetric_quantize_inputs b
FullyConnectedOptions: fused_activation_function i1, weights_format i1, keep_num_dims b, asymmetric_quantize_inputs
    b, quantized_bias_type i1, quant_spec [u1]
SoftmaxOptions: beta f4
ConcatenationOptions: axis i4, fused_activation_function i1
AddOptions: fused_activation_function i1, pot_scale_int16 b=True
L2NormOptions: fused_activation_function i1
LocalResponseNormalizationOptions: radius i4, bias f4, alpha f4, beta f4
LSTMOptions: fused_activation_function i1, cell_clip f4, proj_clip f4, kernel_type i1, asymmetric_quantize_inputs b
ResizeBilinearOptions: -, -, align_corners b, half_pixel_centers b
CallOptions: subgraph u4
ReshapeOptions: new_shape [i4]
SkipGramOptions: ngram_size i4, max_skip_size i4, include_all_ngrams b
SpaceToDepthOptions: block_size i4
EmbeddingLookupSparseOptions: combiner i1
MulOptions: fused_activation_function i1
GatherOptions: axis i4, batch_dims i4
ReducerOptions: keep_dims b
SubOptions: fused_activation_function i1, pot_scale_int16 b=True
DivOptions: fused_activation_function i1
SqueezeOptions: squeeze_dims [i4]
SequenceRNNOptions: time_major b, fused_activation_function i1, asymmetric_quantize_inputs b
StridedSliceOptions: begin_mask i4, end_mask i4, ellipsis_mask i4, new_axis_mask i4, shrink_axis_mask i4, offset b
SplitOptions: num_splits i4
CastOptions: in_data_type i1, out_data_type i1
ArgMaxOptions: output_type i1
TransposeConvOptions: padding i1, stride_w i4, stride_h i4, fused_activation_function i1, quantized_bias_type i1
SparseToDenseOptions: validate_indices b
ShapeOptions: out_type i1
ArgMinOptions: output_type i1
FakeQuantOptions: min f4, max f4, num_bits i4, narrow_range b
PackOptions: values_count i4, axis i4
OneHotOptions: axis i4
UnpackOptions: num i4, axis i4
BidirectionalSequenceLSTMOptions: fused_activation_function i1, cell_clip f4, proj_clip f4, merge_outputs b,
    time_major b=True, asymmetric_quantize_inputs b
BidirectionalSequenceRNNOptions: time_major b, fused_activation_function i1, merge_outputs b,
    asymmetric_quantize_inputs b
UnidirectionalSequenceLSTMOptions: fused_activation_function i1, cell_clip f4, proj_clip f4, time_major b,
    asymmetric_quantize_inputs b, diagonal_recurrent_tensors b
ResizeNearestNeighborOptions: align_corners b, half_pixel_centers b
LeakyReluOptions: alpha f4
MirrorPadOptions: mode i1
SplitVOptions: num_splits i4
UniqueOptions: idx_out_type i1=2
ReverseSequenceOptions: seq_dim i4, batch_dim i4
IfOptions: then_subgraph_index i4, else_subgraph_index i4
WhileOptions: cond_subgraph_index i4, body_subgraph_index i4
DepthToSpaceOptions: block_size i4
BatchMatMulOptions: adj_x b, adj_y b, asymmetric_quantize_inputs b
CumsumOptions: exclusive b, reverse b
CallOnceOptions: init_subgraph_index i4
Conv3DOptions: padding i1, stride_d i4, stride_w i4, stride_h i4, fused_activation_function i1, dilation_d_factor
    i4=1, dilation_w_factor i4=1, dilation_h_factor i4=1
HashtableOptions: table_id i4, key_dtype i1, value_dtype i1
VarHandleOptions: container str, shared_name str
RandomOptions: seed i8, seed2 i8
BucketizeOptions: boundaries [f4]
GeluOptions: approximate b
StablehloConcatenateOptions: dimension i8
StablehloBroadcastInDimOptions: broadcast_dimensions [i8]
StablehloSliceOptions: start_indices [i8], limit_indices [i8], strides [i8]
StablehloConvolutionOptions: window_strides [i8], padding [i8], lhs_dilation [i8], rhs_dilation [i8],
    window_reversal [b], input_batch_dimension i8, input_feature_dimension i8, input_spatial_dimensions [i8],
    kernel_input_feature_dimension i8, kernel_output_feature_dimension i8, kernel_spatial_dimensions [i8],
    output_batch_dimension i8, output_feature_dimension i8, output_spatial_dimensions [i8], feature_group_count i8,
    batch_group_count i8, precision_config [u4]
StablehloCustomCallOptions: call_target_name str, has_side_effect b, backend_config str, api_version i4,
    called_computations [i4], custom_attributes [u1]
StablehloReduceOptions: dimensions [i8], body_subgraph_index i4
StablehloScatterOptions: indices_are_sorted b, update_window_dims [i8], inserted_window_dims [i8],
    scatter_dims_to_operand_dims [i8], index_vector_dim i8, unique_indices b, update_computation_subgraph_index i4
StablehloCompareOptions: comparison_direction u4, compare_type u4
StablehloDynamicSliceOptions: slice_sizes [i8]
StablehloPadOptions: edge_padding_low [i8], edge_padding_high [i8], interior_padding [i8]
StablehloIotaOptions: iota_dimension i8
StablehloDotGeneralOptions: lhs_batching_dimensions [i8], rhs_batching_dimensions [i8], lhs_contracting_dimensions
    [i8], rhs_contracting_dimensions [i8], precision_config [u4]
StablehloReduceWindowOptions: window_dimensions [i8], window_strides [i8], base_dilations [i8], window_dilations
    [i8], padding [i8], body_subgraph_index i4
StablehloSortOptions: dimension i8, is_stable b, comparator_subgraph_index i4
StablehloWhileOptions: cond_subgraph_index i4, body_subgraph_index i4
StablehloGatherOptions: offset_dims [i8], collapsed_slice_dims [i8], start_index_map [i8], index_vector_dim i8,
    slice_sizes [i8], indices_are_sorted b
StablehloTransposeOptions: permutation [i8]
StablehloRngBitGeneratorOptions: algorithm i1
ReduceWindowOptions: reduce_function i4
StableHLOCompositeOptions: name str, decomposition_subgraph_index i4, composite_attributes [u1],
    composite_attributes_format i1, version i4
StablehloCaseOptions: branch_subgraph_indices [i4]
"""

TABLES: Mapping[str, tuple[Field | None, ...]] = {**parse(_CORE), **parse(_OPTIONS)}
"""Fields of every table that has any."""


def _tables(words: str) -> tuple[str, ...]:
    return tuple(word if word == "NONE" else word + "Options" for word in words.split())


OPTIONS = _tables(
    """
    NONE Conv2D DepthwiseConv2D ConcatEmbeddings LSHProjection Pool2D SVDF RNN FullyConnected Softmax Concatenation
    Add L2Norm LocalResponseNormalization LSTM ResizeBilinear Call Reshape SkipGram SpaceToDepth
    EmbeddingLookupSparse Mul Pad Gather BatchToSpaceND SpaceToBatchND Transpose Reducer Sub Div Squeeze SequenceRNN
    StridedSlice Exp TopKV2 Split LogSoftmax Cast Dequantize MaximumMinimum ArgMax Less Neg PadV2 Greater
    GreaterEqual LessEqual Select Slice TransposeConv SparseToDense Tile ExpandDims Equal NotEqual Shape Pow ArgMin
    FakeQuant Pack LogicalOr OneHot LogicalAnd LogicalNot Unpack FloorDiv Square ZerosLike Fill
    BidirectionalSequenceLSTM BidirectionalSequenceRNN UnidirectionalSequenceLSTM FloorMod Range
    ResizeNearestNeighbor LeakyRelu SquaredDifference MirrorPad Abs SplitV Unique ReverseV2 AddN GatherNd Cos Where
    Rank ReverseSequence MatrixDiag Quantize MatrixSetDiag HardSwish If While DepthToSpace NonMaxSuppressionV4
    NonMaxSuppressionV5 ScatterNd SelectV2 Densify SegmentSum BatchMatMul Cumsum CallOnce BroadcastTo Rfft2d Conv3D
    Hashtable HashtableFind HashtableImport HashtableSize VarHandle ReadVariable AssignVariable Random Bucketize
    Gelu DynamicUpdateSlice UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum ATan2 Sign
    Bitcast BitwiseXor RightShift
    """
)
"""The option tables that builtin_options_type selects."""

OPTIONS_2 = _tables(
    """
    NONE StablehloConcatenate StablehloBroadcastInDim StablehloSlice StablehloConvolution StablehloCustomCall
    StablehloReduce StablehloScatter StablehloCompare StablehloDynamicSlice StablehloPad StablehloIota
    StablehloDotGeneral StablehloReduceWindow StablehloSort StablehloWhile StablehloGather StablehloTranspose Dilate
    StablehloRngBitGenerator ReduceWindow StableHLOComposite StablehloShiftLeft StablehloCase
    """
)
"""The option tables that builtin_options2_type selects."""

BUILTINS = tuple(
    """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
    LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH
    SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL
    FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL
    REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND
    HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
    BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
    HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
    UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
    STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
    STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
    STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
    STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
    STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
    STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
    """.split()
)
"""Operator names by builtin code."""

TENSOR_TYPES = tuple(
    """
    FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE VARIANT
    UINT32 UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2
    """.split()
)
ACTIVATIONS = tuple("NONE RELU RELU_N1_TO_1 RELU6 TANH SIGN_BIT".split())
PADDINGS = tuple("SAME VALID".split())
DETAILS = tuple("NONE CustomQuantization BlockwiseQuantization MultiAxisQuantization".split())
SPARSE_INDICES = tuple("NONE Int32Vector Uint16Vector Uint8Vector".split())
