"""Adapters in the files of PEFT: adapter_model.safetensors, and the settings in adapter_config.json."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from ortpartial.exceptions import ModelError
from ortpartial.model import Adapter, Target, read_regular, read_tensors, write_files, write_tensors
from ortpartial.texts import parse_json

from .dora import check
from .peft_modules import PeftModule, collect_modules, distribute
from .peft_names import find_places
from .products import Product

__all__ = ["read_peft", "write_peft"]

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"

#: PEFT's prefix of the name of a module.
_PREFIX = "base_model.model."

#: The name of a tensor without it: the module, and the role in it.
_TENSOR = re.compile(r"(?P<module>.+)\.(?P<role>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|"
                     r"ia3_l)(\.default)?(\.weight)?")

#: By role, the suffix of the module in the name of a tensor.
_ROLES = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight", "magnitude": "lora_magnitude_vector", "ia3_l": "ia3_l"}

#: The same for an embedding.
_TABLE_ROLES = _ROLES | {"lora_A": "lora_embedding_A", "lora_B": "lora_embedding_B"}

#: Settings of PEFT 0.21.2 that are read here, or that change the training and not the function of an adapter.
_SETTINGS = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "eva_config", "exclude_modules",
    "fan_in_fan_out", "feedforward_modules", "inference_mode", "init_ia3_weights", "init_lora_weights",
    "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "runtime_config", "target_modules", "task_type", "use_dora", "use_rslora", "velora_config"})

#: First weights that leave the base as it is; others, such as "pissa", take them out of the base's weights.
_FIRST_WEIGHTS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")


def read_peft(path: str | os.PathLike[str], products: Sequence[Product]) -> tuple[Adapter, dict[str, np.ndarray]]:
    """Read an adapter that PEFT has written, for a model.

    Which modules it has follows from its weights, whatever pattern its settings chose them by.

    Parameters
    ----------
    path : path
        The folder, or a safetensors file.
    products : sequence of Product
        The products of the model.

    Returns
    -------
    adapter : Adapter
        Its record: each target has the rank and the scale of the file, and the name that its module has there.
    arrays : dict of str to numpy.ndarray
        Its weights, in the shapes and dtypes that the model takes.

    Raises
    ------
    ModelError
        The files are none of PEFT, use unsupported settings, or are for another model.
    SettingError
        DoRA is on a product that it cannot be added to here.
    OSError
        They cannot be read.
    """
    config, tensors = _read_files(Path(path))
    method = _read_method(config, path)
    modules = _group(tensors, config, path)
    places = find_places([module.name for module in modules], products)
    targets: list[Target] = []
    arrays: dict[str, np.ndarray] = {}
    for module in modules:
        for product, part, weights in distribute(module, places[module.name]):
            if method == "dora":
                check(product)
            names = {role: f"{part.name}.{_ROLES[role]}" for role in weights}
            dtype = helper.tensor_dtype_to_np_dtype(product.dtype)
            arrays |= {names[role]: np.ascontiguousarray(a, dtype) for role, a in weights.items()}
            targets.append(Target(part.name, product.node_name, product.node.op_type, product.weight, product.inputs,
                                  product.outputs, part.start, part.stop, module.scale, module.feedforward, names,
                                  module.name))
    rank = 0 if method == "ia3" else int(config.get("r", 8))
    alpha = float(config.get("lora_alpha", 8)) if rank else 1.0
    if config.get("use_rslora"):
        alpha *= math.sqrt(rank)
    return Adapter(method, rank, alpha, float(config.get("lora_dropout", 0)), tuple(targets)), arrays


def _read_files(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The settings and the tensors."""
    if path.is_dir() and not (path / _WEIGHTS).exists():
        pickled = "; let PEFT write safetensors, not adapter_model.bin" if (path / "adapter_model.bin").exists() else ""
        raise ModelError(f"{str(path)!r} holds no adapter of PEFT: it has no {_WEIGHTS}{pickled}.")
    file = path / _WEIGHTS if path.is_dir() else path
    tensors, texts = read_tensors(file)
    beside = file.with_name(_CONFIG)
    if _CONFIG not in texts and not beside.exists():
        raise ModelError(f"{str(file)!r} has no settings: put PEFT's {_CONFIG} beside it.")
    try:
        config = parse_json(texts[_CONFIG] if _CONFIG in texts else read_regular(beside))
        return dict(config), tensors
    except (TypeError, ValueError):
        raise ModelError(f"{str(beside)!r} is damaged: it is no JSON of settings.") from None


def _read_method(config: Mapping[str, object], path: str | os.PathLike[str]) -> str:
    """The method of an adapter; a setting that is not supported is an error."""
    kind = str(config.get("peft_type")).upper()
    if kind not in ("LORA", "IA3"):
        raise ModelError(f"{str(path)!r} is an adapter of PEFT's type {kind}; LORA and IA3 are supported.")
    first = config.get("init_lora_weights")
    if first not in _FIRST_WEIGHTS:
        raise ModelError(f"{str(path)!r} has changed the weights of the base, by init_lora_weights={first!r}; let PEFT "
                         f"convert it, by save_pretrained(..., path_initial_model_for_weight_conversion=...).")
    unsupported = [n for n, v in config.items() if v and v != "none" and (n not in _SETTINGS or n == "bias")]
    if unsupported:
        name = unsupported[0]
        raise ModelError(f"{str(path)!r} sets {name}={config[name]!r}, which is not supported; train the adapter "
                         f"without it, or merge it by PEFT.")
    if kind == "IA3":
        return "ia3"
    _check_numbers(config, path)
    return "dora" if config.get("use_dora") else "lora"


