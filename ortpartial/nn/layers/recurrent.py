"""Recurrent layers: RNN, LSTM and GRU over sequences, and their cells, a step each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.checks import check_choice
from ortpartial.docstrings import document
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Arithmetic, Value, constant, op

from ..initializers import Uniform
from ..module import Module
from ..parameter import Parameter
from .dropout import Dropout
from .layer import Layer
from .sizes import check_dtype, check_sequence, check_size, read_count, read_size

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {"tanh": lambda x: op.Tanh(x), "relu": lambda x: op.Relu(x)}


class _Recurrent(Layer):
    """A stack of layers of a recurrent operator of ONNX, with torch's parameters.

    Parameters
    ----------
    input_size : int or None
        The number of features of x; None for that of the first x, which makes the weights.
    hidden_size : int
        The size of h.
    num_layers : int
        How many layers are stacked: each reads the h of the layer below.
    bias : bool
        Whether b and c are added.
    batch_first : bool
        Whether x is (N, T, features) in place of (T, N, features), and the output likewise; states are not.
    dropout : float
        The probability of the Dropout between layers, in training mode.
    bidirectional : bool
        Whether each layer goes along the sequence in both directions, and returns both h side by side.
    dtype : numpy dtype or its name
        The element type of the weights.
    """

    #: The gates of torch in the order of ONNX.
    _gates: ClassVar[Sequence[int]] = (0,)

    def __init__(self, input_size: int | None, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
                 dropout: float, bidirectional: bool, dtype: DTypeLike):
        self.input_size, self.hidden_size = input_size, read_count(self, "hidden_size", hidden_size)
        self.num_layers = read_count(self, "num_layers", num_layers)
        self.bias, self.batch_first, self.bidirectional, self.dtype = bias, batch_first, bidirectional, dtype
        self.dropout, self._dropout = dropout, Dropout(dropout)
        self._directions = ["", "_reverse"] if bidirectional else [""]
        if input_size is not None:
            self._make(input_size)

    def _make(self, input_size: int) -> None:
        """Make the weights of all layers."""
        self.input_size = input_size
        for layer in range(self.num_layers):
            features = len(self._directions) * self.hidden_size if layer else input_size
            for direction in self._directions:
                _make_weights(self, features, len(self._gates), f"_l{layer}{direction}")

    def _run(self, x: Value, first: Sequence[Arithmetic | None]) -> tuple[Value, list[Value]]:
        """The outputs of the last layer, and the last states of all layers."""
        check_sequence(x, self.batch_first)
        if self.input_size is None:
            self._make(read_size(x, -1))
        check_size(x, -1, self.input_size, "features")
        check_dtype(x, self.dtype)
        y = op.Unsqueeze(x, [1]) if x.rank == 2 else op.Transpose(x, perm=[1, 0, 2]) if self.batch_first else x
        firsts = zip(*(self._split_state(v, x.rank) for v in first), strict=True)
        lasts = []
        for layer, states in enumerate(firsts):
            y, *last = self._run_layer(self._dropout(y) if layer else y, layer, states)
            lasts.append(last)
        ends = [op.Concat(*v, axis=0) if self.num_layers > 1 else v[0] for v in zip(*lasts, strict=True)]
        if x.rank == 2:
            return op.Squeeze(y, [1]), [op.Squeeze(v, [1]) for v in ends]
        return op.Transpose(y, perm=[1, 0, 2]) if self.batch_first else y, ends

    def _split_state(self, state: Arithmetic | None, rank: int) -> Sequence[Value | None]:
        """The first states of each layer, (directions, N, hidden)."""
        if state is None:
            return [None] * self.num_layers
        axes = "(layers and directions, hidden)" if rank == 2 else "(layers and directions, N, hidden)"
        if state.rank != rank:
            raise GraphError(f"a first state is {state!r}, where {axes} was expected.")
        check_size(state, 0, self.num_layers * len(self._directions), "layers and directions", "a first state")
        check_size(state, -1, self.hidden_size, "features", "a first state")
        batch: Any = op.Unsqueeze(state, [1]) if rank == 2 else state
        return op.Split(batch, axis=0, num_outputs=self.num_layers) if self.num_layers > 1 else [batch]

    def _run_layer(self, x: Value, layer: int, first: Sequence[Value | None]) -> list[Value]:
        """The outputs (T, N, directions · hidden) and the last states (directions, N, hidden) of a layer."""
        n, hidden = len(self._directions), self.hidden_size
        ends = [f"_l{layer}{direction}" for direction in self._directions]
        w, r = (self._stack([f"{name}{end}" for end in ends]) for name in ("weight_ih", "weight_hh"))
        b = self._stack([f"{name}{end}" for end in ends for name in ("bias_ih", "bias_hh")]) if self.bias else None
        y, *last = self._operate(x, w, r, b, None, *first, hidden_size=hidden,
                                 direction="bidirectional" if n > 1 else "forward")
        if n == 1:
            return [op.Squeeze(y, [1]), *last]
        return [op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, n * hidden]), *last]

    def _stack(self, names: Sequence[str]) -> Value:
        """Parameters with their gates in the order of ONNX, as (directions, ...)."""
        parameters = [getattr(self, name) for name in names]
        n = len(self._gates)
        gates = [op.Split(p, axis=0, num_outputs=n) if n > 1 else [p] for p in parameters]
        ordered = [parts[i] for parts in gates for i in self._gates]
        stacked = op.Concat(*ordered, axis=0) if len(ordered) > 1 else ordered[0]
        return op.Reshape(stacked, [len(self._directions), -1, *parameters[0].shape[1:]])

    def _operate(self, *inputs: Value | None, **settings: Any) -> Sequence[Value]:
        """The operator of ONNX."""
        return getattr(op, type(self).__name__)(*inputs, **settings)


class _OneState(_Recurrent):
    """A recurrent layer whose state is h alone."""

    def forward(self, x: Value, hx: Arithmetic | None = None) -> tuple[Value, Value]:
        """h of all steps, and the last of each layer.

        Parameters
        ----------
        x : Value of shape (T, N, features), or (T, features)
            The sequences; (N, T, features) with `batch_first`.
        hx : Value of shape (layers · directions, N, hidden_size), optional
            h before the first step, by default 0.

        Returns
        -------
        output : Value of shape (T, N, directions · hidden_size)
            h of the last layer, laid out as x.
        h_n : Value of the shape of hx
            h after the last step.

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        output, (h,) = self._run(x, [hx])
        return output, h


