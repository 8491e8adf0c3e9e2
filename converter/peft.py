"""Adapters in the form of the library peft: a folder with adapter_config.json and adapter_model.safetensors.

    adapter = from_peft("folder", bundle)     to an adapter of a bundle
    to_peft(adapter, bundle, "folder")        and back

peft computes x W + alpha / r * (x A^T) B^T, with rslora alpha / sqrt(r); A is [r, inputs] and B [outputs, r]. A bundle
has a factor of its own, so B is scaled by the quotient of the two. The rows of B for queries and keys are in the order
of safetensors files; bundles of GGUF files may have another one, in which the features of a pair are neighbours.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from converter.errors import ConvertError
from converter.frontends.decoders import CONFIG_NAMES
from converter.frontends.safetensors.config import Config
from converter.frontends.safetensors.folder import json_of
from converter.frontends.safetensors.reader import read
from converter.frontends.safetensors.writer import write
from lite_runtime._files import write_atomically
from lite_runtime.bundle import Bundle
from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.language.adapters import Adapter, Layout, Target, layout

__all__ = ["CONFIG", "WEIGHTS", "from_peft", "to_peft"]

CONFIG, WEIGHTS, _PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_LAYER = "model.layers.{i}."
_ROLES = {name.removeprefix(_LAYER): role for role, name in CONFIG_NAMES.items() if name.endswith("_proj")}
"""What peft names a product of a layer -> its role."""
_NAME = re.compile(r"base_model\.model\.(?:model\.)?layers\.(\d{1,4})\.([\w.]+)\.lora_([AB])(?:\.default)?\.weight")
_PLAIN = re.compile(r"[\w.]+")
_CHANGES = (
    "use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "alora_invocation_tokens", "modules_to_save",
    "trainable_token_indices", "arrow_config", "kasa_config", "use_bdlora", "monteclora_config", "velora_config",
    "megatron_config", "target_parameters", "layer_replication",
)  # fmt: skip
"""Settings with which an adapter is more, or something else, than A and B beside products."""
_STARTS = ("gaussian", "eva", "orthogonal")
"""Ways to begin, as texts, that leave the model's weights alone; others (pissa, olora, loftq) change them."""


def from_peft(folder: str | os.PathLike[str], base: Bundle) -> Adapter:
    """The adapter in a folder, for a bundle. Products of the bundle for which the folder has none stay unchanged.

    Raises ConvertError for a folder that is damaged, that holds more than low-rank adapters, or that belongs to another
    model or needs products or ranks that the bundle has no adapters for; InputError for a bundle that takes none."""
    place = Path(folder)
    settings, places = Config(json_of(place / CONFIG), CONFIG), _places(base)
    _check(settings)
    if not (place / WEIGHTS).is_file():
        instead = ", whose weights are a pickle, which can run code: save it again in peft with safe_serialization=True"
        raise ConvertError(f"{place}: expected {WEIGHTS}, got none{instead if (place / _PICKLED).is_file() else ''}")
    found = _pairs(place / WEIGHTS)
    known = {target.name: target for target in places.targets}
    if left := sorted(found.keys() - known.keys()):
        roles = _all(found, known)
        again = f"convert the model again with --lora {places.rank}:{','.join(roles)}"
        fix = "it belongs to another model" if set(roles) == set(_all(known)) else again
        raise ConvertError(
            f"{place}: it has adapters of {', '.join(_all(left))}, e.g. {left[0]}, and the bundle takes them for "
            f"{', '.join(_all(known))} of some layers; {fix}"
        )
    arrays: dict[str, Array] = {}
    for name, target in known.items():
        a, b = _fitting(found[name], target, places.rank) if name in found else _nothing(target)
        if name in found:
            b = b * np.float32(_scale(settings, name, b.shape[1]) / places.factor)
            b = _turned(b, target, base, inverse=False)
        arrays[f"{name}.lora_a"], arrays[f"{name}.lora_b"] = (np.ascontiguousarray(m.T, np.float32) for m in (a, b))
    made = Adapter(arrays, base.digest)
    _finite(made, base)
    return made


