"""Habits: options of other programs, and our options in their place."""

from __future__ import annotations

import argparse
import difflib

__all__ = ["describe_option"]

#: Options of other programs, without signs, and our options with an example.
_HABITS: dict[str, str] = {
    **dict.fromkeys(("lr", "learningrate", "learningrateinit", "eta0", "stepsize", "optimizer", "optim", "solver"),
                    "--rate adam:1e-3"),
    **dict.fromkeys(("scheduler", "lrscheduler", "lrschedulertype", "schedule"), "--rate adam:1e-3:cosine"),
    **dict.fromkeys(("weightdecay", "wd"), "--rate adamw:1e-3:weight_decay=0.01"),
    **dict.fromkeys(("l1", "l2", "regularization"), "--penalty l2:1e-4"),
    **dict.fromkeys(("maxiter", "numepochs", "nepochs", "maxepochs", "epoch", "iterations", "numtrainepochs"),
                    "--epochs 20"),
    **dict.fromkeys(("patience", "earlystop", "earlystoppingpatience", "niternochange"), "--early-stopping 5"),
    **dict.fromkeys(("batch", "bs", "perdevicetrainbatchsize", "minibatchsize"), "--batch-size 32"),
    **dict.fromkeys(("randomstate", "randomseed", "rng"), "--seed 0"),
    **dict.fromkeys(("gpu", "cuda", "gpus"), "--device cuda"),
    **dict.fromkeys(("label", "labels", "y", "labelcolumn", "targetcolumn"), "--target COLUMN"),
    **dict.fromkeys(("val", "valsplit", "validationsplit", "validationfraction", "testsize", "valdata", "evaldata"),
                    "--validation 0.1"),
    **dict.fromkeys(("fp16", "half", "amp", "dtype"), "--precision float16"), "bf16": "--precision bfloat16",
    **dict.fromkeys(("maxgradnorm", "gradclip", "clipnorm", "gradientclipval"), "--clip 1"),
    **dict.fromkeys(("gradientaccumulationsteps", "accumulategradbatches"), "--accumulate 4"),
    **dict.fromkeys(("criterion", "lossfn", "objective"), "--loss square"),
    **dict.fromkeys(("metric", "scoring"), "--metrics accuracy"),
    **dict.fromkeys(("outputdir", "outdir", "save", "savepath"), "--output FILE"),
    **dict.fromkeys(("ema", "swa"), "--average ema"),
    **dict.fromkeys(("lorar", "lorarank"), "--rank 8"), "loradropout": "--dropout 0.1",
    **dict.fromkeys(("maxlen", "maxseqlength", "maxseqlen", "blocksize"), "--max-length 512"),
    **dict.fromkeys(("trainable", "weightstotrain", "params"), "--weights NAME"), "frozen": "--freeze NAME",
    **dict.fromkeys(("overwrite", "yes"), "--force"), "silent": "--quiet",
    **dict.fromkeys(("resumefromcheckpoint", "ckptpath"), "--resume"),
}


def describe_option(word: str, parser: argparse.ArgumentParser) -> str:
    """A sentence about a word that a command does not take.

    Parameters
    ----------
    word : str
        The word.
    parser : argparse.ArgumentParser
        That of the command.

    Returns
    -------
    str

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--rate")
    >>> describe_option("--lr", parser), describe_option("--rats=3", parser)
    ('unknown option --lr; write --rate adam:1e-3', 'unknown option --rats; did you mean --rate?')
    """
    name = word.partition("=")[0]
    if not name.startswith("-"):
        return f"one word too many: {word!r}; --help lists the arguments"
    options = [o for action in parser._actions for o in action.option_strings if o.startswith("--")]
    plain = "".join(c for c in name.lower() if c.isalnum())
    by_plain = {"".join(c for c in o if c.isalnum()): o for o in options}
    meant = _HABITS.get(plain, "")
    if meant and meant.split()[0] in options:
        return f"unknown option {name}; write {meant}"
    close = by_plain.get(plain) or next((by_plain[c] for c in difflib.get_close_matches(plain, by_plain, 1, 0.7)), "")
    return f"unknown option {name}; did you mean {close}?" if close else f"unknown option {name}; --help lists them"
