from encoder import X, export, y

export("encoder.onnx")
# -- counted from here
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import add_lora, save_adapter

optimizer = Optimizer(
    add_lora("encoder.onnx", ["*query*", "*value*"], rank=8),
    "adapter",
    learning_loss="softmax_cross_entropy",
    learning_rate="AdamW",
    max_iter=10,
    batch_size=32,
)
optimizer.fit(X, y, X_val=0.2)
save_adapter(optimizer, "adapter")
