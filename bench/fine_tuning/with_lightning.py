from encoder import Encoder, X, y

# -- counted from here
import lightning
import matplotlib.pyplot as plt
import pandas as pd
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset, random_split


class FineTuning(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def compute_loss(self, batch, name):
        X, y = batch
        loss = torch.nn.functional.cross_entropy(self.model(X), y)
        self.log(name, loss, on_epoch=True, on_step=False, prog_bar=True)
        return loss

    def training_step(self, batch, i):
        return self.compute_loss(batch, "loss")

    def validation_step(self, batch, i):
        return self.compute_loss(batch, "validation_loss")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


train, validation = random_split(
    TensorDataset(torch.tensor(X), torch.tensor(y)), [0.8, 0.2]
)
checkpoint = ModelCheckpoint("checkpoints", monitor="validation_loss", save_last=True)
logger = CSVLogger("logs")
trainer = lightning.Trainer(
    max_epochs=10,
    accelerator="cpu",
    callbacks=[EarlyStopping("validation_loss", patience=3), checkpoint],
    logger=logger,
)
model = FineTuning(Encoder())
trainer.fit(
    model,
    DataLoader(train, 32, shuffle=True),
    DataLoader(validation, 32),
    ckpt_path="last",
)
best = FineTuning.load_from_checkpoint(checkpoint.best_model_path, model=model.model)
torch.save(best.model.state_dict(), "tuned.pt")
losses = pd.read_csv(f"{logger.log_dir}/metrics.csv").groupby("epoch").mean()
losses[["loss", "validation_loss"]].plot()
plt.savefig("losses.png")
