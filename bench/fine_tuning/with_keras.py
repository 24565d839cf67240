from encoder_keras import X, model, y

# -- counted from here
import keras
import pandas as pd

model.compile(
    keras.optimizers.AdamW(1e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
callbacks = [
    keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
    keras.callbacks.BackupAndRestore("checkpoints"),
]
history = model.fit(
    X, y, batch_size=32, epochs=10, validation_split=0.2, callbacks=callbacks
)
model.save("tuned.keras")
pd.DataFrame(history.history)[["loss", "val_loss"]].plot().figure.savefig("losses.png")
