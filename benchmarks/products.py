"""Matrix products against peers and against the machine: `python -m benchmarks.products [--threads N]`.

Square products of float32 and of bytes (QLinearMatMul: unsigned rows, signed constant columns, unsigned results), and
products of one row, whose speed is limited by reading their weights from memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.comparison import Row, row_of
from edge.measuring.contest import contest
from edge.measuring.roofline import Roofline, roofline
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["PRODUCTS", "Measured", "Product", "measured"]


@dataclass(frozen=True, slots=True)
class Product:
    """rows × depth times constant depth × columns."""

    rows: int
    depth: int
    columns: int
    integers: bool = False

    @property
    def name(self) -> str:
        """The name, such as `float32 512 × 512 × 512`."""
        return f"{'int8' if self.integers else 'float32'} {self.rows} × {self.depth} × {self.columns}"

    @property
    def operations(self) -> int:
        """The number of operations; a multiply-add counts as two."""
        return 2 * self.rows * self.depth * self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of operands and results."""
        elements = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        return elements * (1 if self.integers else 4)


PRODUCTS = (
    *(Product(n, n, n, integers) for integers in (False, True) for n in (512, 1024, 2048)),
    *(Product(1, 2048, 1000, integers) for integers in (False, True)),
    *(Product(1, 4096, 4096, integers) for integers in (False, True)),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A product's row, its amounts, and the part of the machine's limit that we reach, 0 if that is not known."""

    row: Row
    operations: int
    nbytes: int
    share: float


def measured(threads: int = 1, rounds: int = 25, products: Sequence[Product] = PRODUCTS) -> Iterator[Measured]:
    """Compare each product with onnxruntime and OpenVINO."""
    bounds = roofline(threads)
    with tempfile.TemporaryDirectory() as folder:
        for product in products:
            path = Path(folder) / f"{product.name}.onnx"
            onnx.save(_model(product), path)
            peers = ("onnxruntime", "openvino")
            row = row_of(contest(path, against=peers, threads=threads, rounds=rounds, seconds=5.0), "random")
            yield Measured(row, product.operations, product.nbytes, _share(product, row, bounds))


def _share(product: Product, row: Row, bounds: Roofline | None) -> float:
    if bounds is None:
        return 0.0
    kernel = "qgemm" if product.integers else "gemm"
    return bounds.seconds(kernel, product.operations, product.nbytes) / row.seconds


def _model(product: Product) -> onnx.ModelProto:
    rng = np.random.default_rng(product.rows)
    size = product.depth, product.columns
    kind = TensorProto.UINT8 if product.integers else TensorProto.FLOAT
    if product.integers:
        held: dict[str, Array | np.generic] = {
            "x_scale": np.float32(0.02), "x_zero": np.uint8(128), "w": rng.integers(-127, 128, size).astype(np.int8),
            "w_scale": np.float32(0.01), "w_zero": np.int8(0), "y_scale": np.float32(0.1), "y_zero": np.uint8(128),
        }  # fmt: skip
        node = helper.make_node("QLinearMatMul", ["x", *held], ["y"])
    else:
        held = {"w": rng.standard_normal(size).astype(np.float32)}
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    ends = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in (("x", (product.rows, product.depth)), ("y", (product.rows, product.columns)))
    ]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> int:
    """Print one line per product."""
    parser = argparse.ArgumentParser(prog="benchmarks.products", description="Matrix products against peers.")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, default=25, metavar="N", help="turns per contender")
    args = parser.parse_args()
    try:
        for one in measured(args.threads, args.rounds):
            rate = one.operations / one.row.seconds / 1e9
            peers = ", ".join(f"{p.name} {p.ratio:.2f} ({p.low:.2f}–{p.high:.2f})" for p in one.row.peers)
            bytes_rate = one.nbytes / one.row.seconds / 1e9
            print(f"{one.row.name:28} {rate:7.1f} GFLOP/s {bytes_rate:6.1f} GB/s {one.share:4.0%} of roof | {peers}")
            for name, why in (one.row.absent or {}).items():
                print(f"{'':28} {name}: {why}")
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