def to_peft(adapter: Adapter, base: Bundle, folder: str | os.PathLike[str]) -> Path:
    """Write an adapter of a bundle as a folder that peft reads; the folder. Ranks are filled up with zeros to the
    highest one. Raises InputError for an adapter that is not of this bundle, ConvertError for a folder that cannot be
    written."""
    places, place = _places(base), Path(folder)
    if adapter.model != base.digest:
        raise InputError(f"expected an adapter of this bundle, {base.digest[:16]}…, got one of {adapter.model[:16]}…")
    _finite(adapter, base)
    rank = max(a.shape[1] for name, a in adapter.arrays.items() if name.endswith(".lora_a"))
    names = {role: name for name, role in _ROLES.items()}
    tensors: dict[str, Array] = {}
    for target in places.targets:
        _, i, role = target.name.split(".")
        a, b = (adapter.arrays[f"{target.name}.lora_{part}"].T for part in "ab")
        b = _turned(b, target, base, inverse=True) * np.float32(places.factor)
        begin, more = f"base_model.model.{_LAYER.format(i=i)}{names[role]}", rank - len(a)
        tensors[f"{begin}.lora_A.weight"] = np.pad(a, ((0, more), (0, 0)))
        tensors[f"{begin}.lora_B.weight"] = np.pad(b, ((0, 0), (0, more)))
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
        "base_model_name_or_path": str(base.metadata["language"].get("name") or ""),
        "target_modules": sorted({names[role].rpartition(".")[2] for role in _all(t.name for t in places.targets)}),
    }  # fmt: skip
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConvertError(f"cannot make the folder {place}: {error.strerror or error}; choose another") from None
    write(place / WEIGHTS, {name: np.asarray(array, np.float32) for name, array in tensors.items()})
    write_atomically(place / CONFIG, json.dumps(settings, indent=2).encode(), ConvertError)
    return place


def _places(base: Bundle) -> Layout:
    about = base.metadata.get("language")
    places = layout(about) if isinstance(about, Mapping) else None
    if places is None:
        raise InputError("this bundle takes no adapters; convert the language model with adapters (--lora)")
    return places


def _check(settings: Config) -> None:
    """Raise ConvertError for settings that mean something else than A and B beside products."""
    if settings.text("peft_type") != "LORA":
        raise _unsupported("peft_type", "LORA", settings.values.get("peft_type"))
    for name in _CHANGES:
        if settings.values.get(name):
            raise _unsupported(name, "none of it", settings.values[name])
    start = settings.values.get("init_lora_weights")
    if isinstance(start, str) and start not in _STARTS:
        raise _unsupported("init_lora_weights", "one that leaves the model's weights as they are", start)
    if settings.text("bias") not in (None, "none"):
        raise _unsupported("bias", "none", settings.values["bias"])


def _unsupported(name: str, wanted: str, got: object) -> ConvertError:
    """What adapter_config.json says, and what is read."""
    return ConvertError(
        f"{CONFIG}, {name}: expected {wanted}, got {str(got)[:80]!r}; only low-rank matrices beside products are read: "
        "merge the adapter into its model in peft, and convert that"
    )


