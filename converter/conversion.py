"""Conversion of a source model to a bundle or to standard ONNX, with a report.

convert(source, quantize="int8", calibration=data) -> Conversion
convert(source, trainable="head.*") -> Conversion
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
import onnx_ir as ir

from converter import export, frontends, golden, golden_text, language
from converter.embedding import declared, embedded
from converter.errors import ConvertError, QuantizeError, TrainingError
from converter.frontends.decoders import KEY as LANGUAGE
from converter.frontends.decoders import Activations, Cache
from converter.frontends.embedding import Embedding
from converter.ir import build, kept, quantization
from converter.ir.shapes import agree
from converter.lowering import (
    gate_products,
    halve_weights,
    in_panels,
    lower,
    narrow_products,
    need_storable,
    pack_narrow,
)
from converter.lowering.table import lite_op
from converter.pass_lists import OF_TEXTS, PLAIN, PREPARE, REST, STATIC, WIDEN, Pass, Shapes, optimize, upgraded
from converter.passes import widen
from converter.passes.integer import left_float
from converter.quantize import MODES, Mode, Options, Samples, calibration_data, integer_ends, run_steps
from converter.quantize.accuracy.evaluation import Accuracy, within
from converter.quantize.accuracy.sensitivity import Progress
from converter.quantize.calibration import stream
from converter.quantize.calibration.effort import multiply_adds
from converter.report import PERFECT, Report, measure
from lite_runtime import bundle
from lite_runtime._files import write_atomically
from lite_runtime.bundle.processing import KEY, ProcessingError, check, check_names
from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.explaining.bundles import SIGNATURE as EXPLAIN
from lite_runtime.graph import Array, Graph, StateUse, dtype_name
from lite_runtime.language.embedding.recipe import KEY as RECIPE

if TYPE_CHECKING:
    from converter.training import Prepared, Training

__all__ = ["FORMATS", "Conversion", "Format", "convert", "multiply_adds"]

Format = Literal["mslite", "onnx"]
FORMATS: tuple[Format, ...] = ("mslite", "onnx")


@dataclass(frozen=True)
class Conversion:
    """A finished file (a bundle, or an ONNX model if requested) and the report of its conversion."""

    bundle: bytes
    report: Report


def convert(
    source: frontends.Source,
    *,
    output: str | os.PathLike[str] | None = None,
    examples: Any = None,
    to: Format = "mslite",
    quantize: Mode | Options = "none",
    calibration: Any = None,
    accuracy: Accuracy | None = None,
    input_shapes: Shapes | None = None,
    trainable: Training | str | Sequence[str] | None = None,
    processing: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    integers: frontends.Integers | None = None,
    activations: Activations | None = None,
    context: int | None = None,
    cache: Cache | None = None,
    keep_w8: Sequence[str] | None = None,
    embedding: Embedding | None = None,
    explain: bool = False,
    explainable: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert `source` to a bundle, or to standard ONNX, written to `output` unless it is None.

    `source`: a path or bytes of a format in docs/sources.md (ONNX, TensorFlow Lite, ...), an ONNX model, or a model
    of PyTorch, scikit-learn, XGBoost, LightGBM or Keras. `examples`: inputs to record such an object with: for a
    PyTorch module tensors by input name, whose first dimension stays open; for a scikit-learn estimator rows, if
    its inputs are not one array of float32. `quantize`: a mode of `converter.quantize.MODES`, or `Options` for
    every setting. `calibration`: data of `converter.quantize.calibration_data`; int8 and int16x8 need it. Of a language
    model it is a text, as a path or as token ids; w8 and w4 then round by GPTQ and the report has perplexities.
    `accuracy`: how much of which metric may be lost; layers then keep the precision that this needs. `trainable`:
    makes a bundle that devices can train; globs of the initialisers to train, or `Training` for every setting.
    `processing`: the processing before and after the model in the gateway, see `lite_runtime.bundle.processing`.
    `state`: for each input that continues an output of the run before, the name of that output: the bundle keeps it
    between runs, zeros at first (.tflite files say so themselves). `integers`: how quantised operators of a .tflite
    file round, "exact" or "litert"; LiteRT's by default, except where the model is changed further (`to`, `quantize`,
    `trainable`). `activations`: what a language model's products with weights in blocks read, "int8" (blocks of 8-bit
    integers; by default) or "float32"; `context`: the most tokens of a text, by default the file's; `cache`: what keys
    and values are kept as, "int8" (by default where activations are), "float16" or "float32"; `keep_w8`: globs of
    products ("layer.0.down", "embedding") or their roles ("down") that get 8 bits in w4. `embedding`: makes a bundle
    that turns texts into vectors, of an encoder and its tokenizer. `explain`: also compare the quantised model with the
    float one layer by layer, on calibration rows (random inputs without any), and plan a run for its memory.
    `explainable`: add the signature `explain`, with gradients of the scores with respect to the inputs.
    Raises ConvertError for a broken source, UnsupportedOpError (a ConvertError) listing all operators that are missing,
    QuantizeError for options and data, TrainingError for parameters and losses, ProcessingError for a declaration.
    """
    options = _options(quantize, to)
    start = time.perf_counter()
    arithmetic, wanted = _integers(integers, to, options, trainable), _training(trainable)
    own = {"activations": activations, "context": context, "cache": cache, "keep_w8": keep_w8 and tuple(keep_w8)}
    given = {"to": to != "mslite", "input_shapes": input_shapes, "processing": processing, "state": state}
    settings = language.settings(options, own, wanted)
    loaded = declared(frontends.load(source, examples, integers=arithmetic, language=settings), embedding, context)
    language.check(loaded, options, own, given, wanted)
    loaded = language.calibrated(loaded, settings, calibration, accuracy, progress)
    models: Mapping[str, ir.Model] = {name: upgraded(model, input_shapes) for name, model in loaded.models.items()}
    loaded = embedded(loaded, models, options, {**given, "trainable": trainable})
    learning, described = _stateful(loaded, models, state), _described(loaded, models, processing, to)
    _need_plain(explainable, to, loaded, wanted, learning)
    report = _describe(source, loaded, models, options, _used(arithmetic, integers, loaded))
    _need_storable(loaded, models, widening=to != "onnx" or options.mode not in ("none", "fp16"), report=report)
    samples: Samples | None = None
    if wanted is not None:
        _need_bundle(to, loaded, accuracy, options, learning.state)
        models, learning = _trained(loaded, models, wanted, options, calibration, report)
    elif not loaded.language:
        samples = _prepared(models, options, learning, calibration, accuracy, report)
        more = _explaining(models) if explainable else {}
        models = {**_quantized(models, options, samples, accuracy, report, explain, progress), **more}
    if to == "onnx":
        data = _export(output, _only(models, options, to), options, report)
    else:
        data = _bundled(output, models, loaded, learning, described, options, report)
        if explain and not loaded.language:
            _measure_memory(data, samples, learning, report)
    report.bundle_bytes, report.seconds = len(data), time.perf_counter() - start
    return Conversion(data, report)


