"""Attention: multi-head attention, and the layers of a transformer, encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import sqrt
from typing import Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np

from ortpartial.annotations import ArrayLike, Data, DTypeLike
from ortpartial.docstrings import document
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Arithmetic, Value, constant, op, reshape_like

from ..initializers import GlorotUniform
from ..module import Module
from ..parameter import Parameter
from .dropout import Dropout
from .layer import Layer
from .linear import Linear
from .normalization import LayerNorm
from .sizes import check_dtype, check_sequence, check_size, read_count

__all__ = ["MultiheadAttention", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
           "TransformerEncoderLayer"]

#: A mask of scores, or of keys.
Mask: TypeAlias = "Value | Arithmetic | ArrayLike | None"

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {"relu": lambda x: op.Relu(x), "gelu": lambda x: op.Gelu(x)}


class MultiheadAttention(Layer):
    """softmax(Q Kᵀ / √d + M) V for each of several heads, and a linear layer of their results side by side.

    Q, K and V are linear layers of query, key and value, whose features are divided among the heads, d to each. The
    mask M, if any, is -∞ where a position of the query does not see a position of the key.

    Parameters
    ----------
    embed_dim : int
        The number of features of query and output.
    num_heads : int
        The number of heads, which divides embed_dim.
    dropout : float
        The probability of the Dropout of the softmax, in training mode.
    bias : bool
        Whether the linear layers have biases.
    add_bias_kv, add_zero_attn : bool
        False: further positions of the key are not supported.
    kdim, vdim : int, optional
        The number of features of key and value, by default embed_dim.
    batch_first : bool
        Whether sequences are (N, T, features) in place of (T, N, features).
    dtype : numpy dtype or its name
        The element type of the weights.

    Attributes
    ----------
    in_proj_weight : Parameter of shape (3 · embed_dim, embed_dim) or None
        The weights of Q, K and V, by default from a Glorot uniform distribution; None where key or value have another
        number of features.
    q_proj_weight, k_proj_weight, v_proj_weight : Parameter or None
        The same, of shapes (embed_dim, embed_dim), (embed_dim, kdim) and (embed_dim, vdim), where they are three.
    in_proj_bias : Parameter of shape (3 · embed_dim,) or None
        Their biases, 0 at first.
    out_proj : Linear
        The last layer, whose biases are 0 at first.

    Raises
    ------
    SettingError
        The number of heads does not divide the number of features, or a setting is not supported.

    References
    ----------
    ``torch.nn.MultiheadAttention``; A. Vaswani et al., "Attention is all you need", NeurIPS, 2017.

    Examples
    --------
    >>> from ortpartial import nn
    >>> class SelfAttention(nn.Module):
    ...     def __init__(self):
    ...         self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
    ...     def forward(self, x):
    ...         return self.attention(x, x, x, is_causal=True)
    >>> model = SelfAttention().compile(nn.placeholder(["N", "T", 8]), random_state=0)
    >>> output, weights = model(np.ones((2, 3, 8), np.float32))
    >>> output.shape, weights[0].round(2).tolist()
    ((2, 3, 8), [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.33000001311302185, 0.33000001311302185, 0.33000001311302185]])
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False, *, dtype: DTypeLike = "float32"):
        embed_dim, num_heads = read_count(self, "embed_dim", embed_dim), read_count(self, "num_heads", num_heads)
        if embed_dim % num_heads:
            raise SettingError(f"MultiheadAttention: {embed_dim} features cannot be divided among {num_heads} heads; "
                               f"embed_dim is a multiple of num_heads.")
        if add_bias_kv or add_zero_attn:
            raise SettingError("MultiheadAttention: add_bias_kv and add_zero_attn are not supported; append a position "
                               "to key and value.")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.head_dim, self.dtype = embed_dim // num_heads, dtype
        self._dropout = Dropout(dropout)
        sizes = [embed_dim, self.kdim, self.vdim]
        self.in_proj_weight = self.q_proj_weight = self.k_proj_weight = self.v_proj_weight = None
        if sizes == [embed_dim] * 3:
            self.in_proj_weight = Parameter([3 * embed_dim, embed_dim], GlorotUniform(), dtype=dtype)
        else:
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
                Parameter([embed_dim, n], GlorotUniform(), dtype=dtype) for n in sizes)
        self.in_proj_bias = Parameter([3 * embed_dim], 0.0, dtype=dtype) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        if bias:
            self.out_proj.bias.initialize(0.0)

    def forward(self, query: Value, key: Value, value: Value, key_padding_mask: Mask = None, need_weights: bool = True,
                attn_mask: Mask = None, average_attn_weights: bool = True, is_causal: bool = False
                ) -> tuple[Value, Value | None]:
        """The attention of query to key, as a mean of value, and its weights.

        Parameters
        ----------
        query : Value of shape (L, N, embed_dim), or (L, embed_dim)
            The attending sequence; (N, L, embed_dim) with `batch_first`.
        key, value : Value of shape (S, N, kdim) and (S, N, vdim), or (S, kdim) and (S, vdim)
            The sequence that is attended to; (N, S, ...) with `batch_first`.
        key_padding_mask : Value or array of shape (N, S), or (S,), optional
            True for each position of the key that is not seen, or numbers that are added to the products.
        need_weights : bool
            Whether the weights are returned.
        attn_mask : Value or array of shape (L, S) or (N · num_heads, L, S), optional
            True where a position of the query does not see a position of the key, or numbers that are added to the
            products.
        average_attn_weights : bool
            Whether the mean over the heads is returned of the weights.
        is_causal : bool
            Whether a position sees positions up to itself alone. `attn_mask` is not needed for it, and counts as well.

        Returns
        -------
        output : Value of the shape of query
            The attention.
        weights : Value of shape (N, L, S) or None
            The softmax, finite also where no position is seen; (N, num_heads, L, S) if it is not the mean.

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        self._check(query, key, value)
        if is_batch := query.rank == 3:
            q, k, v = self._project(query, key, value)
        else:
            axis = 0 if self.batch_first else 1
            q, k, v = (op.Unsqueeze(x, [axis]) for x in self._project(query, key, value))
            key_padding_mask = None if key_padding_mask is None else op.Unsqueeze(key_padding_mask, [0])
        scores = (self._to_heads(q) * (1 / sqrt(self.head_dim))) @ self._to_heads(k, turned=True)
        for mask in self._masks(scores, key_padding_mask, attn_mask, is_causal):
            scores = scores + mask
        weights = self._dropout(op.Softmax(scores, axis=-1))
        heads = weights @ self._to_heads(v)
        order = [0, 2, 1, 3] if self.batch_first else [2, 0, 1, 3]
        output = op.Reshape(op.Transpose(heads, perm=order), [0, 0, self.embed_dim])
        output = self.out_proj(output if is_batch else op.Squeeze(output, [axis]))
        if not need_weights:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if is_batch else op.Squeeze(weights, [0])

    def _check(self, query: Value, key: Value, value: Value) -> None:
        """Check the shapes of the inputs."""
        sizes = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for (name, n), x in zip(sizes.items(), (query, key, value), strict=True):
            check_sequence(x, self.batch_first, name)
            check_size(x, -1, n, "features", name)
            check_dtype(x, self.dtype)
            if x.rank != query.rank:
                raise GraphError(f"{name} is {x.type_name}, and query {query.type_name}; give both a batch, or none.")

    def _project(self, query: Value, key: Value, value: Value) -> Sequence[Value]:
        """Q, K and V, with the features of all heads side by side."""
        w, b = self.in_proj_weight, self.in_proj_bias
        if w is not None and query is key and key is value:
            return op.Split(_apply_affine(query, w, b), axis=-1, num_outputs=3)
        separate = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        weights: Any = separate if w is None else op.Split(w, axis=0, num_outputs=3)
        biases: Any = [None] * 3 if b is None else op.Split(b, axis=0, num_outputs=3)
        return [_apply_affine(*parts) for parts in zip((query, key, value), weights, biases, strict=True)]

    def _to_heads(self, x: Value, turned: bool = False) -> Value:
        """Features apart by head, (N, heads, T, d), or (N, heads, d, T)."""
        apart = op.Reshape(x, [0, 0, self.num_heads, self.head_dim])
        batch, time = (0, 1) if self.batch_first else (1, 0)
        return op.Transpose(apart, perm=[batch, 2, 3, time] if turned else [batch, 2, time, 3])

    def _masks(self, scores: Value, key_padding_mask: Mask, attn_mask: Mask, is_causal: bool) -> list[Value]:
        """The masks that are added to the products (N, heads, L, S)."""
        masks = []
        if attn_mask is not None:
            mask = _to_value(attn_mask, 2, 3, name="attn_mask", axes="(L, S) or (N · num_heads, L, S)")
            masks.append(reshape_like(mask, scores) if mask.rank == 3 else mask)
        if key_padding_mask is not None:
            mask = _to_value(key_padding_mask, 2, name="key_padding_mask", axes="(N, S)")
            masks.append(op.Unsqueeze(mask, [1, 2]))
        if is_causal:
            rows, columns = (op.Range(0, op.Squeeze(op.Shape(scores, start=a, end=a + 1), [0]), 1) for a in (2, 3))
            masks.append((op.Unsqueeze(rows, [1]) < columns).stated((scores.shape or ())[2:]))
        hidden = [m for m in masks if m.dtype == bool]
        added = [m.astype(scores.dtype) for m in masks if m.dtype != bool]
        for other in hidden[1:]:
            hidden[0] = hidden[0] | other
        # The least number in place of -∞: a softmax of -∞ alone would be NaN.
        least, zero = (constant(np.array(n, scores.dtype)) for n in (ml_dtypes.finfo(scores.dtype).min, 0))
        return [*(op.Where(m, least, zero) for m in hidden[:1]), *added]


class _TransformerLayer(Layer):
    """Attentions, then two linear layers at each position, each with residual connection, LayerNorm and Dropout.

    Parameters
    ----------
    d_model : int
        The number of features of input and output.
    nhead : int
        The number of heads of the attention.
    dim_feedforward : int
        The number of features between the two linear layers.
    dropout : float
        The probability of all Dropouts, in training mode.
    activation : str or callable
        The activation after the first linear layer: ``"relu"``, ``"gelu"``, or a function of a value, such as a module.
    layer_norm_eps : float
        The eps of the LayerNorms.
    batch_first : bool
        Whether sequences are (N, T, features) in place of (T, N, features).
    norm_first : bool
        Whether a LayerNorm comes before attention and linear layers, in place of after the residual connection.
    bias : bool
        Whether linear layers and LayerNorms have biases.
    dtype : numpy dtype or its name
        The element type of the weights.
    """

    _attentions: ClassVar[Sequence[str]] = ("self_attn",)

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[[Value], Value] = "relu", layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True, *,
                 dtype: DTypeLike = "float32"):
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise SettingError(f"{type(self).__name__}: activation is {activation!r}, 'relu', 'gelu' or a function was "
                               f"expected.")
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype))
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first, self.activation = norm_first, activation
        parts = range(1, len(self._attentions) + 2)
        for i in parts:
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype))
        for i in parts:
            setattr(self, f"dropout{i}", Dropout(dropout))

    def _add(self, i: int, x: Value, part: Callable[[Value], Value]) -> Value:
        """The residual connection around the part of this number."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        return x + dropout(part(norm(x))) if self.norm_first else norm(x + dropout(part(x)))

    def _attend(self, which: str, memory: Value | None, **masks: Data) -> Callable[[Value], Value]:
        """Attention to the memory, or to the input itself, as a function of the input."""
        attention = getattr(self, which)

        def attend(x: Value) -> Value:
            source = x if memory is None else memory
            output, _ = attention(x, source, source, need_weights=False, **masks)
            return output

        return attend

    def _feed_forward(self, x: Value) -> Value:
        """The linear layers."""
        activation = _ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        return self.linear2(self.dropout(activation(self.linear1(x))))


