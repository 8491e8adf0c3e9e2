"""`msedge convert`: convert a source model to a bundle or to standard ONNX, with a report of all changes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edge.cli import convert_options as option
from edge.cli.options import Custom, InputShapes, Json, read_shapes
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from converter import Conversion, Embedding
    from converter.frontends.embedding import Pooling
    from converter.report import Report
    from converter.training import Lora, Training

__all__ = ["convert"]


def convert(
    context: typer.Context,
    model: option.Model,
    output: option.Output,
    quantize: option.Mode = "none",
    calibration: option.Calibration = None,
    method: option.Method = "auto",
    keep_float: option.KeepFloat = None,
    io: option.Io = "float32",
    accuracy_budget: option.AccuracyBudget = None,
    metric: option.Metric = None,
    evaluation: option.Evaluation = None,
    trainable: option.Trainable = None,
    lora: option.LoraRank = None,
    lora_only_b: option.LoraOnlyB = False,
    loss: option.Loss = "softmax_cross_entropy",
    optimizer: option.Optimizer = "momentum",
    learning_rate: option.LearningRate = 0.01,
    weight_decay: option.WeightDecay = 0.0,
    clip_norm: option.ClipNorm = None,
    batch_norm: option.BatchNorm = "frozen",
    second_order: option.SecondOrder = False,
    slopes: option.Slopes = None,
    explainable: option.Explainable = False,
    processing: option.Processing = None,
    state: option.State = None,
    integers: option.Integers = None,
    activations: option.Activations = None,
    context_size: option.Context = None,
    tokenizer: option.Tokenizer = None,
    pooling: option.Pooling = None,
    normalize: option.Normalize = None,
    cache: option.Cache = None,
    keep_w8: option.KeepW8 = None,
    to: option.Target = "mslite",
    report: option.ReportFile = None,
    input_shape: InputShapes = None,
    custom: Custom = None,
    as_json: Json = False,
) -> None:
    """Convert a model to a bundle: ONNX (.onnx, .ort), TensorFlow Lite, XGBoost (.ubj, .json), LightGBM (.txt),
    PyTorch (.pt2), a TensorFlow SavedModel folder, a language model (.gguf, or a folder with config.json and
    .safetensors files, or with model.onnx), or an embedding model (ONNX with --tokenizer, or a folder of Sentence
    Transformers). Other formats are refused with the way round; docs/sources.md lists them."""
    shapes = read_shapes(input_shape)
    from converter import Accuracy, Options
    from converter import convert as run
    from lite_runtime.bundle.processing import load as load_processing

    training = _training_of(
        context, trainable, lora, lora_only_b, second_order, loss=loss, optimizer=optimizer, clip_norm=clip_norm,
        learning_rate=learning_rate, weight_decay=weight_decay, batch_norm=batch_norm, slopes=tuple(slopes or ()),
    )  # fmt: skip
    options = Options(mode=quantize, method=method, keep_float=tuple(keep_float or ()), io=io)
    _refuse_unused(options.mode, calibration, accuracy_budget, evaluation)
    declared = None if processing is None else load_processing(processing)
    say(f"converting {model}")
    conversion = run(
        model,
        output=output if declared is None else None,
        to=to,
        quantize=options,
        calibration=calibration,
        accuracy=None if accuracy_budget is None else Accuracy(accuracy_budget, metric, evaluation),
        input_shapes=shapes or None,
        trainable=training,
        processing=declared,
        state=dict(_pair(text) for text in state or ()),
        integers=integers,
        activations=activations,
        context=context_size,
        embedding=_embedding_of(tokenizer, pooling, normalize),
        cache=cache,
        keep_w8=keep_w8 or None,
        explain=report is not None,
        explainable=explainable,
        progress=_progress,
    )
    _write_fitting(output, conversion.bundle, declared)
    _tell(model, output, to, report, conversion, as_json)


def _tell(model: Path, output: Path, to: str, page: Path | None, conversion: Conversion, as_json: bool) -> None:
    _write_report(page, conversion.report)
    if as_json:
        emit({"output": str(output), **conversion.report.as_dict()})
    else:
        _print(model, output, to, page, conversion)


def _pair(text: str) -> tuple[str, str]:
    entry, equals, result = text.partition("=")
    if not (entry and equals and result):
        raise typer.BadParameter(f"expected INPUT=OUTPUT, got {text!r}", param_hint="--state")
    return entry, result


def _refuse_unused(mode: str, calibration: Path | None, budget: str | None, evaluation: Path | None) -> None:
    """Refuse options that would have no effect."""
    plain = mode in ("none", "fp16")
    if calibration is not None and (plain or mode == "dynamic"):
        why = f"--quantize {mode} uses no calibration data; omit it"
        raise typer.BadParameter(why, param_hint="--calibration")
    if budget is not None and plain:
        why = f"--quantize {mode} uses one precision for all layers, so there is nothing to choose; omit it"
        raise typer.BadParameter(why, param_hint="--accuracy-budget")
    if evaluation is not None and budget is None:
        raise typer.BadParameter("only used with --accuracy-budget, which is missing", param_hint="--evaluation")


def _training_of(
    context: typer.Context,
    trainable: list[str] | None,
    lora: str | None,
    only_b: bool,
    second_order: bool,
    **settings: Any,
) -> Training | None:
    """What devices train, if anything."""
    from converter import Training
    from converter.training.options import USUAL

    adapters = _lora(lora, only_b)
    if not trainable and not lora:
        _refuse_untrained(context)
        return None
    signatures = (*USUAL, "curvature") if second_order else USUAL
    return Training(trainable=tuple(trainable or ()), adapters=adapters, signatures=signatures, **settings)


def _refuse_untrained(context: typer.Context) -> None:
    for name in _FOR_TRAINING:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("only used with --trainable or --lora; both are missing", param_hint=flag)


_FOR_TRAINING = (
    "loss", "optimizer", "learning_rate", "weight_decay", "clip_norm", "batch_norm", "second_order", "slopes",
)  # fmt: skip


def _embedding_of(tokenizer: Path | None, pooling: Pooling | None, normalize: bool | None) -> Embedding | None:
    from converter import Embedding

    given = [value for value in (tokenizer, pooling, normalize) if value is not None]
    return Embedding(tokenizer, pooling, normalize) if given else None


def _lora(text: str | None, only_b: bool) -> Lora | None:
    from converter.training import Lora

    if text is None:
        if only_b:
            raise typer.BadParameter("only used with --lora, which is missing", param_hint="--lora-only-b")
        return None
    rank, _, glob = text.partition(":")
    if not rank.isdecimal():
        raise typer.BadParameter(f"expected RANK or RANK:GLOB,GLOB (4:'*attn*'), got {text!r}", param_hint="--lora")
    return Lora(int(rank), targets=tuple((glob or "*").split(",")), only_b=only_b)


def _write_fitting(path: Path, bundle: bytes, declared: Mapping[str, Any] | None) -> None:
    """Write a bundle that declares processing, if it fits the model's inputs; raises ProcessingError before anything is
    written."""
    if declared is None:
        return
    from converter.errors import ConvertError
    from edge.gateway.ports import ports_of
    from edge.gateway.processing import Processing
    from lite_runtime import load
    from lite_runtime._files import write_atomically

    Processing(declared, ports_of(load(bundle)))
    write_atomically(path, bundle, ConvertError)


def _progress(what: str, done: int, total: int) -> None:
    say(f"{what}: {done} of {total}" if total else f"{what}: {done}")


def _write_report(path: Path | None, report: Report) -> None:
    if path is None:
        return
    from converter.report import page
    from lite_runtime._files import write_atomically
    from lite_runtime.errors import MsedgeError

    text = report.as_json() if path.suffix == ".json" else page(report)
    write_atomically(path, text.encode(), MsedgeError)


def _print(model: Path, output: Path, to: str, page: Path | None, conversion: Conversion) -> None:
    report, out = conversion.report, console()
    rows = table("", "", "", fold=("",))
    rows.show_header, rows.box = False, None
    share = f"{report.bundle_bytes / report.source_bytes:.0%} of {model.name}'s" if report.source_bytes else "new"
    kind = "bundle" if to == "mslite" else "model"
    rows.add_row(kind, f"{output}, {bytes_text(report.bundle_bytes)} ({share} {bytes_text(report.source_bytes)})")
    parts = (
        _language(report),
        _embedding(report),
        _training(report),
        _quantization(report),
        _bundle(report) if to == "mslite" else [],
    )
    for title, text in chain.from_iterable(parts):
        rows.add_row(title, text)
    rows.add_row("took", seconds_text(report.seconds))
    if page is not None:
        rows.add_row("report", str(page))
    out.print(rows)
    if report.embedding and model.is_dir():
        print(f"next: msedge inspect {output}")
    elif to == "mslite":
        print(f"next: msedge verify {model} {output}")


def _language(report: Report) -> list[tuple[str, str]]:
    found = report.language
    if not found:
        return []
    stored = ", ".join(f"{kind} {count}" for kind, count in found["stored"].items())
    cache = bytes_text(found["cache_bytes_per_token"])
    return [
        ("model", f"{found['layers']} layers, texts of up to {found['context']} tokens, {cache} of cache for each"),
        ("tensors", stored),
        *_rounding(found.get("rounding")),
    ]


def _rounding(found: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Of a language model that was rounded by a text: what that cost."""
    if not found:
        return []
    counts: dict[str, int] = {}
    for kinds in found["mix"].values():
        for kind, count in kinds.items():
            counts[kind] = counts.get(kind, 0) + count
    scores = ", ".join(f"{way} {score:.2f}" for way, score in found["perplexity"].items())
    rows = [
        ("products", ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))),
        ("perplexity", f"{scores}, on {found['tokens']['held']} tokens that were held out"),
    ]
    budget = found.get("budget")
    if budget:
        tried = f"{budget['trials']} combinations measured"
        rows.append(("accuracy", f"{budget['lost']:.3g} lost, {budget['limit']:.3g} allowed; {tried}"))
    return rows


