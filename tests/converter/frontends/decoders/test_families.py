"""Every family, from both kinds of files, against logits of the library transformers (`by_transformers`)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from converter import ConvertError, convert
from tests.converter.frontends.decoders.by_transformers import EXPECTED, KEPT, tokens
from tests.converter.frontends.decoders.checkpoints import CASES, config, folder, gguf_file, tensors
from tests.converter.frontends.decoders.running import logits_of

KNOWN = json.loads(EXPECTED.read_text())["cases"]
NEAR = 1e-3
"""Of the logits' range. Keys and values are rounded to float16, which alone gives up to 7e-4."""


def difference(bundle: bytes, case: str) -> float:
    """The largest, relative to the range of all logits."""
    found = logits_of(bundle, tokens())[4::5][:, KEPT]
    return float(np.abs(found - np.array(KNOWN[case]["logits"])).max()) / float(KNOWN[case]["range"])


@pytest.mark.parametrize("case", CASES)
def test_folders(case: str, tmp_path: Path) -> None:
    settings = config(case)
    made = convert(folder(tmp_path / "model", settings, tensors(settings)))
    assert made.report.reference == 0
    assert difference(made.bundle, case) < NEAR


@pytest.mark.parametrize("case", [case for case in CASES if case != "qwen2, window"])
def test_gguf_files(case: str, tmp_path: Path) -> None:
    """llama.cpp has no window for qwen2."""
    settings = config(case)
    made = convert(gguf_file(tmp_path / "model.gguf", settings, tensors(settings)))
    assert made.report.source_format == "GGUF" and made.report.language["stored"].keys() == {"F32"}
    assert difference(made.bundle, case) < NEAR


def test_a_setting_that_is_wrong_would_be_found(tmp_path: Path) -> None:
    case = "llama"
    for wrong in ({"rope_theta": 30_000.0}, {"num_key_value_heads": 4}, {"rms_norm_eps": 0.5}):
        settings = config(case, **wrong)
        held = tensors(settings)
        made = convert(folder(tmp_path / "model", settings, held))
        assert difference(made.bundle, case) > 10 * NEAR, wrong


def test_families_are_refused_by_name(tmp_path: Path) -> None:
    settings = config("llama", model_type="mamba")
    with pytest.raises(ConvertError, match=r"expected a language model of llama, mistral, qwen2.*got 'mamba'"):
        convert(folder(tmp_path, settings, {}))
