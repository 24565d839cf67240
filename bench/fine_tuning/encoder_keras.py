"""The encoder in Keras, on its torch backend."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from encoder import X, y

__all__ = ["X", "model", "y"]


class Positions(keras.layers.Layer):
    """Adds a row to each token that belongs to its position."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, x):
        return x + self.table


tokens = keras.Input([64], dtype="int32")
h = Positions()(keras.layers.Embedding(17, 32)(tokens))
for _ in range(2):
    h = keras.layers.LayerNormalization()(h + keras.layers.MultiHeadAttention(2, 16)(h, h))
    h = keras.layers.LayerNormalization()(h + keras.layers.Dense(32)(keras.layers.Dense(64, activation="gelu")(h)))
model = keras.Model(tokens, keras.layers.Dense(10)(h[:, 0]))
