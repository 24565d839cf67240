from encoder import X, export, y

export("encoder.onnx")
# -- counted from here
from ortpartial import Checkpoint, EarlyStopping, plot_losses
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer

callbacks = [EarlyStopping(patience=3), Checkpoint("checkpoints")]
optimizer = Optimizer(
    "encoder.onnx",
    learning_loss="softmax_cross_entropy",
    learning_rate="AdamW",
    max_iter=10,
    batch_size=32,
    callbacks=callbacks,
    verbose=1,
)
optimizer.fit(X, y, X_val=0.2, resume="checkpoints").save("tuned.onnx")
plot_losses(optimizer).figure.savefig("losses.png")
