from encoder import X, config, y

# -- counted from here
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import random_split
from transformers import (
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

rows = [{"input_ids": x, "labels": label} for x, label in zip(X, y)]
train, validation = random_split(rows, [0.8, 0.2])
lora = LoraConfig(TaskType.SEQ_CLS, target_modules=["query", "value"], r=8)
arguments = TrainingArguments(
    "checkpoints",
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    num_train_epochs=10,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    get_peft_model(BertForSequenceClassification(config), lora),
    arguments,
    train_dataset=train,
    eval_dataset=validation,
)
trainer.train()
trainer.save_model("adapter")