def _bundled(
    output: str | os.PathLike[str] | None,
    models: Mapping[str, ir.Model],
    loaded: frontends.Loaded,
    learning: _Learning,
    described: Mapping[str, Any],
    options: Options,
    report: Report,
) -> bytes:
    """The bundle, written and measured."""
    _fix_state(models, learning)
    described = {**quantization.metadata({s: quantization.ends(m) for s, m in models.items()}), **described}
    passes = REST if loaded.embedding is None else OF_TEXTS
    graphs = {name: _lower(model, options, report, passes) for name, model in models.items()}
    if learning.budget is not None:
        graphs["train_step"] = _within_budget(graphs["train_step"], learning, learning.budget, report)
    data = _write(output, graphs, models, learning, described, loaded, report)
    _measure(report, graphs.values())
    return data


def _need_storable(loaded: frontends.Loaded, models: Mapping[str, ir.Model], widening: bool, report: Report) -> None:
    """Refuse models that no bundle can hold. widening: then half precision becomes float32. A language model's graph
    was built for a bundle."""
    for model in () if loaded.language else models.values():
        need_storable(model)
        if widening and widen.needed(model):
            report.passes += optimize(model, WIDEN)


def _described(
    loaded: frontends.Loaded, models: Mapping[str, ir.Model], processing: Mapping[str, Any] | None, to: Format
) -> Mapping[str, Any]:
    """The bundle's metadata."""
    return loaded.metadata if processing is None else {**loaded.metadata, **_declared(processing, models, to)}


