"""The facts about a conversion: sizes, operators, passes, coverage. Plain data, JSON by `as_json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from converter.passes.record import PassRecord
from converter.quantize.record import Record
from converter.report.layers import Layer

__all__ = ["Report"]


@dataclass
class Report:
    """Facts about one conversion. Sizes in bytes, times in seconds."""

    source: str = ""
    source_format: str = "ONNX"
    source_digest: str = ""
    source_bytes: int = 0
    source_opset: int = 0
    bundle_bytes: int = 0
    weight_bytes: Mapping[str, int] = field(default_factory=dict)
    """Stored constants by element type."""
    integers: str = "exact"
    """How quantised operators of the source round: "exact", or "litert" as LiteRT does."""
    quantize: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    """The quantiser's settings."""
    quantization: Record | None = None
    """The record of the quantiser, if it ran."""
    left_float: Sequence[tuple[str, str, str]] = ()
    """(node, operator, reason) for every node between quantised tensors that computes in floating point."""
    layers: Sequence[Layer] = ()
    """Every tensor of the quantised model against the float one; measured if a report was requested."""
    outputs: Sequence[Layer] = ()
    """The same of the model's outputs."""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """The accuracy search: metric, scores of the float and the quantised model, drop and limit, share of the size gain
    kept, mixes tried."""
    sensitivity: Sequence[Mapping[str, Any]] = ()
    """{"node", "op", "loss", "snr"} of each layer quantised alone, costliest first."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """For a trainable bundle: "settings", "parameters" ({"name", "shape"} of each trained one), their "count" and
    "bytes", "state_bytes", "signatures"; "arena" if there is a budget (budget, before, after, nodes computed twice);
    if a report was requested, "arena_bytes" of each training signature, for a "batch"."""
    language: Mapping[str, Any] = field(default_factory=dict)
    """Of a language model: "context", "layers", "cache_bytes_per_token", "stored", the tensors of the file by type, and
    "products", the number of matrices of floats that could be rounded. If a text was given, "rounding": "perplexity" by
    way ("float", "plain", "gptq", "mix"), "mix" (products by role and precision), "tokens" (calibrated on, held out),
    and with an accuracy budget "budget" (limit, lost, trials) and "ranking" (what 8 bits win, by unit)."""
    embedding: Mapping[str, Any] = field(default_factory=dict)
    """Of an embedding model: see `lite_runtime.language.embedding.recipe.Recipe`."""
    halved: int = 0
    """Constants stored in float16."""
    kept_float32: int = 0
    """Constants that would have overflowed float16 and stayed float32."""
    ops_before: Mapping[str, int] = field(default_factory=dict)
    ops_after: Mapping[str, int] = field(default_factory=dict)
    passes: list[PassRecord] = field(default_factory=list)
    native: int = 0
    """The number of nodes whose operator has native kernels in this build."""
    reference: int = 0
    """The number of nodes that only the NumPy reference can run."""
    reference_ops: Mapping[str, int] = field(default_factory=dict)
    by_reference: Sequence[tuple[str, str, str]] = ()
    """(node, operator, source location) for each of those."""
    arena_bytes: int = 0
    """Working memory of one run of "predict" by the native kernels, its open dimensions taken as 1."""
    left_out: list[str] = field(default_factory=list)
    """What the report lacks because a run of the model failed, and why."""
    golden: str = ""
    """"stored", or why the bundle holds no golden sample."""
    seconds: float = 0.0

    @property
    def coverage(self) -> float:
        """The share of nodes with native kernels, 0 to 1."""
        total = self.native + self.reference
        return self.native / total if total else 1.0

    def rewrites(self) -> dict[str, int]:
        """Rewrites by pass, without passes that rewrote nothing."""
        counts: dict[str, int] = {}
        for record in self.passes:
            if record.rewrites:
                counts[record.name] = counts.get(record.name, 0) + record.rewrites
        return counts

    def as_dict(self) -> dict[str, Any]:
        """Every field and the coverage, as plain values."""
        return {**asdict(self), "coverage": self.coverage}

    def as_json(self) -> str:
        """`as_dict` as indented JSON."""
        return json.dumps(self.as_dict(), indent=2, sort_keys=True)