def _embedding(report: Report) -> list[tuple[str, str]]:
    found = report.embedding
    if not found:
        return []
    made = "the model's output" if found["pooling"] == "none" else f"{found['pooling']} of {found['output']}"
    length = ", of length 1" * found["normalize"]
    text = f"{found['dimensions']} numbers for texts of up to {found['tokens']} tokens: {made}{length}"
    return [("vectors", text)]


def _training(report: Report) -> list[tuple[str, str]]:
    found = report.training
    if not found:
        return []
    names = [parameter["name"] for parameter in found["parameters"]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [
        ("trainable", f"{found['count']} values in {len(names)} parameters: {', '.join(names[:_SHOWN])}{more}"),
        ("state", f"{bytes_text(found['state_bytes'])}, of which {bytes_text(found['bytes'])} are parameters"),
        ("signatures", ", ".join(found["signatures"])),
    ]


def _bundle(report: Report) -> list[tuple[str, str]]:
    weights = ", ".join(f"{dtype} {bytes_text(size)}" for dtype, size in report.weight_bytes.items())
    before, after = sum(report.ops_before.values()), sum(report.ops_after.values())
    slow = ", ".join(f"{op} {count}" for op, count in report.reference_ops.items())
    return [
        ("weights", weights + f"; {report.kept_float32} too large for float16" * bool(report.kept_float32)),
        ("operators", f"{before} of {_dialect(report)} became {after}"),
        ("rewrites", ", ".join(f"{name} {count}" for name, count in report.rewrites().items()) or "none"),
        ("native", f"{report.coverage:.0%} of operators" + f"; on the NumPy reference: {slow}" * bool(slow)),
        ("golden", report.golden),
        *(("not in the report", text) for text in report.left_out),
    ]


def _dialect(report: Report) -> str:
    return f"opset {report.source_opset}" if report.source_format == "ONNX" else report.source_format


def _quantization(report: Report) -> list[tuple[str, str]]:
    done = report.quantization
    if done is None:
        return []
    counts: dict[str, int] = {}
    for node in done.nodes:
        counts[node.status] = counts.get(node.status, 0) + 1
    rows = [("quantised", ", ".join(f"{status} {count}" for status, count in sorted(counts.items())) + " operators")]
    rows += [("please check", f.text) for f in done.findings[:_SHOWN]]
    if len(done.findings) > _SHOWN:
        rows.append(("", f"and {len(done.findings) - _SHOWN} more: see --report"))
    rows += [(f"output {o.name}", f"{o.snr:.1f} dB signal to noise, cosine {o.cosine:.5f}") for o in report.outputs]
    return [*rows, *_budget(report.budget)]


_SHOWN = 4


def _budget(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not found:
        return []
    return [
        (
            "accuracy",
            f"{found['metric']} {found['score']:.4g} against {found['float']:.4g} in float: "
            f"{found['drop']:.4g} lost, {found['limit']:.4g} allowed; {found['gain']:.0%} of the size reduction kept, "
            f"{found['trials']} combinations measured",
        )
    ]