def _declared(processing: Mapping[str, Any], models: Mapping[str, ir.Model], to: Format) -> dict[str, Any]:
    """A validated processing declaration as metadata of the bundle."""
    if to != "mslite":
        raise ProcessingError(f"processing: only a bundle can contain one, got to={to!r}; omit one of the two")
    if "predict" not in models:
        raise ProcessingError(
            f"processing: it needs the signature 'predict', but the source has only {', '.join(models)}; omit it"
        )
    document, graph = check(processing), models["predict"].graph
    check_names(document, [v.name or "" for v in graph.inputs], [v.name or "" for v in graph.outputs])
    return {KEY: document}


def _variables(state: Mapping[str, str], models: Mapping[str, ir.Model]) -> frontends.Variables:
    """The state that the caller declares, by input and output. Raises ConvertError if they do not fit."""
    if len(models) != 1:
        raise ConvertError(f"state: expected a source of one signature, got {', '.join(models)}")
    ((signature, model),) = models.items()
    sides = [{v.name or "": v for v in values} for values in (model.graph.inputs, model.graph.outputs)]
    initial = {}
    for entry, result in state.items():
        for name, side, known in ((entry, "input", sides[0]), (result, "output", sides[1])):
            if name not in known:
                raise ConvertError(f"state: expected an {side} of {', '.join(known)}, got {name!r}")
        one, other = sides[0][entry], sides[1][result]
        shape = build.static_dims(one)
        if shape is None or one.dtype is None:
            raise ConvertError(f"state: input {entry!r} has shape {build.dims(one)}; fix its sizes with input_shapes")
        if one.dtype != other.dtype or (other.shape is not None and not agree(other.shape, ir.Shape(shape))):
            wanted, got = (f"{v.dtype}{list(build.dims(v) or ())}" for v in (one, other))
            raise ConvertError(f"state: input {entry!r} is {wanted}, output {result!r} is {got}; name equal ones")
        initial[entry] = np.zeros(shape, one.dtype.numpy())
        kept.describe(model.graph, entry, result, None)
    if len(set(state.values())) < len(state):
        raise ConvertError(f"state: expected a different output for each input, got {', '.join(state.values())}")
    use = StateUse({name: name for name in state}, {result: entry for entry, result in state.items()})
    return frontends.Variables({signature: use}, initial)


@dataclass(frozen=True)
class _Learning:
    """The models of a trainable bundle by signature, empty for other bundles; and the state of either kind."""

    models: Mapping[str, ir.Model] = field(default_factory=dict)
    uses: Mapping[str, StateUse] = field(default_factory=dict)
    state: Mapping[str, Array] = field(default_factory=dict)
    budget: int | None = None
    """Limit of a step's working memory in bytes."""
    batch: int = 1
    """The size used for open dimensions when working memory is measured."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the bundle says about its `train_step`."""


def _stateful(loaded: frontends.Loaded, models: Mapping[str, ir.Model], state: Mapping[str, str] | None) -> _Learning:
    """The state of the source, or that which the caller declares."""
    variables = _variables(state, models) if state else loaded.variables
    return _Learning(uses=variables.uses, state=variables.initial)


def _fix_state(models: Mapping[str, ir.Model], learning: _Learning) -> None:
    """Give the outputs that are state the shape that the state has: a bundle needs it exactly."""
    for name, use in learning.uses.items():
        for value in models[name].graph.outputs:
            if value.name is not None and value.name in use.writes:
                value.shape = ir.Shape(learning.state[use.writes[value.name]].shape)


def _need_bundle(
    to: Format, loaded: frontends.Loaded, accuracy: Accuracy | None, options: Options, state: Mapping[str, Array]
) -> None:
    """Refuse what does not go together with training; of language models `language.check` does."""
    if loaded.language:
        return
    if to != "mslite":
        raise TrainingError(f"trainable: only a bundle can be trainable, got to={to!r}; omit one of the two")
    if accuracy is not None:
        raise TrainingError("accuracy: a search over precisions cannot be combined with trainable; omit one of the two")
    if options.io != "float32":
        raise TrainingError(f"io: a trainable bundle has float32 inputs and outputs, got io={options.io!r}; omit it")
    if state:
        raise TrainingError(
            f"trainable: expected a source without variables, got {', '.join(state)}; a model that keeps state between "
            "runs cannot be trained on a device: omit trainable, or export the model without state"
        )


