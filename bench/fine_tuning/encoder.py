"""A two-layer transformer encoder, and the rows of tokens that it is tuned on: the digits of scikit-learn."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import BertConfig, BertForSequenceClassification

X, y = load_digits(return_X_y=True)
X = X.astype(np.int64)
config = BertConfig(vocab_size=17, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                    max_position_embeddings=64, num_labels=10)
torch.manual_seed(0)


class Encoder(torch.nn.Module):
    """Tokens of shape (rows, 64) to the scores of ten classes."""

    def __init__(self):
        super().__init__()
        self.bert = BertForSequenceClassification(config)

    def forward(self, tokens):
        return self.bert(tokens).logits


def export(path: str = "encoder.onnx") -> None:
    """Export the encoder, unless the file is there."""
    if not Path(path).exists():
        rows = torch.export.Dim("rows")
        torch.onnx.export(Encoder().eval(), (torch.tensor(X[:2]),), path, input_names=["tokens"],
                          output_names=["scores"], dynamic_shapes=({0: rows},), dynamo=True, verbose=False)
