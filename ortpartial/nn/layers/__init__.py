"""Layers, with the names, settings, parameters and first weights of torch."""

from .attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from .linear import Linear
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "Linear", "MultiheadAttention", "RNNCell", "TransformerEncoder",
           "TransformerEncoderLayer"]