@document(_TransformerLayer)
class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, then two linear layers at each position, each with a residual connection and a LayerNorm.

    Attributes
    ----------
    self_attn : MultiheadAttention
        The attention.
    linear1, linear2 : Linear
        The linear layers.
    norm1, norm2 : LayerNorm
        That of the attention and that of the linear layers.

    Raises
    ------
    SettingError
        The number of heads does not divide the number of features, or the activation is not known.

    References
    ----------
    ``torch.nn.TransformerEncoderLayer``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = layer.compile(nn.placeholder(["N", "T", 8]))
    >>> model(np.ones((2, 3, 8), np.float32)).shape
    (2, 3, 8)
    """

    def forward(self, src: Value, src_mask: Mask = None, src_key_padding_mask: Mask = None,
                is_causal: bool = False) -> Value:
        """The encoded sequences.

        Parameters
        ----------
        src : Value of shape (T, N, d_model), or (T, d_model)
            The sequences; (N, T, d_model) with `batch_first`.
        src_mask, src_key_padding_mask, is_causal
            `attn_mask`, `key_padding_mask` and `is_causal` of `MultiheadAttention`.

        Returns
        -------
        Value of the shape of src

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        attend = self._attend("self_attn", None, attn_mask=src_mask, key_padding_mask=src_key_padding_mask,
                              is_causal=is_causal)
        return self._add(2, self._add(1, src, attend), self._feed_forward)