def _check_numbers(config: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Refuse settings of LoRA that are no numbers."""
    rank = config.get("r", 8)
    if not (isinstance(rank, int) and rank >= 1):
        raise ModelError(f"{str(path)!r} has r={rank!r}; the rank of an adapter is a whole number, at least 1.")
    patterns = config.get("alpha_pattern") or {}
    alphas = patterns.values() if isinstance(patterns, dict) else [None]
    for name, numbers in {"lora_alpha": [config.get("lora_alpha", 8)], "alpha_pattern": alphas,
                          "lora_dropout": [config.get("lora_dropout", 0)]}.items():
        if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
            raise ModelError(f"{str(path)!r} has {name}={config[name]!r}, where a number was expected.")


def _group(tensors: Mapping[str, np.ndarray], config: Mapping[str, object],
           path: str | os.PathLike[str]) -> list[PeftModule]:
    """The tensors of a file by module."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    for key in sorted(tensors):
        match = _TENSOR.fullmatch(key.removeprefix(_PREFIX))
        if match is not None:
            role = match["role"].replace("lora_embedding", "lora").replace("lora_magnitude_vector", "magnitude")
            groups.setdefault(match["module"], {})[role] = tensors[key]
        elif not key.endswith(".base_layer.weight"):  # PEFT 0.21.2 adds embeddings, as they were.
            raise ModelError(f"{str(path)!r} holds {key!r}, which is no weight of LoRA or IA3: modules that are "
                             f"trained as a whole and resized vocabularies are not supported.")
    if not groups:
        raise ModelError(f"{str(path)!r} holds no weight of an adapter.")
    return [_make_module(name, arrays, config, path) for name, arrays in groups.items()]


def _make_module(name: str, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any],
                 path: str | os.PathLike[str]) -> PeftModule:
    """A module whose weights are complete, with the scale or the place that the settings say."""
    roles = ["ia3_l"] if config["peft_type"].upper() == "IA3" else ["lora_A", "lora_B"]
    if config.get("use_dora"):
        roles.append("magnitude")
    if missing := [role for role in roles if role not in arrays]:
        raise ModelError(f"{str(path)!r} is damaged: {name!r} has no {missing[0]}.")
    arrays = {role: arrays[role] for role in roles}
    if "ia3_l" in arrays:
        feedforward = _is_feedforward(name, config.get("feedforward_modules") or ())
        return PeftModule(name, feedforward=feedforward, arrays=arrays)
    a, b = arrays["lora_A"], arrays["lora_B"]
    if a.ndim < 2 or b.ndim < 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        raise ModelError(f"{str(path)!r} is damaged: A and B of {name!r} have shapes {a.shape} and {b.shape}, and no "
                         f"rank of at least 1 in common.")
    return PeftModule(name, _find_scale(name, len(a), config), arrays=arrays)


def _is_feedforward(module: str, patterns: str | Sequence[str]) -> bool:
    """Whether IA3 scales the input of a module, by the rule of PEFT 0.21.2."""
    if isinstance(patterns, str):
        return re.fullmatch(patterns, module) is not None
    return module.endswith(tuple(patterns))


def _find_scale(module: str, rank: int, config: Mapping[str, Any]) -> float:
    """The factor of the product of a module, by the rule of PEFT 0.21.2."""
    patterns = config.get("alpha_pattern") or {}
    key = next((k for k in patterns if re.match(rf"(.*\.)?({k})$", module)), None)
    alpha = config.get("lora_alpha", 8) if key is None else patterns[key]
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def write_peft(adapter: Adapter, arrays: Mapping[str, np.ndarray], path: str | os.PathLike[str],
               products: Sequence[Product]) -> None:
    """Write an adapter in the files of PEFT.

    Parameters
    ----------
    adapter : Adapter
        Its record.
    arrays : dict of str to numpy.ndarray
        Its weights.
    path : path
        A folder, which gets both files of PEFT, or a safetensors file, which has the settings within.
    products : sequence of Product
        The products of the model that holds it.

    Raises
    ------
    ModelError
        PEFT has a single module where the adapter has targets that it cannot have.
    OSError
        The files cannot be written.
    """
    modules = collect_modules(adapter, arrays, products)
    tensors = {f"{_PREFIX}{module.name}.{(_TABLE_ROLES if module.is_table else _ROLES)[role]}": a
               for module in modules for role, a in module.arrays.items()}
    text = json.dumps(_describe(adapter, modules, any(product.is_head for product in products)), indent=2)
    target = Path(path)
    if target.suffix == ".safetensors":
        write_tensors(tensors, target, {"format": "pt", _CONFIG: text})
        return
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(tensors, target / _WEIGHTS, {"format": "pt"})
    write_files({_CONFIG: text.encode()}, target)


def _describe(adapter: Adapter, modules: Sequence[PeftModule], is_causal: bool) -> dict[str, Any]:
    """The settings of an adapter as PEFT has them."""
    settings = {"base_model_name_or_path": None, "inference_mode": True, "peft_type": "LORA",
                "target_modules": [module.name for module in modules], "task_type": "CAUSAL_LM" if is_causal else None}
    if adapter.method == "ia3":
        return settings | {"peft_type": "IA3", "feedforward_modules": [m.name for m in modules if m.feedforward]}
    alphas = {module.name: _simplify(module.scale * module.rank) for module in modules}
    alpha = _simplify(adapter.alpha)
    return settings | {
        "r": adapter.rank, "lora_alpha": alpha, "lora_dropout": adapter.dropout, "use_dora": adapter.method == "dora",
        "rank_pattern": {module.name: module.rank for module in modules if module.rank != adapter.rank},
        "alpha_pattern": {n: a for n, a in alphas.items() if not math.isclose(a, alpha)}}


def _simplify(alpha: float) -> int | float:
    """A whole number as PEFT writes it."""
    return round(alpha) if math.isclose(alpha, round(alpha)) else alpha
