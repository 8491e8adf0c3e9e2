"""`msedge adapter`: an adapter of the library peft for a bundle, or the other way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Bundle, Json
from edge.cli.output import emit

__all__ = ["adapter"]


def adapter(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="ADAPTER",
            help="A folder with adapter_config.json and adapter_model.safetensors, or a file of msedge (.msstate).",
        ),
    ],
    bundle: Bundle,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PATH", help="The file (.msstate), or the folder, to write.")
    ],
    as_json: Json = False,
) -> None:
    """Convert an adapter between the form of the library peft, a folder, and msedge's, a file for one bundle.

    The bundle must have been converted with --lora, with at least the adapter's rank and products. `msedge chat
    --adapter`, `msedge teach --adapter` and `msedge serve` use the file; peft's PeftModel.from_pretrained loads the
    folder beside the model that the bundle was made of.
    """
    from converter.peft import CONFIG, from_peft, to_peft
    from lite_runtime import bundle as bundles
    from lite_runtime.language import Adapter

    base = bundles.read(bundle)
    if source.is_dir():
        made = from_peft(source, base)
        made.save(output)
    else:
        made = Adapter.load(source)
        to_peft(made, base, output)
    ranks = sorted({array.shape[1] for name, array in made.arrays.items() if name.endswith(".lora_a")})
    count = len(made.arrays) // 2
    if as_json:
        emit({"output": str(output), "products": count, "ranks": ranks})
        return
    print(f"{output}: adapters of {count} products, rank {', '.join(map(str, ranks))}")
    print(
        f"talk to it:  msedge chat {bundle} --adapter {output}" if source.is_dir() else f"peft reads {output / CONFIG}"
    )
