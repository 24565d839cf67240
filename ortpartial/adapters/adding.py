"""Adding adapters to models: settings, checked, and the weights that a training begins with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import ModelProto, helper

from ortpartial.checks import check_real, check_whole, to_generator
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.learning import accept_words, answer_keywords
from ortpartial.model import Adapter, Model, Target, read_adapter

from . import dora, ia3, lora
from .insertion import insert, read_copy
from .peft_names import name_modules, read_kind
from .products import Part, Product, find_closed, find_products
from .targets import choose_parts, list_patterns, match_parts

__all__ = ["add_dora", "add_ia3", "add_lora"]

#: The forms of a model as an argument.
Source = Model | ModelProto | bytes | str | os.PathLike[str]

#: The forms of targets as an argument.
Targets = str | Sequence[str]

#: The feedforward layer of most decoders.
_FEEDFORWARD = ("down_proj",)


@accept_words(r="rank", target_modules="targets", lora_alpha="alpha", lora_dropout="dropout")
@answer_keywords()
def add_lora(model: Source, targets: Targets = "linear", rank: int = 8, alpha: float = 16, dropout: float = 0.0,
             random_state: int | np.random.Generator | None = None) -> ModelProto:
    """Add a LoRA adapter to a model: small matrices A and B beside frozen weights [1]_.

    For each target, ``y = W(x) + alpha / rank * (dropout(x) @ A) @ B``. Before training the model computes the same as
    without it. The weights that it has are not trained by ``weights_to_train="adapter"``, and packed weights stay
    packed.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The model; it is not written to. A path needs the least memory.
    targets : str or sequence of str
        Patterns of `fnmatch` over the names of modules, nodes and weights, such as ``"*q_proj*"``; the end of the name
        of a module, such as ``"q_proj"``; ``"linear"`` for all linear layers but the head of a language model;
        ``"attention"`` for the layers inside of attention. They are products with constant weights: MatMul, Gemm, Conv
        without groups, Gather of rows, and MatMulNBits, FusedMatMul, GatherBlockQuantized and Attention of onnxruntime,
        and the dynamically quantized form of MatMul. Where a single product computes queries, keys and values, these
        are three targets: ``"q_proj"``, ``"k_proj"`` and ``"v_proj"``, or in BERT ``"query"``, ``"key"`` and
        ``"value"``.
    rank : int
        The columns of A and rows of B.
    alpha : float
        The numerator of the scale.
    dropout : float
        The share of the inputs of A that a training drops, with ``train_mode=True`` of an optimizer or ``train()`` of
        an `OnnxLayer`. Rows of a table are never dropped.
    random_state : int or numpy.random.Generator, optional
        Draws A; B is zero. Of a table, A is zero.

    Returns
    -------
    onnx.ModelProto
        The model with the adapter's weights as initializers: ``<module>.lora_A.weight`` of shape (inputs, rank) and
        ``<module>.lora_B.weight`` of shape (rank, outputs), in the dtype that the target computes; of a convolution
        ``(rank, inputs, *kernel)`` and (outputs, rank, 1, ...). Inputs, outputs and all else are the model's.

    Raises
    ------
    ModelError
        The model cannot be read, or holds an adapter.
    SettingError
        A target matches nothing, or a number is out of range.

    Warns
    -----
    ModelWarning
        A target stands for products that have no place for an adapter, too, such as products of a static quantization
        in the QOperator format.

    References
    ----------
    .. [1] E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 4]), constant([[1.0, 2.0]] * 4, hint="fc.weight")
    >>> adapted = add_lora(build([x], {"y": x @ w}), "fc", rank=2, random_state=0)
    >>> [(t.name, list(t.dims)) for t in adapted.graph.initializer]
    [('fc.weight', [4, 2]), ('fc.lora_A.weight', [4, 2]), ('fc.lora_B.weight', [2, 2])]
    """
    frame, generator = _check("lora", rank, alpha, dropout, random_state)

    def draw(product: Product, part: Part) -> dict[str, np.ndarray]:
        if dropout and product.is_inside:
            raise SettingError(f"dropout drops what a target reads, and {part.name!r} is computed inside of attention, "
                               f"of all that the node reads; leave dropout at 0, or {part.name!r} out of targets.")
        return lora.draw(product, part, rank, generator)

    return _add(model, targets, frame, draw, lora.NAMES)


@accept_words(r="rank", target_modules="targets", lora_alpha="alpha", lora_dropout="dropout")
@answer_keywords()
def add_dora(model: Source, targets: Targets = "linear", rank: int = 8, alpha: float = 16, dropout: float = 0.0,
             random_state: int | np.random.Generator | None = None) -> ModelProto:
    """Add a DoRA adapter to a model: LoRA, and a trained length of each column of the sum of W and A @ B [1]_.

    ``y = m / ‖W + s A B‖ ∘ (W(x) + s (dropout(x) @ A) @ B)`` with ``s = alpha / rank`` and the norm of each column,
    which is a constant of the gradient. Before training the model computes the same as without it, but for rounding.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The model; it is not written to.
    targets : str or sequence of str
        As for `add_lora`, but MatMul, Gemm and MatMulNBits alone, of weights that they read as they are.
    rank, alpha, dropout, random_state
        As for `add_lora`.

    Returns
    -------
    onnx.ModelProto
        The model with the weights of `add_lora`, and ``<module>.lora_magnitude_vector`` of shape (outputs,).

    Raises
    ------
    ModelError
        The model cannot be read, or holds an adapter.
    SettingError
        A target matches nothing or another kind of product, or a number is out of range.

    References
    ----------
    .. [1] S.-Y. Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", ICML 2024.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 4]), constant([[1.0, 2.0]] * 4, hint="fc.weight")
    >>> adapted = add_dora(build([x], {"y": x @ w}), "fc", rank=2, random_state=0)
    >>> adapted.graph.initializer[-1].name
    'fc.lora_magnitude_vector'
    """
    frame, generator = _check("dora", rank, alpha, dropout, random_state)

    def draw(product: Product, part: Part) -> dict[str, np.ndarray]:
        dora.check(product)
        return dora.draw(product, part, rank, generator)

    return _add(model, targets, frame, draw, dora.NAMES)


@accept_words(target_modules="targets", feedforward_modules="feedforward")
@answer_keywords()
def add_ia3(model: Source, targets: Targets = ("k_proj", "v_proj", "down_proj"),
            feedforward: Targets = _FEEDFORWARD) -> ModelProto:
    """Add an IA3 adapter to a model: factors of outputs of frozen products, or of inputs in feedforward layers [1]_.

    ``y = l ∘ W(x)``, or ``y = W(l ∘ x)`` for `feedforward`. The factors begin as 1, so that the model computes the same
    as before.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The model; it is not written to.
    targets : str or sequence of str
        As for `add_lora`, but for tables.
    feedforward : str or sequence of str
        The targets that have factors of their inputs; the default need not be among the targets.

    Returns
    -------
    onnx.ModelProto
        The model with the factors ``<module>.ia3_l`` as initializers, of shape (outputs,) or (inputs,), and of a
        convolution (outputs, 1, ...) or (inputs, 1, ...).

    Raises
    ------
    ModelError
        The model cannot be read, or holds an adapter.
    SettingError
        A target matches nothing, `feedforward` names none of the targets, or the factors of a product's input would
        belong to a part of it alone.

    References
    ----------
    .. [1] H. Liu et al., "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning",
       NeurIPS 2022.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 4]), constant([[1.0, 2.0]] * 4, hint="fc.weight")
    >>> adapted = add_ia3(build([x], {"y": x @ w}), "fc", feedforward=())
    >>> [(t.name, list(t.dims)) for t in adapted.graph.initializer]
    [('fc.weight', [4, 2]), ('fc.ia3_l', [2])]
    """
    patterns = list_patterns(feedforward)
    used: set[str] = set()

    def is_feedforward(product: Product, part: Part) -> bool:
        naming = [pattern for pattern in patterns if part in match_parts(product, pattern)]
        used.update(naming)
        if not naming:
            return False
        if len(product.parts) > 1:
            raise SettingError(f"feedforward names {part.name!r}, a part of {product.name!r}, whose parts all read "
                               f"the same; leave it out.")
        if product.source:
            raise SettingError(f"feedforward names {part.name!r}, which reads integers; leave it out.")
        return True

    def draw(product: Product, part: Part) -> dict[str, np.ndarray]:
        return ia3.draw(product, part, is_feedforward(product, part))

    adapted = _add(model, targets, Adapter("ia3", 0, 0.0, 0.0, ()), draw, ia3.NAMES, is_feedforward)
    if unused := [pattern for pattern in patterns if pattern not in used and pattern not in _FEEDFORWARD]:
        raise SettingError(f"feedforward names {unused[0]!r}, which is none of the targets; name it in both, or in "
                           f"none.")
    return adapted


def _add(model: Source, targets: Targets, frame: Adapter, draw: Callable[[Product, Part], dict[str, np.ndarray]],
         names: Mapping[str, str], feedforward: Callable[[Product, Part], bool] = lambda product, part: False,
         ) -> ModelProto:
    """A model with an adapter, whose first weights are drawn."""
    proto = read_copy(model)
    products = [p for p in find_products(proto.graph) if frame.method == "lora" or not p.is_table]
    if read_adapter(proto) is not None:
        raise ModelError("The model holds an adapter already; give it without one, as `remove_adapter` returns it, or "
                         "merged, as `merge` does.")
    chosen: list[Target] = []
    arrays: dict[str, np.ndarray] = {}
    taken = {t.name for t in proto.graph.initializer}
    modules = name_modules(products, read_kind(model))
    for product, parts in choose_parts(products, targets, find_closed(proto.graph)):
        for part in parts:
            weights = draw(product, part)
            named = {role: _name(f"{part.name}.{names[role]}", taken) for role in weights}
            dtype = helper.tensor_dtype_to_np_dtype(product.dtype)
            arrays |= {named[role]: a.astype(dtype) for role, a in weights.items()}
            scale = frame.alpha / frame.rank if frame.rank else 1.0
            chosen.append(Target(part.name, product.node_name, product.node.op_type, product.weight, product.inputs,
                                 product.outputs, part.start, part.stop, scale, feedforward(product, part), named,
                                 modules[part.name]))
    insert(proto, Adapter(frame.method, frame.rank, frame.alpha, frame.dropout, tuple(chosen)), arrays)
    return proto


def _name(name: str, taken: set[str]) -> str:
    """A name that no initializer has."""
    unique = next(n for i in range(len(taken) + 1) if (n := f"{name}_{i}" if i else name) not in taken)
    taken.add(unique)
    return unique


def _check(method: str, rank: int, alpha: float, dropout: float,
           random_state: int | np.random.Generator | None) -> tuple[Adapter, np.random.Generator]:
    """An adapter without targets yet, and the generator that draws its weights."""
    rank = check_whole("rank", rank, 1)
    alpha, dropout = check_real("alpha", alpha, above=0, high=1e30), check_real("dropout", dropout, low=0, below=1)
    generator = to_generator("random_state", random_state)
    return Adapter(method, rank, alpha, dropout, ()), generator
