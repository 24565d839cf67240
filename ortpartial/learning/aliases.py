"""Aliases: names of losses, optimizers, penalties, schedules and settings in other libraries, for "did you mean"."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ortpartial.annotations import Formula
from ortpartial.exceptions import ArgumentError

from .former_names import advise

__all__ = ["CHOICES", "NamedSettings", "answer_keywords", "check_keywords", "describe_unknown", "suggest"]

Instance = TypeVar("Instance", bound="NamedSettings")
Method = TypeVar("Method", bound=Formula)

#: By the setting, the names of its choices in other libraries: in lower case, without signs between words.
CHOICES: dict[str, dict[str, str]] = {
    "learning_loss": {
        **dict.fromkeys(("mse", "l2", "rmse", "meansquarederror", "leastsquares", "regression"), "'square_error'"),
        **dict.fromkeys(("mae", "l1", "meanabsoluteerror"), "'absolute_error'"),
        **dict.fromkeys(("ce", "crossentropy", "softmax", "nll", "multiclass", "categoricalcrossentropy",
                         "sparsecategoricalcrossentropy"), "'softmax_cross_entropy'"),
        **dict.fromkeys(("bce", "binarycrossentropy", "bcewithlogits", "logistic", "logit", "sigmoid", "deviance"),
                        "'log_loss'"),
        **dict.fromkeys(("binaryfocalcrossentropy", "sigmoidfocal"), "'focal'"),
        **dict.fromkeys(("causal", "causallm", "clm", "forcausallm", "lm", "languagemodel", "nexttokenprediction"),
                        "'next_token'"),
        "categoricalfocalcrossentropy": "'softmax_focal'",
        "smoothl1": "'huber'", "svm": "'hinge'", "poissonnll": "'poisson'",
    },
    "learning_rate": {
        **dict.fromkeys(("momentum", "sgdmomentum"), "LearningRateSGDNesterov(nesterov=False)"),
        **dict.fromkeys(("nag", "sgdn", "nesterovmomentum"), "'SGDNesterov'"),
        **dict.fromkeys(("gd", "gradientdescent", "constant"), "'SGD'"),
        **{name: f"LearningRateSGD(0.01, schedule={name!r})" for name in ("invscaling", "optimal")},
        "adaptive": "LearningRateSGD(0.01, schedule='plateau')",
        "rms": "'RMSProp'", "sgdw": "LearningRateSGD(weight_decay=0.01)", "fusedlamb": "'LAMB'",
        **dict.fromkeys(("adamwtorch", "adamwhf", "fusedadam"), "'AdamW'"),
    },
    "learning_penalty": {
        **dict.fromkeys(("l2", "ridge", "weightdecay"), "ElasticLearningPenalty(l2=0.0001)"),
        **dict.fromkeys(("l1", "lasso"), "ElasticLearningPenalty(l1=0.0001)"),
        **dict.fromkeys(("elasticnet", "l1l2"), "ElasticLearningPenalty(l1=0.0001, l2=0.0001)"),
    },
    "averaging": {
        **dict.fromkeys(("exponential", "exponentialmovingaverage", "emamodel", "polyak"), "'ema'"),
        **dict.fromkeys(("stochastic", "averagedmodel", "mean"), "'swa'"),
    },
    "schedule": {
        **dict.fromkeys(("cosineannealing", "cosinedecay", "cosineannealinglr"), "'cosine'"),
        **dict.fromkeys(("sgdr", "cosineannealingwarmrestarts", "cosinewithrestarts", "cosinewithhardrestarts"),
                        "'cosine_restarts'"),
        **dict.fromkeys(("polynomiallr", "polynomialdecay"), "'polynomial'"), "reducelronplateau": "'plateau'",
        **dict.fromkeys(("steplr", "exponential"), "'step'"), "1cycle": "'onecycle'",
        **dict.fromkeys(("none", "fixed"), "'constant'"),
    },
    "initializer": {
        **dict.fromkeys(("xavieruniform", "glorot", "xavier"), "'glorot_uniform'"), "xaviernormal": "'glorot_normal'",
        **dict.fromkeys(("kaiminguniform", "he", "kaiming"), "'he_uniform'"), "kaimingnormal": "'he_normal'",
        **dict.fromkeys(("lecun",), "'lecun_uniform'"), **dict.fromkeys(("zero", "0"), "'zeros'"),
        **dict.fromkeys(("one", "1"), "'ones'"), "randomuniform": "'uniform'", "truncnormal": "'truncated_normal'",
        **dict.fromkeys(("randomnormal", "gaussian"), "'normal'"),
    },
}

#: The names of settings in other libraries, with their names here: the first that a class has is meant.
SETTINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "rate", "learningrate", "learningrateinit", "stepsize", "eta"), ("eta0", "learning_rate")),
    **dict.fromkeys(("optimizer", "optim", "solver", "momentum", "eta0", "schedule", "scheduler", "lrscheduler"),
                    ("schedule", "learning_rate")),
    **dict.fromkeys(("epochs", "nepochs", "niter", "numepochs", "numtrainepochs", "maxepochs", "maxiter"),
                    ("max_iter", "epochs")),
    **dict.fromkeys(("validationdata", "evaldata", "validationsplit", "validationfraction", "valdata", "evalset",
                     "xvalid"), ("X_val", "validation_fraction")),
    **dict.fromkeys(("loss", "criterion", "lossfn", "objective"), ("learning_loss", "loss")),
    **dict.fromkeys(("weights", "params", "parameters", "trainable"), ("weights_to_train",)),
    **dict.fromkeys(("penalty", "alpha", "l1", "l2", "regularization"), ("l1", "l1_weight", "learning_penalty")),
    **dict.fromkeys(("bs", "minibatchsize"), ("batch_size",)),
    **dict.fromkeys(("seed", "randomseed", "rng"), ("random_state",)),
    **dict.fromkeys(("weightdecay",), ("learning_penalty", "alpha")),
    **dict.fromkeys(("clipnorm", "globalclipnorm", "clipvalue", "maxgradnorm", "gradclip", "gradientclipval", "clip"),
                    ("gradient_clipping",)),
    **dict.fromkeys(("accumulategradbatches", "gradientaccumulationsteps", "accumulationsteps"), ("accumulate",)),
    **dict.fromkeys(("frozen", "freezelayers", "unfreeze", "requiresgrad"), ("freeze",)),
    **dict.fromkeys(("lrmult", "lrmultipliers", "paramgroups", "layerdecay", "llrd"), ("rate_factors",)),
    **dict.fromkeys(("ema", "swa", "useema", "weightaveraging"), ("averaging",)),
    **dict.fromkeys(("fp16", "amp", "dtype"), ("precision",)), "cuda": ("device",), "gpu": ("device",),
    "eps": ("epsilon",), "rho": ("alpha",), "gamma": ("factor",), "power": ("power_t",),
    **dict.fromkeys(("etamin", "minlr", "lrend"), ("minimum", "min_rate")),
    "tmult": ("factor",), "numcycles": ("cycles",), "beta2decay": ("decay_power",),
    **dict.fromkeys(("restorebestweights", "loadbest"), ("restore_best",)), "niternochange": ("patience",),
    **dict.fromkeys(("tol", "mindelta"), ("min_delta", "threshold")),
    **dict.fromkeys(("filepath", "dirpath", "dirname", "directory", "filename"), ("folder", "path")),
    **dict.fromkeys(("savetopk", "savetotallimit", "maxtokeep", "nsaved"), ("keep",)),
    **dict.fromkeys(("everynepochs", "savefreq", "savesteps"), ("every",)), "traintimeinterval": ("seconds",),
    **dict.fromkeys(("a", "minval"), ("low", "negative_slope")), "b": ("high",), "maxval": ("high",),
    **dict.fromkeys(("stddev", "scale", "sigma"), ("std",)), **dict.fromkeys(("val", "fill"), ("value",)),
    "beta": ("beta1", "delta"), "betas": ("beta1",),
    **dict.fromkeys(("totalsteps", "tmax", "t0", "steps", "warmup", "warmupsteps", "epoch"), ("n", "max_iter")),
}


#: By the class that has no such setting, and the setting, the object that has it.
ELSEWHERE = dict.fromkeys([(f"LearningRate{name}", "weightdecay") for name in ("Adagrad", "Adam", "RMSProp")],
                          "LearningRateAdamW(weight_decay=0.01)")
ELSEWHERE |= dict.fromkeys([("OrtGradientOptimizer", name) for name in ("learningloss", "loss", "criterion")],
                           "add_loss_output(model, loss=...), which writes it into the model")


def normalize(name: str) -> str:
    """A name in lower case, without the signs between its words."""
    return "".join(c for c in name.lower() if c.isalnum())


def suggest(name: str, names: Iterable[str], aliases: Mapping[str, str]) -> str:
    """Suggest the name that is probably meant by an unknown name.

    Parameters
    ----------
    name : str
        The unknown name.
    names : iterable of str
        The known names.
    aliases : dict of str to str
        Our names by names of other libraries, in lower case and without signs between words.

    Returns
    -------
    str
        As Python code; empty where nothing is close.

    Examples
    --------
    >>> suggest("cross-entropy", ["log_loss", "cross_entropy"], {}), suggest("MSELoss", [], {"mse": "'square_error'"})
    ("'cross_entropy'", "'square_error'")
    """
    # Of two names that differ in signs, the first is meant.
    plain, known = normalize(name), {normalize(n): repr(n) for n in reversed(list(names))}
    for key in (plain, plain.removesuffix("loss"), plain.removesuffix("lr"), plain.removesuffix("optimizer")):
        if key in known or key in aliases:
            return known.get(key) or aliases[key]
    close = difflib.get_close_matches(plain, known, n=1)
    return known[close[0]] if close else ""


class NamedSettings:
    """A class whose constructor answers wrong arguments with the setting that is probably meant."""

    def __new__(cls: type[Instance], *args: object, **settings: object) -> Instance:
        if args or settings:
            cls._check_arguments(args, settings)
        return super().__new__(cls)

    @classmethod
    def _check_arguments(cls, args: Sequence[object], settings: Mapping[str, object]) -> None:
        """Raise TypeError for a setting that does not exist, or that is to be given by name."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        names = [p.name for p in parameters]
        unknown = [n for n in settings if n not in names and n not in getattr(cls.__init__, "former", ())]
        if unknown and all(p.kind is not p.VAR_KEYWORD for p in parameters):
            raise ArgumentError(describe_unknown(unknown[0], cls.__name__, names))
        first = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(args) > len(first) and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            example = f", as in {names[len(first)]}=..." if len(names) > len(first) else ""
            raise ArgumentError(f"{cls.__name__} takes {' and '.join(first) or 'nothing'} without a name, and "
                            f"{args[len(first)]!r} is one more; name its setting{example}.")