@document(_Recurrent)
class RNN(_OneState):
    """h = f(x Wᵀ + b + h' Rᵀ + c) along a sequence, where h' is the h of the step before, in a stack of layers.

    Parameters
    ----------
    nonlinearity : str
        f, ``"tanh"`` or ``"relu"``.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : Parameter of shape (hidden_size, input_size) and (hidden_size, hidden_size)
        W and R of the first layer, from U(-1/√hidden_size, 1/√hidden_size) as all; ``weight_ih_l0_reverse`` and so on
        belong to the reverse direction.
    bias_ih_l0, bias_hh_l0 : Parameter of shape (hidden_size,)
        b and c of the first layer.

    Raises
    ------
    SettingError
        A size is less than 1, or f is not known.

    References
    ----------
    ``torch.nn.RNN``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.RNN(3, 5, batch_first=True).compile(nn.placeholder(["N", "T", 3]))
    >>> output, h_n = model(np.ones((2, 4, 3), np.float32))
    >>> output.shape, h_n.shape
    ((2, 4, 5), (1, 2, 5))
    """

    def __init__(self, input_size: int | None, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
                 dtype: DTypeLike = "float32"):
        self.nonlinearity = _check_nonlinearity(self, nonlinearity)
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype)

    def _operate(self, *inputs: Value | None, **settings: Any) -> Sequence[Value]:
        activations = [self.nonlinearity.capitalize()] * len(self._directions)
        return super()._operate(*inputs, activations=activations, **settings)


