"""Former names: settings, arguments and attributes of onnxcustom, the library before this, and today's names."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ortpartial.annotations import Function, Settings
from ortpartial.exceptions import ArgumentError, SettingError
from ortpartial.logs import logger

from .habits import AnsweredAttributes

__all__ = ["FORMER_ARGUMENTS", "FORMER_ATTRIBUTES", "FORMER_SETTINGS", "FormerAttributes", "FormerSetting",
           "accept_former_names", "accept_words", "advise", "find_former", "refuse_former_names", "rename_settings"]

Initializer = TypeVar("Initializer", bound=Callable[..., None])

_PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


def _rename(name: str) -> Callable[[Settings, object], None]:
    """A conversion to a setting of another name."""
    def rename(settings: Settings, value: object) -> None:
        if name in settings:
            raise SettingError(f"{name} is given twice, under another name as well.")
        settings[name] = value

    return rename


def _take_for_granted(settings: Settings, value: object) -> None:
    """The conversion of a setting that asks for standard behavior."""


def _enable_logging(settings: Settings, value: object) -> None:
    """Let the logger of the package pass on everything, to the handlers that the program has."""
    if value:
        logger.setLevel(logging.DEBUG)


def _read_providers(settings: Settings, providers: object) -> None:
    """The device of the first execution provider, or of another name."""
    device = _name_device(providers)
    if settings.setdefault("device", device) != device and not str(settings["device"]).startswith(f"{device}:"):
        raise SettingError(f"providers={providers!r} and device={settings['device']!r} are two devices; leave "
                           f"providers out.")


def _name_device(providers: Any) -> Any:
    if isinstance(providers, str) and providers not in _PROVIDERS:
        return providers.replace("gpu", "cuda")
    if isinstance(providers, str) or hasattr(providers, "type"):  # a torch.device, whose text is "cuda:1"
        return _PROVIDERS.get(str(providers), str(providers))
    first = next(iter(providers), "cpu")
    name, options = (first, {}) if isinstance(first, str) else first
    return (name, options) if options else _PROVIDERS.get(name, name)


def _number_device(settings: Settings, index: object) -> None:
    """The number of the device, which its name has today."""
    device = settings.get("device", "cpu")
    if device not in ("cuda", f"cuda:{index}"):
        raise SettingError(f"device_index={index!r} is not the number of device={device!r}; write "
                           f"device='cuda:{index}'.")
    settings["device"] = f"cuda:{index}"


@dataclass(frozen=True)
class FormerSetting:
    """A setting of former constructors.

    Parameters
    ----------
    advice : str
        Advice for today, the end of a sentence.
    convert : callable, optional
        Changes the settings of today by the value, where the name is an alias; without it the name is refused.
    default : object
        The value that asks for nothing.
    needs : str
        The setting of the classes that had this setting.
    removal : str
        The version that no longer takes it, where it is to go: it warns until then.
    """

    advice: str
    convert: Callable[[Settings, object], None] | None = None
    default: Any = None
    needs: str = "weights_to_train"
    removal: str = ""


_WEIGHTED = "every training takes weights of rows: fit(X, y, sample_weight)"

#: By name, in the order in which they are converted.
FORMER_SETTINGS: dict[str, FormerSetting] = {
    "model_onnx": FormerSetting("its name is model", _rename("model"), needs="model"),
    "onnx_model": FormerSetting("its name is model", _rename("model"), needs="model"),
    "input_names": FormerSetting("its name is inputs, those to differentiate by", _rename("inputs"), needs="inputs"),
    "providers": FormerSetting("write device='cpu', 'cuda' or 'cuda:<number>'", _read_providers, needs="device"),
    "device_index": FormerSetting("the number belongs to device, as in device='cuda:1'", _number_device, 0, "device"),
    "weight_name": FormerSetting(_WEIGHTED, _take_for_granted, needs="learning_loss"),
    "sample_weight_name": FormerSetting(_WEIGHTED, _take_for_granted, needs="learning_loss"),
    "debug": FormerSetting("inputs are always checked", _take_for_granted, False),
    "enable_logging": FormerSetting("set the level of the logger: logging.getLogger('ortpartial').setLevel('DEBUG')",
                                    _enable_logging, False),
    "loss_output_name": FormerSetting("the outputs are predictions, and learning_loss={output: loss} says which of "
                                      "them is trained; OrtGradientOptimizer trains an output that is the loss",
                                      default="loss", needs="learning_loss"),
    "training_optimizer_name": FormerSetting("write learning_rate=..., as in learning_rate='Adam'",
                                             default="SGDOptimizer", needs="learning_rate"),
    "saved_gradient": FormerSetting("gradient_model(model) is the gradient as a model, and save_onnx_graph(folder) "
                                    "writes the graphs of a training"),
    "output_names": FormerSetting("all outputs of real numbers are computed; give backward zeros for those that do not "
                                  "count", needs="inputs"),
    "class_name": FormerSetting("no class is made: forward and backward are methods of the object"),
    "provider_options": FormerSetting("write device=(provider, options), a pair of its name and a dict"),
    **dict.fromkeys(("sess_options", "session_options"), FormerSetting(
        "sessions choose theirs: threads by the cores that the process may use, as taskset sets them; load(model, "
        "custom_ops_library=...) registers operators", needs="device")),
    "run_options": FormerSetting("runs choose theirs; the setting timeout of an optimizer ends them"),
    "graph_builder_config": FormerSetting("weights_to_train and inputs say by what to differentiate, and "
                                          "gradient_model(model) writes the gradient"),
}

#: Settings under words of other libraries that are taken for today's.
SETTING_WORDS: dict[str, FormerSetting] = {
    "epochs": FormerSetting("its name is max_iter", _rename("max_iter"), needs="max_iter"),
    "exc": FormerSetting("its name is raise_on_divergence", _rename("raise_on_divergence"),
                         needs="raise_on_divergence", removal="0.3"),
}

_SGD = {
    "learning_rate": "write schedule='invscaling', 'optimal' or 'constant', or eta0=... for a number",
    "power_t": "write schedule=InvScalingSchedule(power_t=...)",
    "alpha": "write schedule=OptimalSchedule(alpha=...)",
}

#: By method or class and its argument, advice for today.
FORMER_ARGUMENTS: dict[tuple[str, str], str] = {
    **{("LearningRateSGD", name): advice for name, advice in _SGD.items()},
    **{("LearningRateSGDNesterov", name): advice for name, advice in _SGD.items()},
    ("NegLogLearningLoss", "eps"): "leave it out: the logarithm is finite for every score, and nothing is clipped",
    ("NegLogLearningLoss", "probability_function"): "leave it out: it is the sigmoid; the softmax belongs to "
                                                    "SoftmaxCrossEntropyLearningLoss",
    ("fit", "use_numpy"): "leave it out: arrays are read in place",
    ("set_state", "check_trained"): "leave it out: a state can be set before fit, too",
    ("set_state", "zero"): "give it zeros, as [0 * a for a in get_state(kind)]",
    ("get_trained_onnx", "model"): "it returns the graph of predictions; an optimizer of another graph takes the "
                                   "weights by set_state(get_state())",
    ("add_loss_output", "onnx"): "its name is model",
    ("add_loss_output", "score_name"): "write loss=..., as in loss='square_error'",
    ("add_loss_output", "loss_name"): "its name is loss_output_name",
    ("add_loss_output", "label_name"): "the input of the labels is called <output>_target",
    ("add_loss_output", "weight_name"): "write weighted=True: the input of the weights is called sample_weight",
    ("add_loss_output", "penalty"): "the penalty is a setting of the optimizer: learning_penalty=...",
    ("add_loss_output", "output_index"): "write loss={output: loss}",
    **{("add_loss_output", name): "write loss=ElasticLearningLoss(l1_weight=..., l2_weight=...)"
       for name in ("l1_weight", "l2_weight")},
    ("save_onnx_graph", "prefix"): "give each optimizer a folder of its own",
    ("save_onnx_graph", "suffix"): "give each optimizer a folder of its own",
}

#: By attribute, advice for today.
FORMER_ATTRIBUTES: dict[str, str] = {
    "needs_grad": "learning_rate.state names what is remembered of each weight",
    "build_onnx_function": "set_params builds the graphs anew",
    **dict.fromkeys(("train_session_", "train_function_", "new_instance", "cls_type_"),
                    "the object itself has the methods forward and backward"),
    **dict.fromkeys(("train_state_", "train_grad_state_", "get_initializer"), "get_state returns copies of its arrays"),
    "input_names_": "load(model).inputs has them by name",
    "output_names_": "load(model).outputs has them by name",
}


class FormerAttributes(AnsweredAttributes):
    """A class that answers a former attribute with advice, in an AttributeError."""

    _habits = FORMER_ATTRIBUTES


def find_former(names: Collection[str]) -> Mapping[str, FormerSetting]:
    """The former settings of a class that are none today.

    Parameters
    ----------
    names : collection of str
        The settings of the class.

    Returns
    -------
    dict of str to FormerSetting

    Examples
    --------
    >>> list(find_former(["model", "device"]))
    ['model_onnx', 'onnx_model', 'providers', 'device_index']
    """
    every = {**SETTING_WORDS, **FORMER_SETTINGS}
    return {n: former for n, former in every.items() if former.needs in names and n not in names}


def advise(owner: str, name: str, names: Collection[str]) -> str:
    """Advice in place of a former setting or argument.

    Parameters
    ----------
    owner : str
        The class or method.
    name : str
        The name that it does not have.
    names : collection of str
        The names that it has.

    Returns
    -------
    str
        The end of a sentence; empty where the name is no former name.

    Examples
    --------
    >>> advise("LearningRateSGD", "power_t", ["eta0", "schedule"])
    'write schedule=InvScalingSchedule(power_t=...)'
    """
    if advice := FORMER_ARGUMENTS.get((owner, name)):
        return advice
    former = find_former(names).get(name)
    return former.advice if former else ""


def accept_former_names(initializer: Initializer) -> Initializer:
    """Decorate a constructor, so that it takes former settings as well.

    They are no parameters: `inspect.signature`, ``get_params`` and ``clone`` know the settings of today alone.

    Parameters
    ----------
    initializer : callable
        The method ``__init__`` of a class.

    Returns
    -------
    callable

    Examples
    --------
    >>> class Layer:
    ...     @accept_former_names
    ...     def __init__(self, model, *, device="cpu"):
    ...         self.device = device
    >>> Layer(b"", device="cuda", device_index=1).device
    'cuda:1'
    """
    former = find_former(list(inspect.signature(initializer).parameters))

    @functools.wraps(initializer)
    def initialize(self: object, *args: object, **settings: object) -> None:
        settings = rename_settings(type(self).__name__, settings, former)
        initializer(self, *args, **settings)

    vars(initialize)["former"] = frozenset(former)
    return cast(Initializer, initialize)


def accept_words(**words: str) -> Callable[[Function], Function]:
    """Decorate a function, so that it takes arguments by the words of another library as well.

    They are no parameters: `inspect.signature` knows the names of today alone.

    Parameters
    ----------
    **words : str
        By the word of the other library, the name of the argument here.

    Returns
    -------
    callable
        The decorator.

    Examples
    --------
    >>> @accept_words(r="rank")
    ... def add(model, rank=8):
    ...     return rank
    >>> add(b"", r=2)
    2
    """
    def decorate(function: Function) -> Function:
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def renamed(*args: object, **keywords: object) -> Any:
            for word in words.keys() & keywords.keys():
                if words[word] in keywords or words[word] in names[: len(args)]:
                    raise ArgumentError(f"{function.__name__} takes {words[word]!r}, which {word!r} is another word "
                                        f"for; give one of them.")
                keywords[words[word]] = keywords.pop(word)
            return function(*args, **keywords)

        return cast(Function, renamed)

    return decorate


def refuse_former_names(function: Function) -> Function:
    """Decorate a function, so that a former argument is answered with advice.

    Parameters
    ----------
    function : callable
        The function.

    Returns
    -------
    callable

    Examples
    --------
    >>> @refuse_former_names
    ... def add_loss_output(model, loss="square_error"):
    ...     pass
    >>> add_loss_output(b"", loss_name="loss")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ArgumentError: add_loss_output takes no 'loss_name'; its name is loss_output_name.
    """
    @functools.wraps(function)
    def checked(*args: object, **keywords: object) -> Any:
        for name in keywords:
            if advice := FORMER_ARGUMENTS.get((function.__name__, name)):
                raise ArgumentError(f"{function.__name__} takes no {name!r}; {advice}.")
        return function(*args, **keywords)

    return cast(Function, checked)


def rename_settings(owner: str, settings: Settings, former: Mapping[str, FormerSetting] = SETTING_WORDS) -> Settings:
    """The settings by their names of today, of which some may have former names.

    Parameters
    ----------
    owner : str
        The class that has them.
    settings : dict of str to object
        Settings by names of today and former ones.
    former : dict of str to FormerSetting
        The former settings, by default the words for one of today.

    Returns
    -------
    dict of str to object

    Warns
    -----
    FutureWarning
        A name is to go: the warning tells the version, and the name of today.

    Examples
    --------
    >>> rename_settings("Layer", {"epochs": 3})
    {'max_iter': 3}
    """
    if former.keys().isdisjoint(settings):
        return settings
    today = {n: v for n, v in settings.items() if n not in former}
    for name, setting in former.items():
        value = settings.get(name, setting.default)
        if value is None or value == setting.default:
            continue
        if setting.convert is None:
            raise ArgumentError(f"{owner} has no setting {name!r}; {setting.advice}.")
        if setting.removal:
            # The level of a constructor's or a method's caller.
            warnings.warn(f"{owner}: {name!r} is a former name of a setting, and goes in version {setting.removal}; "
                          f"{setting.advice}.", FutureWarning, stacklevel=3)
        setting.convert(today, value)
    return today
