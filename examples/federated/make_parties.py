"""Two parties for trials: `python make_parties.py FOLDER` writes joint.onnx, both parties' rows, and their files.

A bank (active) knows whether its customers repay, and three features of each; a shop (passive) knows five others of its
own customers. A third of all people are customers of both. The commands that follow are printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PEOPLE, BANK, SHOP = 6000, 3, 5
FILE = """\
[vertical]
role = "{role}"
bundle = "{name}.mslite"

[data]
file = "{name}.npz"

[learning]
rate = 0.3
{more}
[state]
checkpoint = "{name}.state"

[report]
bundle = "{name}-learned.mslite"
"""
LED = """\
epochs = 5
batch = 64
"""
COMMANDS = """\
next, in {folder}:
  msedge cut joint.onnx --input shop --first shop.onnx --rest bank.onnx
  msedge convert shop.onnx -o shop.mslite --trainable '*' --loss inner_product
  msedge convert bank.onnx -o bank.mslite --trainable '*' --slopes shop_result
  msedge vertical bank.toml --simulate shop.toml
"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    bank, shop = rng.standard_normal((PEOPLE, BANK), np.float32), rng.standard_normal((PEOPLE, SHOP), np.float32)
    labels = (bank.sum(1) + shop[:, :3].sum(1) + rng.standard_normal(PEOPLE) > 0).astype(np.int64)
    names = np.array([f"person {at:05d}" for at in range(PEOPLE)])
    third = PEOPLE // 3
    np.savez(folder / "bank.npz", id=names[: 2 * third], bank=bank[: 2 * third], labels=labels[: 2 * third])
    np.savez(folder / "shop.npz", id=names[third:], shop=shop[third:])
    onnx.save(joint(rng), folder / "joint.onnx")
    (folder / "bank.toml").write_text(FILE.format(role="active", name="bank", more=LED))
    (folder / "shop.toml").write_text(FILE.format(role="passive", name="shop", more=""))
    print(COMMANDS.format(folder=folder), end="")


def joint(rng: np.random.Generator) -> onnx.ModelProto:
    """bank [n, 3], shop [n, 5] -> logits [n, 2]."""

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["shop", "shop_w"], ["shop_hidden"]),
        helper.make_node("Relu", ["shop_hidden"], ["shop_active"]),
        helper.make_node("MatMul", ["shop_active", "shop_out"], ["shop_result"]),
        helper.make_node("Concat", ["bank", "shop_result"], ["both"], axis=1),
        helper.make_node("MatMul", ["both", "head_w"], ["product"]),
        helper.make_node("Add", ["product", "head_b"], ["logits"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
              for name, size in (("bank", BANK), ("shop", SHOP))]  # fmt: skip
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])]
    weights = [weight("shop_w", SHOP, 8), weight("shop_out", 8, 4), weight("head_w", BANK + 4, 2), weight("head_b", 2)]
    graph = helper.make_graph(nodes, "joint", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


if __name__ == "__main__":
    main()