def _need_plain(
    explainable: bool, to: Format, loaded: frontends.Loaded, wanted: Training | None, learning: _Learning
) -> None:
    """Refuse what does not go together with the signature `explain`."""
    if not explainable:
        return
    for given, why in (
        (to != "mslite", f"only a bundle has signatures, got to={to!r}"),
        (bool(loaded.language or loaded.embedding), "a model of texts has no float32 input"),
        (wanted is not None, "trainable: the signature gradients has slopes of the inputs; state them there"),
        (bool(learning.uses), f"a model that keeps state ({', '.join(learning.state)}) is not explained by one run"),
    ):
        if given:
            raise TrainingError(f"explainable: {why}; omit one of the two")


def _explaining(models: Mapping[str, ir.Model]) -> dict[str, ir.Model]:
    """The signature `explain` of the model that predicts."""
    from converter.explaining import explaining

    if "predict" not in models:
        raise TrainingError(f"explainable: expected a signature 'predict', got {', '.join(models)}")
    return {EXPLAIN: explaining(models["predict"])}


def _training(trainable: Training | str | Sequence[str] | None) -> Training | None:
    from converter import training

    return trainable if trainable is None or isinstance(trainable, training.Training) else training.Training(trainable)


def _trained(
    loaded: frontends.Loaded,
    models: Mapping[str, ir.Model],
    wanted: Training,
    options: Options,
    calibration: Any,
    report: Report,
) -> tuple[Mapping[str, ir.Model], _Learning]:
    """All models of a bundle that learns: of a language model those that serve too."""
    if loaded.trained is not None:
        learning = _learn_adapters(upgraded(loaded.trained), wanted, report)
        return {**models, **learning.models}, learning
    learning = _learn(_only(models, options, "a trainable bundle"), wanted, options, calibration, report)
    return learning.models, learning


def _learn_adapters(model: ir.Model, wanted: Training, report: Report) -> _Learning:
    """Build the signatures that train the adapters of a language model; others serve."""
    from converter import training

    prepared = training.prepare(model, training.of_adapters(wanted))
    report.passes += optimize(model, PREPARE)
    return _signed(prepared, wanted, report)


def _learn(model: ir.Model, wanted: Training, options: Options, calibration: Any, report: Report) -> _Learning:
    """Prepare the model, quantise its frozen part, and build the signatures."""
    from converter import training
    from converter.training.backbone import quantize_backbone

    prepared = training.prepare(model, wanted)
    report.passes += optimize(model, PREPARE)
    if options.mode not in ("none", "fp16"):
        report.passes += quantize_backbone(prepared, options, calibration, report)
    return _signed(prepared, wanted, report)


def _signed(prepared: Prepared, wanted: Training, report: Report) -> _Learning:
    from converter import training

    signed = training.sign(prepared)
    report.training = training.describe(signed, prepared)
    said = training.step_settings(wanted)
    return _Learning(signed.models, signed.uses, signed.state, wanted.arena_budget, wanted.arena_batch, said)


def _within_budget(graph: Graph, learning: _Learning, budget: int, report: Report) -> Graph:
    from converter.training.recompute import fit

    use = learning.uses["train_step"]
    found = fit(graph, "loss", learning.state, use, budget, learning.batch)
    arena = {"budget": budget, "before": found.before, "after": found.after, "nodes": found.nodes}
    report.training = {**report.training, "arena": arena}
    return found.graph


EXPLAINED_ROWS = 16
"""The calibration rows used to compare layers."""


def _prepared(
    models: Mapping[str, ir.Model],
    options: Options,
    learning: _Learning,
    calibration: Any,
    accuracy: Accuracy | None,
    report: Report,
) -> Samples | None:
    """Simplify the models; the rows to calibrate on, if these are needed and given."""
    for model in models.values():
        report.passes += optimize(model, PREPARE)
    if options.mode in ("none", "fp16") or calibration is None:
        return None
    return _samples(calibration, _only(models, options), learning, accuracy)


def _quantized(
    models: Mapping[str, ir.Model],
    options: Options,
    samples: Samples | None,
    accuracy: Accuracy | None,
    report: Report,
    explain: bool,
    progress: Progress | None,
) -> Mapping[str, ir.Model]:
    if options.mode in ("none", "fp16"):
        return models
    model = _quantize(_only(models, options), options, samples, accuracy, report, explain, progress)
    return dict.fromkeys(models, model)