@document(_TransformerLayer)
class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to a memory, and two linear layers, each with a residual connection and a LayerNorm.

    Parameters
    ----------
    norm_first : bool
        Whether a LayerNorm comes before attentions and linear layers, in place of after the residual connection.

    Attributes
    ----------
    self_attn, multihead_attn : MultiheadAttention
        The attention to the sequences themselves, and that to the memory.
    linear1, linear2 : Linear
        The linear layers.
    norm1, norm2, norm3 : LayerNorm
        The norms of the attentions and of the linear layers.

    Raises
    ------
    SettingError
        The number of heads does not divide the number of features, or the activation is not known.

    References
    ----------
    ``torch.nn.TransformerDecoderLayer``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = layer.compile([nn.placeholder(["N", "T", 8]), nn.placeholder(["N", "S", 8])])
    >>> model(np.ones((2, 3, 8), np.float32), np.ones((2, 5, 8), np.float32)).shape
    (2, 3, 8)
    """

    _attentions = ("self_attn", "multihead_attn")

    def forward(self, tgt: Value, memory: Value, tgt_mask: Mask = None, memory_mask: Mask = None,
                tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None, tgt_is_causal: bool = False,
                memory_is_causal: bool = False) -> Value:
        """The decoded sequences.

        Parameters
        ----------
        tgt : Value of shape (T, N, d_model), or (T, d_model)
            The sequences; (N, T, d_model) with `batch_first`.
        memory : Value of shape (S, N, d_model), or (S, d_model)
            The output of an encoder, laid out likewise.
        tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal
            `attn_mask`, `key_padding_mask` and `is_causal` of `MultiheadAttention`: for the attention of the sequences
            to themselves, and for the attention to the memory.

        Returns
        -------
        Value of the shape of tgt

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        to_self = self._attend("self_attn", None, attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask,
                               is_causal=tgt_is_causal)
        to_memory = self._attend("multihead_attn", memory, attn_mask=memory_mask,
                                 key_padding_mask=memory_key_padding_mask, is_causal=memory_is_causal)
        return self._add(3, self._add(2, self._add(1, tgt, to_self), to_memory), self._feed_forward)