def check_keywords(*unread: str) -> Callable[[Method], Method]:
    """Decorate a method, so that a keyword which is a setting of its object is answered with how to give it.

    Parameters
    ----------
    *unread : str
        Settings that the method does not read, so that they are not meant.

    Returns
    -------
    callable
        The decorator of a method of an object with `get_params`.

    Examples
    --------
    >>> class Estimator:
    ...     def get_params(self):
    ...         return {"max_iter": 1}
    ...     @check_keywords()
    ...     def fit(self, X):
    ...         pass
    >>> Estimator().fit([], epochs=3)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ArgumentError: fit takes no 'epochs'; did you mean the setting 'max_iter', as in ...
    """
    def decorate(method: Method) -> Method:
        names = list(inspect.signature(method).parameters)

        @functools.wraps(method)
        def checked(self: Any, *args: object, **keywords: object) -> Any:
            if unknown := [n for n in keywords if n not in names]:
                if advice := advise(method.__name__, unknown[0], names):
                    raise ArgumentError(f"{method.__name__} takes no {unknown[0]!r}; {advice}.")
                settings = [n for n in self.get_params() if n not in unread]
                meant = suggest(unknown[0], settings, list_aliases(settings)).strip("'")
                hint = f"did you mean the setting {meant!r}, as in set_params({meant}=...)?" if meant else (
                    f"its arguments are {', '.join(names[1:])}.")
                raise ArgumentError(f"{method.__name__} takes no {unknown[0]!r}; {hint}")
            return method(self, *args, **keywords)

        return cast(Method, checked)

    return decorate


