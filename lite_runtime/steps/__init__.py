"""Declarations of every kernel's step: one class each, one file per family of kernels.

Binders get classes from here (`steps.F32Gemm`): a family's file is imported on first access to one of its classes, so
that a start imports only those that its model uses. Kernels import the family's file directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lite_runtime.steps.attention import F32Attention as F32Attention
    from lite_runtime.steps.attention import PackKeys as PackKeys
    from lite_runtime.steps.attention import PadRows as PadRows
    from lite_runtime.steps.batchnorm import Apply as Apply
    from lite_runtime.steps.batchnorm import GradApply as GradApply
    from lite_runtime.steps.batchnorm import GradSettle as GradSettle
    from lite_runtime.steps.batchnorm import GradSums as GradSums
    from lite_runtime.steps.batchnorm import Moments as Moments
    from lite_runtime.steps.batchnorm import Settle as Settle
    from lite_runtime.steps.blocked import BlockGemm as BlockGemm
    from lite_runtime.steps.blocked import EmbedBlocks as EmbedBlocks
    from lite_runtime.steps.blocked import FloatBlockGemm as FloatBlockGemm
    from lite_runtime.steps.blocked import GatedBlocks as GatedBlocks
    from lite_runtime.steps.blocked import QuantizeBlocks as QuantizeBlocks
    from lite_runtime.steps.blockgrad import ByteBlockGrad as ByteBlockGrad
    from lite_runtime.steps.blockgrad import FloatBlockGrad as FloatBlockGrad
    from lite_runtime.steps.boxes import GatherBoxes as GatherBoxes
    from lite_runtime.steps.boxes import Suppress as Suppress
    from lite_runtime.steps.control import Begin as Begin
    from lite_runtime.steps.control import Copy as Copy
    from lite_runtime.steps.control import GoTo as GoTo
    from lite_runtime.steps.control import Refuse as Refuse
    from lite_runtime.steps.control import Turn as Turn
    from lite_runtime.steps.copy import Extent as Extent
    from lite_runtime.steps.copy import Segments as Segments
    from lite_runtime.steps.copy import Swap as Swap
    from lite_runtime.steps.copy import Trilu as Trilu
    from lite_runtime.steps.copy import Weave as Weave
    from lite_runtime.steps.depthwise import F32Depthwise as F32Depthwise
    from lite_runtime.steps.elementwise import Chain as Chain
    from lite_runtime.steps.elementwise import Instruction as Instruction
    from lite_runtime.steps.elementwise import Load as Load
    from lite_runtime.steps.elementwise import Store as Store
    from lite_runtime.steps.gemm import F32Gemm as F32Gemm
    from lite_runtime.steps.gemm import F32Pack as F32Pack
    from lite_runtime.steps.gemm import F32Pad as F32Pad
    from lite_runtime.steps.gemm import F32Transpose as F32Transpose
    from lite_runtime.steps.grouped import F32Grouped as F32Grouped
    from lite_runtime.steps.indexing import Accumulate as Accumulate
    from lite_runtime.steps.indexing import Gather as Gather
    from lite_runtime.steps.indexing import GatherElements as GatherElements
    from lite_runtime.steps.indexing import GatherND as GatherND
    from lite_runtime.steps.indexing import OneHot as OneHot
    from lite_runtime.steps.indexing import Pair as Pair
    from lite_runtime.steps.indexing import ScatterElements as ScatterElements
    from lite_runtime.steps.indexing import ScatterND as ScatterND
    from lite_runtime.steps.layernorm import LayerNormGrad as LayerNormGrad
    from lite_runtime.steps.lookup import Interpolated as Interpolated
    from lite_runtime.steps.lookup import Lookup as Lookup
    from lite_runtime.steps.lora import Adapt as Adapt
    from lite_runtime.steps.normalize import LocalResponse as LocalResponse
    from lite_runtime.steps.normalize import LpNormalize as LpNormalize
    from lite_runtime.steps.normalize import Softmax as Softmax
    from lite_runtime.steps.normalize import Standardize as Standardize
    from lite_runtime.steps.order import Arg as Arg
    from lite_runtime.steps.order import TopK as TopK
    from lite_runtime.steps.outer import Outer as Outer
    from lite_runtime.steps.outer import Unpack as Unpack
    from lite_runtime.steps.packing import CellWeights as CellWeights
    from lite_runtime.steps.packing import Panels as Panels
    from lite_runtime.steps.packing import WinogradFilters as WinogradFilters
    from lite_runtime.steps.paged import Append as Append
    from lite_runtime.steps.paged import Attend as Attend
    from lite_runtime.steps.pool import Pool as Pool
    from lite_runtime.steps.pool import Window as Window
    from lite_runtime.steps.poolgrad import PoolGrad as PoolGrad
    from lite_runtime.steps.qconv_transpose import SpreadSums as SpreadSums
    from lite_runtime.steps.qdepthwise import DepthwiseBytes as DepthwiseBytes
    from lite_runtime.steps.qdepthwise import X8Depthwise as X8Depthwise
    from lite_runtime.steps.qdepthwise import X8DepthwiseShifted as X8DepthwiseShifted
    from lite_runtime.steps.qelementwise import ByteProduct as ByteProduct
    from lite_runtime.steps.qelementwise import ByteSum as ByteSum
    from lite_runtime.steps.qelementwise import Group as Group
    from lite_runtime.steps.qgemm import GemmBytes as GemmBytes
    from lite_runtime.steps.qgemm import PadBytes as PadBytes
    from lite_runtime.steps.qgemm import X8Gemm as X8Gemm
    from lite_runtime.steps.qgemm import X8GemmShifted as X8GemmShifted
    from lite_runtime.steps.qgemm import X8Pack as X8Pack
    from lite_runtime.steps.qgemm import X8Pad as X8Pad
    from lite_runtime.steps.qpool import ByteMax as ByteMax
    from lite_runtime.steps.qpool import QuantisedMean as QuantisedMean
    from lite_runtime.steps.qrecurrent import ByteCells as ByteCells
    from lite_runtime.steps.qreduce import AverageSum as AverageSum
    from lite_runtime.steps.qreduce import IntegerReduce as IntegerReduce
    from lite_runtime.steps.qreduce import PlaceSum as PlaceSum
    from lite_runtime.steps.qresize import IntegerLinear as IntegerLinear
    from lite_runtime.steps.qsettle import SettleSums as SettleSums
    from lite_runtime.steps.qsoftmax import ByteSoftmax as ByteSoftmax
    from lite_runtime.steps.qsoftmax import ShortSoftmax as ShortSoftmax
    from lite_runtime.steps.quantize import QuantizeRows as QuantizeRows
    from lite_runtime.steps.quantize import Range as Range
    from lite_runtime.steps.qwide import X16Depthwise as X16Depthwise
    from lite_runtime.steps.qwide import X16Gemm as X16Gemm
    from lite_runtime.steps.qwide import X16GemmDeep as X16GemmDeep
    from lite_runtime.steps.qwide import X16Pack as X16Pack
    from lite_runtime.steps.qwide import X16Pad as X16Pad
    from lite_runtime.steps.recurrent import CellNumbers as CellNumbers
    from lite_runtime.steps.recurrent import Cells as Cells
    from lite_runtime.steps.recurrent import FinalStates as FinalStates
    from lite_runtime.steps.recurrent import FloatCells as FloatCells
    from lite_runtime.steps.recurrent import Project as Project
    from lite_runtime.steps.recurrentgrad import GruBack as GruBack
    from lite_runtime.steps.recurrentgrad import GruGates as GruGates
    from lite_runtime.steps.recurrentgrad import LstmBack as LstmBack
    from lite_runtime.steps.recurrentgrad import LstmCells as LstmCells
    from lite_runtime.steps.recurrentgrad import StatesBefore as StatesBefore
    from lite_runtime.steps.reduce import Reduce as Reduce
    from lite_runtime.steps.resize import Nearest as Nearest
    from lite_runtime.steps.resize import Taps as Taps
    from lite_runtime.steps.rotary import Rotate as Rotate
    from lite_runtime.steps.transposed import TransposedSums as TransposedSums
    from lite_runtime.steps.trees import Classes as Classes
    from lite_runtime.steps.trees import Scores as Scores
    from lite_runtime.steps.trees import TwoClasses as TwoClasses
    from lite_runtime.steps.trees import Walk as Walk
    from lite_runtime.steps.user import Call as Call
    from lite_runtime.steps.wgemm import NarrowGemm as NarrowGemm
    from lite_runtime.steps.winograd import Winograd as Winograd

_FAMILIES = {
    "attention": "F32Attention PackKeys PadRows",
    "batchnorm": "Apply GradApply GradSettle GradSums Moments Settle",
    "blocked": "BlockGemm EmbedBlocks FloatBlockGemm GatedBlocks QuantizeBlocks",
    "blockgrad": "ByteBlockGrad FloatBlockGrad",
    "boxes": "GatherBoxes Suppress",
    "control": "Begin Copy GoTo Refuse Turn",
    "copy": "Extent Segments Swap Trilu Weave",
    "depthwise": "F32Depthwise",
    "elementwise": "Chain Instruction Load Store",
    "gemm": "F32Gemm F32Pack F32Pad F32Transpose",
    "grouped": "F32Grouped",
    "indexing": "Accumulate Gather GatherElements GatherND OneHot Pair ScatterElements ScatterND",
    "layernorm": "LayerNormGrad",
    "lookup": "Interpolated Lookup",
    "lora": "Adapt",
    "normalize": "LocalResponse LpNormalize Softmax Standardize",
    "order": "Arg TopK",
    "outer": "Outer Unpack",
    "packing": "CellWeights Panels WinogradFilters",
    "paged": "Append Attend",
    "pool": "Pool Window",
    "poolgrad": "PoolGrad",
    "qconv_transpose": "SpreadSums",
    "qdepthwise": "DepthwiseBytes X8Depthwise X8DepthwiseShifted",
    "qelementwise": "ByteProduct ByteSum Group",
    "qgemm": "GemmBytes PadBytes X8Gemm X8GemmShifted X8Pack X8Pad",
    "qpool": "ByteMax QuantisedMean",
    "qrecurrent": "ByteCells",
    "qreduce": "AverageSum IntegerReduce PlaceSum",
    "qresize": "IntegerLinear",
    "qsettle": "SettleSums",
    "qsoftmax": "ByteSoftmax ShortSoftmax",
    "quantize": "QuantizeRows Range",
    "qwide": "X16Depthwise X16Gemm X16GemmDeep X16Pack X16Pad",
    "recurrent": "CellNumbers Cells FinalStates FloatCells Project",
    "recurrentgrad": "GruBack GruGates LstmBack LstmCells StatesBefore",
    "reduce": "Reduce",
    "resize": "Nearest Taps",
    "rotary": "Rotate",
    "transposed": "TransposedSums",
    "trees": "Classes Scores TwoClasses Walk",
    "user": "Call",
    "wgemm": "NarrowGemm",
    "winograd": "Winograd",
}
_HOMES = {name: family for family, names in _FAMILIES.items() for name in names.split()}


if not TYPE_CHECKING:  # otherwise every name would exist and be Any

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found