class TransformerEncoder(Layer):
    """A stack of encoder layers.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        A layer, which is copied; each copy has first weights of its own.
    num_layers : int
        The number of layers.
    norm : Module, optional
        The module after the last layer, such as a LayerNorm.
    enable_nested_tensor, mask_check : bool
        Without effect: positions that are padding are computed.

    Attributes
    ----------
    layers : list of TransformerEncoderLayer
        The layers.
    norm : Module or None
        The module after them.

    Raises
    ------
    SettingError
        The number of layers is less than 1.

    References
    ----------
    ``torch.nn.TransformerEncoder``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, num_layers=2).compile(nn.placeholder(["N", "T", 8]))
    >>> model(np.ones((2, 3, 8), np.float32)).shape
    (2, 3, 8)
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
                 enable_nested_tensor: bool = True, mask_check: bool = True):
        self.num_layers = read_count(self, "num_layers", num_layers)
        self.layers, self.norm = [deepcopy(encoder_layer) for _ in range(num_layers)], norm

    def forward(self, src: Value, mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
                ) -> Value:
        """The encoded sequences.

        Parameters
        ----------
        src : Value of shape (T, N, d_model), or (T, d_model)
            The sequences; (N, T, d_model) with `batch_first`.
        mask, src_key_padding_mask, is_causal
            `attn_mask`, `key_padding_mask` and `is_causal` of `MultiheadAttention`.

        Returns
        -------
        Value of the shape of src

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Layer):
    """A stack of decoder layers.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        A layer, which is copied; each copy has first weights of its own.
    num_layers : int
        The number of layers.
    norm : Module, optional
        The module after the last layer, such as a LayerNorm.

    Attributes
    ----------
    layers : list of TransformerDecoderLayer
        The layers.
    norm : Module or None
        The module after them.

    Raises
    ------
    SettingError
        The number of layers is less than 1.

    References
    ----------
    ``torch.nn.TransformerDecoder``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = nn.TransformerDecoder(layer, num_layers=2)
    >>> model = model.compile([nn.placeholder(["N", "T", 8]), nn.placeholder(["N", "S", 8])])
    >>> model(np.ones((2, 3, 8), np.float32), np.ones((2, 5, 8), np.float32)).shape
    (2, 3, 8)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        self.num_layers = read_count(self, "num_layers", num_layers)
        self.layers, self.norm = [deepcopy(decoder_layer) for _ in range(num_layers)], norm

    def forward(self, tgt: Value, memory: Value, tgt_mask: Mask = None, memory_mask: Mask = None,
                tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None, tgt_is_causal: bool = False,
                memory_is_causal: bool = False) -> Value:
        """The decoded sequences.

        Parameters
        ----------
        tgt : Value of shape (T, N, d_model), or (T, d_model)
            The sequences; (N, T, d_model) with `batch_first`.
        memory : Value of shape (S, N, d_model), or (S, d_model)
            The output of an encoder, laid out likewise.
        tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal
            `attn_mask`, `key_padding_mask` and `is_causal` of `MultiheadAttention`: for the attention of the sequences
            to themselves, and for the attention to the memory.

        Returns
        -------
        Value of the shape of tgt

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        x = tgt
        for layer in self.layers:
            x = layer(x, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                      memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
                      memory_is_causal=memory_is_causal)
        return x if self.norm is None else self.norm(x)


def _apply_affine(x: Value, w: Arithmetic, b: Arithmetic | None) -> Value:
    """x wᵀ + b on the last axis of x."""
    if x.rank == 2:
        return op.Gemm(x, w, b, transB=1)
    y = x @ w.T
    return y if b is None else y + b


def _to_value(mask: Mask, *ranks: int, name: str, axes: str) -> Value:
    """A mask that is a value or an array."""
    v = mask if isinstance(mask, Value) else mask.value if isinstance(mask, Arithmetic) else constant(mask)
    if v.rank not in ranks or not (v.is_float or v.dtype == bool):
        raise GraphError(f"{name} is {v!r}, where bool or float {axes} was expected.")
    return v