@document(_Recurrent)
class LSTM(_Recurrent):
    """Long short-term memory along a sequence, in a stack of layers.

    c = f ∘ c' + i ∘ g and h = o ∘ tanh(c), where i, f, o = σ(...) and g = tanh(...) of x Wᵀ + b + h' Rᵀ + d, and
    h' and c' are from the step before.

    Parameters
    ----------
    hidden_size : int
        The size of h and c.
    bias : bool
        Whether b and d are added.
    proj_size : int
        0: ONNX's LSTM has no projection of h.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : Parameter of shape (4 · hidden_size, input_size) and (4 · hidden_size, hidden_size)
        W and R of the first layer, for i, f, g, o, from U(-1/√hidden_size, 1/√hidden_size) as all;
        ``weight_ih_l0_reverse`` and so on belong to the reverse direction.
    bias_ih_l0, bias_hh_l0 : Parameter of shape (4 · hidden_size,)
        b and d of the first layer.

    Raises
    ------
    SettingError
        A size is less than 1, or there is a projection.

    References
    ----------
    ``torch.nn.LSTM``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.LSTM(3, 5, num_layers=2).compile(nn.placeholder(["T", "N", 3]))
    >>> output, (h_n, c_n) = model(np.ones((4, 2, 3), np.float32))
    >>> output.shape, h_n.shape, c_n.shape
    ((4, 2, 5), (2, 2, 5), (2, 2, 5))
    """

    _gates = (0, 3, 1, 2)

    def __init__(self, input_size: int | None, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *,
                 dtype: DTypeLike = "float32"):
        if proj_size:
            raise SettingError(f"LSTM: proj_size is {proj_size}, and the LSTM of ONNX has no projection; take 0, and a "
                               f"Linear of the output.")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype)

    def forward(self, x: Value, hx: Sequence[Arithmetic] | None = None) -> tuple[Value, tuple[Value, Value]]:
        """h of all steps, and the last h and c of each layer.

        Parameters
        ----------
        x : Value of shape (T, N, features), or (T, features)
            The sequences; (N, T, features) with `batch_first`.
        hx : pair of Value of shape (layers · directions, N, hidden_size), optional
            h and c before the first step, by default 0.

        Returns
        -------
        output : Value of shape (T, N, directions · hidden_size)
            h of the last layer, laid out as x.
        h_n, c_n : pair of Value of the shapes of hx
            h and c after the last step.

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        output, (h, c) = self._run(x, _read_pair(hx))
        return output, (h, c)


@document(_Recurrent)
class GRU(_OneState):
    """The gated recurrent unit along a sequence, in a stack of layers.

    h = (1 - z) ∘ n + z ∘ h' with n = tanh(x Wᵀ + b + r ∘ (h' Rᵀ + c)) and r, z = σ(...) likewise, where h' is the h
    of the step before.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : Parameter of shape (3 · hidden_size, input_size) and (3 · hidden_size, hidden_size)
        W and R of the first layer, for r, z, n, from U(-1/√hidden_size, 1/√hidden_size) as all;
        ``weight_ih_l0_reverse`` and so on belong to the reverse direction.
    bias_ih_l0, bias_hh_l0 : Parameter of shape (3 · hidden_size,)
        b and c of the first layer.

    Raises
    ------
    SettingError
        A size is less than 1.

    References
    ----------
    ``torch.nn.GRU``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.GRU(3, 5, bidirectional=True).compile(nn.placeholder(["T", "N", 3]))
    >>> output, h_n = model(np.ones((4, 2, 3), np.float32))
    >>> output.shape, h_n.shape
    ((4, 2, 10), (2, 2, 5))
    """

    _gates = (1, 0, 2)

    def __init__(self, input_size: int | None, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
                 dtype: DTypeLike = "float32"):
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype)

    def _operate(self, *inputs: Value | None, **settings: Any) -> Sequence[Value]:
        return super()._operate(*inputs, linear_before_reset=1, **settings)


class _Cell(Layer):
    """A step of a recurrent layer, with torch's parameters."""

    _n_gates: ClassVar[int] = 1

    def __init__(self, input_size: int | None, hidden_size: int, bias: bool = True, *, dtype: DTypeLike = "float32"):
        self.input_size, self.hidden_size = input_size, read_count(self, "hidden_size", hidden_size)
        self.bias, self.dtype = bias, dtype
        if input_size is not None:
            self._make(input_size)

    def _make(self, input_size: int) -> None:
        """Make the weights."""
        self.input_size = input_size
        _make_weights(self, input_size, self._n_gates, "")

    def _read(self, x: Value, states: Sequence[Arithmetic | None]) -> list[Arithmetic]:
        """The states, 0 where there are none; x is checked."""
        if x.rank != 2:
            raise GraphError(f"x is {x.type_name}, where (N, features) was expected.")
        if self.input_size is None:
            self._make(read_size(x, -1))
        check_size(x, -1, self.input_size, "features")
        check_dtype(x, self.dtype)
        for h in states:
            if h is not None:
                check_size(h, -1, self.hidden_size, "features", "a state")
        sizes = op.Concat(op.Shape(x, end=1), [self.hidden_size], axis=0)
        zeros = op.Expand(constant(np.zeros((), x.dtype)), sizes).stated([(x.shape or (None,))[0], self.hidden_size])
        return [zeros if h is None else h for h in states]

    def _gates_of(self, x: Arithmetic, which: str) -> Value:
        """The term of x or of h in the gates."""
        bias = getattr(self, f"bias_{which}") if self.bias else None
        return op.Gemm(x, getattr(self, f"weight_{which}"), bias, transB=1)


