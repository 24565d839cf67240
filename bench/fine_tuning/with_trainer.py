from encoder import X, config, y

# -- counted from here
import os
import pandas as pd
from torch.utils.data import random_split
from transformers import (
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)

rows = [{"input_ids": x, "labels": label} for x, label in zip(X, y)]
train, validation = random_split(rows, [0.8, 0.2])
arguments = TrainingArguments(
    "checkpoints",
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    num_train_epochs=10,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    save_total_limit=3,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    BertForSequenceClassification(config),
    arguments,
    train_dataset=train,
    eval_dataset=validation,
    callbacks=[EarlyStoppingCallback(3)],
)
trainer.train(resume_from_checkpoint=any(os.scandir("checkpoints")))
trainer.save_model("tuned")
losses = pd.DataFrame(trainer.state.log_history).groupby("epoch").max()
losses[["loss", "eval_loss"]].plot().figure.savefig("losses.png")
