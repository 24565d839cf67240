from encoder import Encoder, X, y

# -- counted from here
import matplotlib.pyplot as plt
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, LoadInitState, ProgressBar
from skorch.dataset import ValidSplit

checkpoint = Checkpoint(dirname="checkpoints", monitor=None)
callbacks = [
    EarlyStopping(patience=3, load_best=True),
    checkpoint,
    LoadInitState(checkpoint),
    ProgressBar(),
]
net = NeuralNetClassifier(
    Encoder,
    criterion=torch.nn.CrossEntropyLoss,
    optimizer=torch.optim.AdamW,
    lr=1e-3,
    max_epochs=10,
    batch_size=32,
    train_split=ValidSplit(0.2),
    callbacks=callbacks,
)
net.fit(X, y)
net.save_params(f_params="tuned.pt")
plt.plot(net.history[:, "train_loss"], label="train")
plt.plot(net.history[:, "valid_loss"], label="validation")
plt.legend()
plt.savefig("losses.png")