@document(_Recurrent)
class RNNCell(_Cell):
    """A step of an `RNN`: h = f(x Wᵀ + b + h' Rᵀ + c).

    Parameters
    ----------
    nonlinearity : str
        f, ``"tanh"`` or ``"relu"``.

    Attributes
    ----------
    weight_ih, weight_hh, bias_ih, bias_hh : Parameter
        W, R, b and c, as of an `RNN`.

    References
    ----------
    ``torch.nn.RNNCell``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.RNNCell(3, 5).compile(nn.placeholder(["N", 3]))
    >>> model(np.ones((2, 3), np.float32)).shape
    (2, 5)
    """

    def __init__(self, input_size: int | None, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", *,
                 dtype: DTypeLike = "float32"):
        self.nonlinearity = _check_nonlinearity(self, nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype=dtype)

    def forward(self, x: Value, hx: Arithmetic | None = None) -> Value:
        """h after the step.

        Parameters
        ----------
        x : Value of shape (N, features)
            The input of the step.
        hx : Value of shape (N, hidden_size), optional
            h', by default 0.

        Returns
        -------
        Value of shape (N, hidden_size)

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        (h,) = self._read(x, [hx])
        return _ACTIVATIONS[self.nonlinearity](self._gates_of(x, "ih") + self._gates_of(h, "hh"))


@document(_Recurrent)
class LSTMCell(_Cell):
    """A step of an `LSTM`.

    Parameters
    ----------
    hidden_size : int
        The size of h and c.
    bias : bool
        Whether biases are added.

    Attributes
    ----------
    weight_ih, weight_hh, bias_ih, bias_hh : Parameter
        As of an `LSTM`.

    References
    ----------
    ``torch.nn.LSTMCell``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.LSTMCell(3, 5).compile(nn.placeholder(["N", 3]))
    >>> h, c = model(np.ones((2, 3), np.float32))
    >>> h.shape, c.shape
    ((2, 5), (2, 5))
    """

    _n_gates = 4

    def forward(self, x: Value, hx: Sequence[Arithmetic] | None = None) -> tuple[Value, Value]:
        """h and c after the step.

        Parameters
        ----------
        x : Value of shape (N, features)
            The input of the step.
        hx : pair of Value of shape (N, hidden_size), optional
            h and c before the step, by default 0.

        Returns
        -------
        h, c : Value of shape (N, hidden_size)

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        h, c = self._read(x, _read_pair(hx))
        i, f, g, o = op.Split(self._gates_of(x, "ih") + self._gates_of(h, "hh"), axis=1, num_outputs=4)
        c = op.Sigmoid(f) * c + op.Sigmoid(i) * op.Tanh(g)
        return op.Sigmoid(o) * op.Tanh(c), c


@document(_Recurrent)
class GRUCell(_Cell):
    """A step of a `GRU`.

    Parameters
    ----------
    bias : bool
        Whether biases are added.

    Attributes
    ----------
    weight_ih, weight_hh, bias_ih, bias_hh : Parameter
        As of a `GRU`.

    References
    ----------
    ``torch.nn.GRUCell``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.GRUCell(3, 5).compile(nn.placeholder(["N", 3]))
    >>> model(np.ones((2, 3), np.float32)).shape
    (2, 5)
    """

    _n_gates = 3

    def forward(self, x: Value, hx: Arithmetic | None = None) -> Value:
        """h after the step.

        Parameters
        ----------
        x : Value of shape (N, features)
            The input of the step.
        hx : Value of shape (N, hidden_size), optional
            h', by default 0.

        Returns
        -------
        Value of shape (N, hidden_size)

        Raises
        ------
        GraphError
            A shape does not fit.
        """
        (h,) = self._read(x, [hx])
        r, z, n = op.Split(self._gates_of(x, "ih"), axis=1, num_outputs=3)
        hr, hz, hn = op.Split(self._gates_of(h, "hh"), axis=1, num_outputs=3)
        z, n = op.Sigmoid(z + hz), op.Tanh(n + op.Sigmoid(r + hr) * hn)
        return n + z * (h - n)


def _make_weights(module: Any, features: int, n_gates: int, end: str) -> None:
    """Make the weights of a layer and a direction, named as torch's."""
    hidden = module.hidden_size
    first = Uniform(-1 / sqrt(hidden), 1 / sqrt(hidden))
    shapes = {"weight_ih": [n_gates * hidden, features], "weight_hh": [n_gates * hidden, hidden]}
    if module.bias:
        shapes.update({"bias_ih": [n_gates * hidden], "bias_hh": [n_gates * hidden]})
    for name, shape in shapes.items():
        setattr(module, f"{name}{end}", Parameter(shape, first, dtype=module.dtype))


def _check_nonlinearity(module: Module, name: str) -> str:
    """Refuse an activation that is not known."""
    return str(check_choice(f"{type(module).__name__}: nonlinearity", name, ("tanh", "relu")))


def _read_pair(hx: Sequence[Arithmetic] | None) -> Sequence[Arithmetic | None]:
    """The two states of an LSTM."""
    if hx is None:
        return [None, None]
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise GraphError(f"hx is {hx!r}, where the pair of states (h, c) was expected.")
    return hx