def _quantize(
    model: ir.Model,
    options: Options,
    samples: Samples | None,
    accuracy: Accuracy | None,
    report: Report,
    explain: bool,
    progress: Progress | None,
) -> ir.Model:
    if not model.graph.outputs:
        raise QuantizeError("expected a model with outputs, whose error quantising keeps small, got none")
    if options.static:
        report.passes += optimize(model, STATIC)
    before = model.clone() if explain else None
    if accuracy is None:
        state = run_steps(model, options, samples, progress)
        record, before = state.record, state.reference or before
    else:
        found = within(model, options, samples, accuracy, progress)
        model, record, before = found.variant.model, found.variant.record, found.reference
        report.budget = {
            "metric": accuracy.metric, "float": found.base, "score": found.score, "drop": found.drop,
            "limit": found.limit, "gain": found.gain, "trials": found.trials,
        }  # fmt: skip
        report.sensitivity = [
            {"node": s.name, "op": s.op, "loss": s.drop, "snr": min(s.snr, PERFECT)} for s in found.ranking
        ]
    report.quantization = record
    if explain and before is not None:
        try:
            rows = samples.first(EXPLAINED_ROWS).rows if samples else [golden.sample_inputs(lower(before))]
            report.layers, report.outputs = measure(before, model, record, rows)
        except MsedgeError as error:
            report.left_out.append(f"comparison layer by layer: {_failed(error, samples)}")
    if options.io == "int8":
        integer_ends(model)
    return model


def _samples(calibration: Any, model: ir.Model, learning: _Learning, accuracy: Accuracy | None) -> Samples:
    """Calibration rows; those of a model with state are the steps of one stream."""
    if not learning.uses:
        return calibration_data(calibration, model)
    if accuracy is not None and accuracy.data is not None:
        raise QuantizeError(
            f"accuracy: a model that keeps state ({', '.join(learning.state)}) is measured on the calibration data, "
            "whose rows are the steps of a stream; omit the evaluation data"
        )
    return stream.load(calibration, model, next(iter(learning.uses.values())), learning.state)


def _integers(
    wanted: frontends.Integers | None, to: Format, options: Options, trainable: Training | str | Sequence[str] | None
) -> frontends.Integers:
    """The arithmetic of a .tflite file's quantised operators. LiteRT's is in operators of ours, which standard ONNX,
    quantisers and gradients do not have."""
    changes = [name for name, given in (
        (f"to={to!r}", to != "mslite"), (f"quantize={options.mode!r}", options.mode not in ("none", "fp16")),
        ("trainable", trainable is not None),
    ) if given]  # fmt: skip
    if wanted is None:
        return "exact" if changes else "litert"
    if wanted not in ("exact", "litert"):
        raise ConvertError(f"integers: expected exact or litert, got {wanted!r}")
    if wanted == "litert" and changes:
        raise ConvertError(f"integers: expected exact with {', '.join(changes)}, got litert; omit one of them")
    return wanted


def _options(quantize: Mode | Options, to: Format) -> Options:
    """The quantiser's settings. Raises ConvertError for a format, and QuantizeError for a mode, that there is not."""
    if to not in FORMATS:
        raise ConvertError(f"expected to be one of {', '.join(FORMATS)}, got {to!r}")
    if isinstance(quantize, Options):
        return quantize
    if quantize not in MODES:
        raise ConvertError(f"expected quantize to be one of {', '.join(MODES)}, got {quantize!r}")
    return Options(mode=quantize)


def _only(models: Mapping[str, ir.Model], options: Options, to: str = "") -> ir.Model:
    """The only model of the source. Raises ConvertError if there are several."""
    if len(models) != 1:
        what = f"writing {to}" if to else f"quantising to {options.mode}"
        raise ConvertError(f"{what} needs a source of one signature, got {', '.join(models)}; convert them one by one")
    return next(iter(models.values()))


def _used(
    arithmetic: frontends.Integers, asked: frontends.Integers | None, loaded: frontends.Loaded
) -> frontends.Integers:
    """The arithmetic of the source's integer operators. Raises ConvertError if one was asked for without effect."""
    if loaded.format == frontends.TFLITE:
        return arithmetic
    if asked is not None:
        raise ConvertError(f"integers: it chooses how a .tflite file's operators round, got {loaded.format}; omit it")
    return "exact"


