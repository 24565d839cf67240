"""Habits: attributes that objects of other libraries have, answered with what to write here in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = ["ESTIMATOR_HABITS", "KIT_HABITS", "MODULE_HABITS", "OPTIMIZER_HABITS", "PARAMETER_HABITS", "SESSION_HABITS",
           "UPDATE_HABITS", "AnsweredAttributes", "describe_layer"]

#: Words of a device, of a half dtype, of gradients, of a state that is read or written, and of a history.
_DEVICE = ("to", "cuda", "cpu", "gpu")
_DTYPE = ("half", "float", "double", "bfloat16", "type")
_GRADIENTS = ("zero_grad", "backward", "grad")
_READ, _WRITTEN = ("state_dict", "get_weights"), ("load_state_dict", "set_weights")
_WEIGHTS = ("parameters", "named_parameters", "weights", "variables", "trainable_weights", "trainable_variables")
_STEP = ("train_on_batch", "training_step")
_HISTORY = ("history", "hist", "losses_")
_SAVED = ("export", "save_pretrained", "save_model", "export_onnx")

#: By kind of object, advice by the attribute that it does not have.
MODULE_HABITS: Mapping[str, str] = {
    **dict.fromkeys((*_DEVICE, "device"), "the device belongs to compile, as in compile(inputs, device='cuda')"),
    **dict.fromkeys(_DTYPE, "parameters and placeholders have a dtype, and compile(inputs, precision='float16') mixes "
                            "precisions"),
    **dict.fromkeys(_GRADIENTS, "train_one_batch and fit compute gradients anew for each batch"),
    "requires_grad_": "freeze a parameter by parameter.is_trained = False",
    **dict.fromkeys(("register_buffer", "register_parameter", "register_module", "add_module"),
                    "write an attribute, as in self.scale = nn.Parameter([3])"),
    **dict.fromkeys(("children", "named_children", "modules", "layers", "get_layer", "apply"),
                    "named_modules() has all modules in it by name"),
    **dict.fromkeys(("buffers", "named_buffers"), "named_parameters(buffers=True) has them by name"),
    **dict.fromkeys(_STEP, "train_one_batch(X, y) takes a step"),
    **dict.fromkeys(("fit_generator", "partial_fit"), "fit(X, y, epochs=1) goes on, and takes an iterable of batches"),
    "get_weights": "state_dict() has copies by name", "set_weights": "load_state_dict(state) takes them by name",
    **dict.fromkeys(("weights", "variables", "trainable_weights", "trainable_variables"),
                    "named_parameters() has them by name"),
    "save_weights": "save_states(path) writes them", "load_weights": "load_states(path) reads them",
    **dict.fromkeys(_SAVED, "save(path) writes the model with its training, and to_onnx() is the model"),
    **dict.fromkeys(("predict_proba", "predict_classes"), "predict(X) has what forward returns"),
    "score": "evaluate(X, y, metrics=['accuracy']) measures", "configure_optimizers": "call set_optimizer('adam')",
    **dict.fromkeys(_HISTORY, "its name is history_"),
}
OPTIMIZER_HABITS: Mapping[str, str] = {
    **dict.fromkeys(_DEVICE, "the device is a setting, as in device='cuda'"),
    **dict.fromkeys(_DTYPE, "the model has its dtypes, and precision='float16' is a setting"),
    **dict.fromkeys(("zero_grad", "step", *_STEP), "partial_fit(X, y) takes steps, and fit trains for epochs"),
    "param_groups": "learning_rate is the optimizer, and rate_factors has factors by weight",
    **dict.fromkeys(_READ, "trained_coef_ has the weights by name, and save_checkpoint(path) writes all of the state"),
    **dict.fromkeys(_WRITTEN, "set_state(arrays) takes weights, and load_checkpoint(path) all of the state"),
    **dict.fromkeys(_WEIGHTS, "trained_coef_ has the weights by name"),
    **dict.fromkeys(("train", "eval"), "train_mode is a setting, and fit trains"),
    "compile": "the constructor takes all settings, as in learning_loss='square_error', learning_rate='Adam'",
    **dict.fromkeys(("load", "load_model", "from_pretrained"), "the constructor reads a file, and from_training_info a "
                                                               "file with a training"),
    **dict.fromkeys(_SAVED, "save(path) writes the model with the weights of now"),
    "to_onnx": "get_trained_onnx() is the model with the weights of now",
    **dict.fromkeys(("predict_proba", "decision_function"), "predict(X) has the outputs of the model, and a classifier "
                                                            "is OnnxClassifier"),
    **dict.fromkeys(("coef_", "coefs_", "intercept_"), "trained_coef_ has the weights by name"),
    **dict.fromkeys(("loss_", "loss_curve_"), "train_losses_ has the loss of each epoch"),
    **dict.fromkeys(_HISTORY, "its name is history_"),
}
ESTIMATOR_HABITS: Mapping[str, str] = {
    **dict.fromkeys(_DEVICE, "the device is a setting, as in device='cuda'"),
    **dict.fromkeys((*_READ, *_WEIGHTS), "optimizer_.trained_coef_ has the weights by name once it is fitted"),
    **dict.fromkeys(("train", "compile", *_STEP), "fit(X, y) trains, by the settings of the constructor"),
    **dict.fromkeys(("save", *_SAVED), "give what to_onnx() returns to the save function of onnx, or pickle it"),
    **dict.fromkeys(_HISTORY, "its name is history_"),
}
SESSION_HABITS: Mapping[str, str] = {
    **dict.fromkeys(("fit", "train", "partial_fit"), "step({name: array}) takes a batch, and "
                                                     "training_info.train_epochs(session, data, epochs, batch_size) "
                                                     "epochs"),
    **dict.fromkeys(("predict", "run", "forward"), "inference_model() is the model with the weights of now, which "
                                                   "onnxruntime runs"),
    "get_inputs": "inputs has their names, and shapes their shapes", "get_outputs": "outputs has their names",
    **dict.fromkeys((*_READ, *_WEIGHTS), "state has the arrays by name"),
    **dict.fromkeys(_WRITTEN, "set_state(arrays) takes them by name"),
    **dict.fromkeys((*_GRADIENTS, "optimizer"), "step(data) computes gradients and updates the state"),
    **dict.fromkeys(_DEVICE, "the device is an argument, as in TrainingSession(model, device='cuda')"),
}
KIT_HABITS: Mapping[str, str] = {
    **dict.fromkeys(("fit", "partial_fit"), "train(data, steps) takes steps"),
    **dict.fromkeys(("run", "forward"), "predict(data) computes the outputs of the model"),
    **dict.fromkeys((*_READ, *_WEIGHTS, *_WRITTEN), "state has the arrays by name, which may be written to"),
    **dict.fromkeys((*_GRADIENTS, "optimizer"), "step(data) computes gradients and updates the state"),
    **dict.fromkeys(_DEVICE, "the device is an argument, as in TrainingKit(folder, device='cuda')"),
}
UPDATE_HABITS: Mapping[str, str] = {
    **dict.fromkeys((*_GRADIENTS, "step", "minimize"), "it is called with a loss, as in self.optimizer(loss) within "
                                                       "train_one_batch"),
    "param_groups": "parameters says which weights it trains, and rate is its algorithm and step size",
    **dict.fromkeys((*_READ, *_WRITTEN), "save_states and load_states of the module hold its state"),
}
PARAMETER_HABITS: Mapping[str, str] = {
    **dict.fromkeys(("data", "detach", "cpu"), "numpy() is a copy of its numbers, and set writes them"),
    "grad": "trainer.compute_gradients of the module has gradients by name",
    **dict.fromkeys(("copy_", "fill_", "assign"), "set(numbers) writes its numbers"),
    **dict.fromkeys(("normal_", "uniform_", "zero_"), "write normal(), uniform() or zeros()"),
    "requires_grad_": "write is_trained = False",
    **dict.fromkeys(("to", "cuda"), "the device belongs to the module, as in compile(inputs, device='cuda')"),
}


#: By the name of torch's or Keras's modules of layers, what to write here.
_LAYERS = {
    **dict.fromkeys(("functional", "F", "ops"), "functions are operators, as in op.Relu(x), with op of ortpartial"),
    **dict.fromkeys(("optim", "optimizers", "Adam", "AdamW", "SGD", "RMSprop", "Adagrad"),
                    "write model.set_optimizer('adam'), or a learning rate such as ortpartial.LearningRateAdam(0.01)"),
    **dict.fromkeys(("init", "initializers"), "write nn.GlorotUniform() or its like as the initializer of a Parameter"),
    "Dense": "write nn.Linear(in_features, out_features)", "Conv2D": "write nn.Conv2d",
    "Input": "write nn.placeholder(['N', 4])", "Model": "write nn.Module",
    "BatchNormalization": "write nn.BatchNorm1d or 2d", "LayerNormalization": "write nn.LayerNorm",
    "MaxPooling2D": "write nn.MaxPool2d", "DataParallel": "write set_optimizer('adam', distributed=True)",
    "utils": "write set_optimizer('adam', gradient_clipping=1.0) to clip gradients",
    **dict.fromkeys(("losses", "BCELoss"), "write nn.Loss('log_loss') or another, within train_one_batch"),
}


def describe_layer(name: str, losses: Mapping[str, str]) -> str:
    """Advice about a name that `ortpartial.nn` does not have.

    Parameters
    ----------
    name : str
        The name, of a layer, a loss or a module of torch or Keras.
    losses : dict of str to str
        Losses by their names in other libraries, in lower case.

    Returns
    -------
    str
        The end of a sentence; empty where nothing suggests itself.

    Examples
    --------
    >>> describe_layer("MSELoss", {"mse": "'square_error'"})
    "write nn.Loss('square_error') within train_one_batch"
    """
    plain = name.lower().removesuffix("loss")
    if name.endswith("Loss") and plain in losses:
        return f"write nn.Loss({losses[plain]}) within train_one_batch"
    return _LAYERS.get(name, "")


class AnsweredAttributes:
    """A class that answers attributes of other libraries' objects with advice, in an AttributeError.

    Examples
    --------
    >>> class Training(AnsweredAttributes):
    ...     _habits = {"cuda": "write device='cuda'"}
    >>> Training().cuda
    Traceback (most recent call last):
        ...
    AttributeError: Training has no attribute 'cuda'; write device='cuda'.
    """

    #: By the attribute, what to write in its place, the end of a sentence.
    _habits: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # Type checkers know the attributes of today.
        def __getattr__(self, name: str) -> Any:
            if (advice := type(self)._habits.get(name)) is not None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; {advice}.")
            return object.__getattribute__(self, name)  # raises the error that it has raised