def _pairs(path: Path) -> dict[str, tuple[Array, Array]]:
    """A [rank, inputs] and B [outputs, rank] of each product, by its name in bundles, float32."""
    halves: dict[str, dict[str, Array]] = {}
    for name, tensor in read(path).items():
        match = _NAME.fullmatch(name)
        role = None if match is None else _ROLES.get(match[2])
        if match is None or role is None:
            raise ConvertError(f"{path.name}: expected lora_A and lora_B of {', '.join(_ROLES)}, got {name[:120]!r}")
        if tensor.stored not in ("F32", "F16", "BF16", "F64") or tensor.array.ndim != 2:
            got = f"{tensor.stored} {list(tensor.array.shape)}"
            raise ConvertError(f"{path.name}, {name!r}: expected a matrix of floats, got {got}")
        with np.errstate(over="ignore"):
            halves.setdefault(f"layer.{int(match[1])}.{role}", {})[match[3]] = tensor.array.astype(np.float32)
    for name, both in halves.items():
        if len(both) < 2:
            raise ConvertError(f"{path.name}: expected lora_A and lora_B of {name}, got lora_{next(iter(both))} alone")
    if not halves:
        raise ConvertError(f"{path.name}: expected lora_A and lora_B of products, got no tensors")
    return {name: (both["A"], both["B"]) for name, both in halves.items()}


def _fitting(pair: tuple[Array, Array], target: Target, most: int) -> tuple[Array, Array]:
    """A pair whose shapes are those of the bundle. Raises ConvertError for others."""
    (a, b), own = pair, len(pair[0])
    if (a.shape, b.shape) != ((own, target.inputs), (target.outputs, own)) or not own:
        raise ConvertError(
            f"adapter of {target.name!r}: expected [rank, {target.inputs}] and [{target.outputs}, rank], got "
            f"{list(a.shape)} and {list(b.shape)}: it belongs to another model"
        )
    if own > most:
        raise ConvertError(
            f"adapter of {target.name!r}: expected a rank of at most {most}, as the bundle has, got {own}; convert the "
            f"model again with --lora {own}"
        )
    return a, b


def _nothing(target: Target) -> tuple[Array, Array]:
    """A pair that changes nothing."""
    return np.zeros((1, target.inputs), np.float32), np.zeros((target.outputs, 1), np.float32)


def _scale(settings: Config, name: str, rank: int) -> float:
    """What peft multiplies a product's B A by. alpha_pattern has values of its own for some products."""
    alpha = settings.values.get("lora_alpha", 8)
    patterns = settings.values.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping) or not all(isinstance(k, str) and _PLAIN.fullmatch(k) for k in patterns):
        raise _unsupported("alpha_pattern", "names of products, or their ends", patterns)
    _, i, role = name.split(".")
    full = f"{_LAYER.format(i=i)}{next(name for name, known in _ROLES.items() if known == role)}"
    for pattern, own in patterns.items():
        if f".{full}".endswith(f".{pattern}"):
            alpha = own
            break
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise _unsupported("lora_alpha", "a number", alpha)
    return float(alpha) / (math.sqrt(rank) if settings.flag("use_rslora", False) else rank)


def _turned(b: Array, target: Target, base: Bundle, *, inverse: bool) -> Array:
    """B [outputs, rank] of a query or key with the rows of each head in the bundle's order."""
    role = target.name.rpartition(".")[2]
    interleaved = any(
        node.op == "PagedAttention" and node.attrs.get("rotary_interleaved")
        for node in base.signatures["predict"].nodes
    )
    if role not in ("query", "key") or not interleaved:
        return b
    heads = base.metadata["language"]["heads" if role == "query" else "kv_heads"]
    if type(heads) is not int or heads < 1 or target.outputs % (2 * heads):
        raise ConvertError(f"adapter of {target.name!r}: expected heads of pairs; the bundle's description is damaged")
    halves = (-1, 2) if inverse else (2, -1)
    made: Array = b.reshape(heads, *halves, b.shape[1]).swapaxes(1, 2).reshape(b.shape)
    return made


def _finite(adapter: Adapter, base: Bundle) -> None:
    """Raises InputError for an adapter that a model with this bundle would refuse."""
    adapter.flat(base.metadata["language"])


def _all(*names: Iterable[str]) -> list[str]:
    """The roles of products, each once."""
    return list(dict.fromkeys(name.rpartition(".")[2] for group in names for name in group))