def answer_keywords(**advice: str) -> Callable[[Method], Method]:
    """Decorate a function or a method, so that an unknown keyword is answered with the keyword that is meant.

    Parameters
    ----------
    **advice : str
        By a keyword of another library, in lower case and without signs, the advice, where no keyword here is meant.

    Returns
    -------
    callable
        The decorator.

    Examples
    --------
    >>> @answer_keywords(lr="give set_optimizer('adam') the step size")
    ... def fit(X, *, epochs=10):
    ...     pass
    >>> fit([], max_iter=3)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ArgumentError: fit takes no 'max_iter'; did you mean 'epochs'?
    """
    def decorate(method: Method) -> Method:
        parameters = inspect.signature(method).parameters
        names = [n for n in parameters if n != "self"]
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

        @functools.wraps(method)
        def checked(*args: object, **keywords: object) -> Any:
            is_constructor = method.__name__ == "__init__"
            for n in keywords:
                owner = type(args[0]).__name__ if is_constructor else method.__name__
                if hint := advice.get(normalize(n)) or (advise(owner, n, names) if is_constructor else ""):
                    raise ArgumentError(f"{owner} takes no {n!r}; {hint}.")
                if n not in names and not takes_all:
                    meant = suggest(n, names, list_aliases(names))
                    hint = f"did you mean {meant}?" if meant else f"its arguments are {', '.join(names)}."
                    raise ArgumentError(f"{owner} takes no {n!r}; {hint}")
            return method(*args, **keywords)

        return cast(Method, checked)

    return decorate


def list_aliases(names: Iterable[str]) -> dict[str, str]:
    """Settings by their names in other libraries, where these settings exist."""
    names = frozenset(names)
    return {alias: repr(n) for alias, choices in SETTINGS.items() for n in reversed(choices) if n in names}


def describe_unknown(name: str, owner: str, names: Iterable[str]) -> str:
    """A sentence about a setting that does not exist.

    Parameters
    ----------
    name : str
        The name of the setting.
    owner : str
        The object that has no such setting.
    names : iterable of str
        The settings that it has.

    Returns
    -------
    str

    Examples
    --------
    >>> describe_unknown("lr", "LearningRateSGD", ["eta0", "schedule"])
    "LearningRateSGD has no setting 'lr'; did you mean 'eta0'?"
    >>> describe_unknown("size", "LearningRateSGD", ["eta0", "schedule"])
    "LearningRateSGD has no setting 'size'; its settings are eta0, schedule."
    """
    names = list(names)
    if advice := advise(owner, name, names):
        return f"{owner} has no setting {name!r}; {advice}."
    guess = ELSEWHERE.get((owner, normalize(name))) or suggest(name, names, list_aliases(names))
    hint = f"did you mean {guess}?" if guess else f"its settings are {', '.join(names) or 'none'}."
    return f"{owner} has no setting {name!r}; {hint}"