def _export(output: str | os.PathLike[str] | None, model: ir.Model, options: Options, report: Report) -> bytes:
    report.passes += optimize(model, PLAIN)
    data = export.onnx_bytes(model, halve=options.mode == "fp16")
    if output is not None:
        write_atomically(output, data, ConvertError)
    return data


def _lower(model: ir.Model, options: Options, report: Report, passes: Sequence[Pass]) -> Graph:
    report.passes += optimize(model, passes)
    report.left_float = [*report.left_float, *((left.name, left.op, left.reason) for left in left_float(model))]
    report.by_reference = [*report.by_reference, *_without_kernels(model)]
    halved = halve_weights(pack_narrow(lower(model)), lossless=options.mode != "fp16")
    report.halved += halved.stored
    report.kept_float32 += halved.overflowed
    return gate_products(in_panels(narrow_products(halved.graph)))


def _without_kernels(model: ir.Model) -> Iterator[tuple[str, str, str]]:
    """(node, operator, source location) of every node without a native kernel."""
    native = _native_ops()
    for node in build.nodes(model):
        op = lite_op(node)
        if op is not None and op not in native and op != "Constant":
            yield node.name or "", op, build.source_of(node)


def _measure_memory(data: bytes, samples: Samples | None, learning: _Learning, report: Report) -> None:
    """Working memory of "predict" and of the training signatures."""
    report.arena_bytes = _arena(data, samples, report)
    if not learning.models:
        return
    from converter.training.memory import working_memory

    found = {name: working_memory(data, name, learning.batch) for name in learning.models if name != "predict"}
    report.training = {**report.training, "arena_bytes": found, "batch": learning.batch}


def _write(
    output: str | os.PathLike[str] | None,
    graphs: Mapping[str, Graph],
    models: Mapping[str, ir.Model],
    learning: _Learning,
    described: Mapping[str, Any],
    loaded: frontends.Loaded,
    report: Report,
) -> bytes:
    examples = {}
    for name, graph in graphs.items():
        if (learning.models or loaded.language) and name != "predict":
            continue
        if loaded.language:
            example, report.golden = _spoken(graph, loaded)
        else:
            example, report.golden = golden.sample(_at_first(graph, learning, name), multiply_adds(models[name]))
        if example is not None:
            examples[name] = example
    try:
        data = bundle.write(
            None, graphs, state=learning.state, uses=learning.uses,
            provenance=_provenance(report), metadata={**described, **learning.metadata}, golden=examples,
            extra=loaded.sections,
        )  # fmt: skip
    except BundleError as error:
        raise ConvertError(f"the converted model is not a valid bundle: {error}; this is a bug in msedge") from error
    if output is not None:
        write_atomically(output, data, ConvertError)
    return data


def _spoken(graph: Graph, loaded: frontends.Loaded) -> tuple[golden.Sample | None, str]:
    """The golden sample of a language model, as `golden.sample` gives it."""
    refused = golden_text.refusal(graph)
    if refused:
        return None, refused
    return golden.of_text(graph, golden_text.inputs(graph, loaded.decoder, loaded.metadata[LANGUAGE]["context"]))


def _at_first(graph: Graph, learning: _Learning, signature: str) -> Graph:
    """The graph with its state replaced by constants, the initial values, and without new values of state."""
    use = learning.uses.get(signature)
    if use is None:
        return graph
    inputs, outputs = use.seen(graph)
    held = {name: learning.state[state] for name, state in use.reads.items()}
    return graph.replace(inputs=inputs, outputs=outputs, constants={**graph.constants, **held})


def _describe(
    source: frontends.Source,
    loaded: frontends.Loaded,
    models: Mapping[str, ir.Model],
    options: Options,
    integers: frontends.Integers,
) -> Report:
    digest, size = _identified(source, models)
    first = next(iter(models.values()))
    return Report(
        source=os.path.basename(os.fspath(source)) if isinstance(source, str | os.PathLike) else type(source).__name__,
        source_format=loaded.format,
        source_digest=digest,
        source_bytes=size + sum(_external_bytes(g) for m in models.values() for g in build.graphs(m)),
        source_opset=first.graph.meta.get("msedge.source_opset", 0),
        quantize=options.mode,
        integers=integers,
        language=loaded.language,
        embedding=loaded.metadata.get(RECIPE, {}),
        options=asdict(options) if options.mode != "none" else {"mode": "none"},
        ops_before=_count(node.op_type for model in models.values() for node in build.nodes(model)),
    )


