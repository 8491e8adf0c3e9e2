"""Logits of `checkpoints` by the library transformers, which the tests do not need.

python -m tests.converter.frontends.decoders.by_transformers    writes expected.json; needs torch and transformers
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from tests.converter.frontends.decoders.checkpoints import CASES, VOCABULARY, config, folder, tensors

EXPECTED = Path(__file__).with_name("expected.json")
TOKENS = 40
KEPT = np.arange(3, VOCABULARY, 28)
"""The columns of logits that are stored, of every fifth token."""


def tokens() -> list[int]:
    """The text."""
    found: list[int] = np.random.default_rng(9).integers(0, VOCABULARY, TOKENS).tolist()
    return found


def main() -> None:
    """The program."""
    import torch
    import transformers

    expected = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as work:
            settings = config(case)
            path = folder(Path(work), settings, tensors(settings))
            model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
            with torch.no_grad():
                logits = model(torch.tensor([tokens()]), use_cache=False).logits[0].float().numpy()
        kept = logits[4::5][:, KEPT].astype(float)
        expected[case] = {"range": round(float(np.ptp(logits)), 4), "logits": np.round(kept, 5).tolist()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    rows = ",\n".join(f"  {json.dumps(case)}: {json.dumps(row)}" for case, row in expected.items())
    EXPECTED.write_text(f'{{\n "versions": {json.dumps(versions)},\n "cases": {{\n{rows}\n }}\n}}\n')


if __name__ == "__main__":
    main()