def _identified(source: frontends.Source, models: Mapping[str, ir.Model]) -> tuple[str, int]:
    """The digest and the number of bytes of what identifies the source: a file, a folder's files, or an object as
    ONNX."""
    digest, size = hashlib.blake2b(digest_size=32), 0
    for part in _parts(source, models):
        digest.update(part)
        size += len(part)
    return digest.hexdigest(), size


def _parts(source: frontends.Source, models: Mapping[str, ir.Model]) -> Iterator[bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        yield bytes(source)
    elif isinstance(source, onnx.ModelProto):
        yield source.SerializeToString(deterministic=True)
    elif isinstance(source, str | os.PathLike):
        files = sorted(p for p in Path(source).rglob("*") if p.is_file()) if os.path.isdir(source) else [Path(source)]
        for file in files:
            yield from frontends.pieces(file)
    else:
        for model in [source] if isinstance(source, ir.Model) else models.values():
            yield ir.serde.serialize_model(model).SerializeToString(deterministic=True)


def _external_bytes(graph: ir.Graph) -> int:
    tensors = (v.const_value for v in graph.initializers.values())
    return sum(t.nbytes for t in tensors if isinstance(t, ir.ExternalTensor))


def _count(ops: Any) -> dict[str, int]:
    return dict(sorted(Counter(ops).items()))


def _provenance(report: Report) -> dict[str, Any]:
    return {
        "source": report.source,
        "source_digest": report.source_digest,
        "source_opset": report.source_opset,
        "converter": _version(),
        "integers": report.integers,
        "options": report.options,
    } | ({"calibration_digest": done.digest} if (done := report.quantization) is not None and done.digest else {})


def _version() -> str:
    try:
        return metadata.version("msedge")
    except metadata.PackageNotFoundError:
        return "unknown"


def _measure(report: Report, graphs: Iterable[Graph]) -> None:
    native, ops, sizes = _native_ops(), Counter[str](), Counter[str]()
    arrays: dict[bytes, Array] = {}
    for graph in graphs:
        ops.update(node.op for node in graph.walk())
        arrays.update((_key(array), array) for array in graph.constants.values())
    for array in arrays.values():
        sizes[str(array.dtype)] += array.nbytes
    report.weight_bytes, report.ops_after = dict(sorted(sizes.items())), dict(sorted(ops.items()))
    report.reference_ops = {op: count for op, count in report.ops_after.items() if op not in native}
    report.reference = sum(report.reference_ops.values())
    report.native = ops.total() - report.reference


def _key(array: Array) -> bytes:
    """A key that is equal for equal contents, which a bundle stores once."""
    contents = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return hashlib.blake2b(contents, digest_size=16, person=array.dtype.str.encode()[:16]).digest()


def _failed(error: MsedgeError, samples: Samples | None) -> str:
    """Why a run for the report failed. Without calibration data its inputs are random, and open sizes are 1."""
    if samples is not None:
        return str(error)
    return f"the model does not run on random inputs whose open sizes are 1 ({error}); give calibration data"


def _arena(data: bytes, samples: Samples | None, report: Report) -> int:
    """Working memory of "predict" on the first calibration row, or on random inputs; 0 if it does not run on them."""
    from lite_runtime import load

    model = load(data)
    if "predict" not in model.signatures:
        return 0
    graph = model.bundle.at_first("predict")
    row = samples.rows[0] if samples else {}
    fitting = all(v.name in row and dtype_name(row[v.name].dtype) == v.dtype for v in graph.inputs)
    try:
        inputs = {v.name: row[v.name] for v in graph.inputs} if fitting else golden.sample_inputs(graph)
        return model.cost(inputs).arena_bytes
    except MsedgeError as error:
        report.left_out.append(f"working memory: {_failed(error, samples)}")
        return 0


def _native_ops() -> frozenset[str]:
    from lite_runtime import ops  # noqa: F401
    from lite_runtime.ops.registry import BINDS

    return frozenset(BINDS)
