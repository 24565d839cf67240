"""The command `lora`: train an adapter of a language model on texts or token ids."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from onnx import ModelProto

from ortpartial.adapters import add_dora, add_ia3, add_lora, remove_adapter, save_adapter
from ortpartial.checks import check_count
from ortpartial.estimator import OrtGradientForwardBackwardOptimizer, PaddedBatches
from ortpartial.exceptions import ConvergenceError, DataError, SettingError
from ortpartial.learning import NextTokenLearningLoss
from ortpartial.model import read, read_adapter, read_regular, write_files
from ortpartial.runtime import check_adapter_files

from . import fitting
from .component_specs import parse_clipping, parse_rate
from .console import paint, print_json, print_line
from .interruption import Interruption
from .options import Commands, add_command, add_divergence_option, check_output
from .token_rows import Row, TextReader, read_texts

__all__ = ["add_lora_command"]

#: How long rows are at most, where a model takes longer ones, and nobody has said so.
_LENGTH = 512

#: The optimizers of the methods: factors want larger steps.
_RATES = {"lora": "adamw:2e-4", "dora": "adamw:2e-4", "ia3": "adamw:5e-3"}

#: The files beside a model of onnxruntime-genai that it needs, and other small ones.
_BESIDE = (".json", ".jinja", ".txt", ".model")

_DESCRIPTION = """\
DATA is a .jsonl file, with a line for each text:
  {"text": "All of it is learned."}
  {"prompt": "This is not. ", "completion": "This is."}
  {"messages": [...]}, the last of which is learned, by the model's template
  {"input_ids": [5, 9, 17]}, token ids; or [5, 9, 17] alone
or a .txt file of a text in each line, or an .npy file of token ids. Texts need
tokenizer.json beside the model, and end with the token at which it stops.

The base stays as it is, also in 4 bits. --base writes it once with inputs for
adapters, beside which onnxruntime and onnxruntime-genai load FILE.onnx_adapter;
other adapters for the same targets swap on it. FILE.safetensors is in the form
of PEFT. Ctrl-C ends a training with a checkpoint, and prints how to go on."""

_EXAMPLES = """
lora base/model.onnx data.jsonl --rank 8 -o my.onnx_adapter
lora base/model.onnx data.jsonl --target attention \\
    --rate adamw:1e-3 --base with_adapters.onnx -o other.onnx_adapter
"""


def add_lora_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        What `argparse.ArgumentParser.add_subparsers` returned.
    """
    command = add_command(commands, "lora", run_lora, "Train an adapter of a language model on texts.",
                          usage="MODEL DATA -o FILE [--rank N] [option ...]", description=_DESCRIPTION,
                          examples=_EXAMPLES, model="path of a language model, such as onnxruntime-genai's builder "
                                                    "writes it")
    command.add_argument("data", type=Path, metavar="DATA", help="texts or token ids: .jsonl, .txt or .npy")
    what = command.add_argument_group("adapter")
    what.add_argument("--method", choices=tuple(_RATES), default="lora", help="default: lora")
    what.add_argument("--target", "--target-modules", action="append", metavar="PATTERN",
                      help="products to adapt, by name or pattern, linear or attention; may be given several times; "
                           "default: linear, which is all but the head")
    what.add_argument("--rank", "--r", type=int, default=8, metavar="N", help="columns of A, rows of B; default: 8")
    what.add_argument("--alpha", "--lora-alpha", type=float, default=16,
                      help="A and B are multiplied by alpha / rank; default: 16")
    what.add_argument("--dropout", type=float, default=0.0, metavar="SHARE", help="share of what A reads that is "
                                                                                  "dropped; default: 0")
    how = command.add_argument_group("training")
    how.add_argument("--epochs", type=int, default=3, metavar="N", help="how often to go over the texts; default: 3")
    how.add_argument("--batch-size", type=int, default=8, metavar="N", help="texts of a step; default: 8")
    how.add_argument("--rate", metavar="RATE", help="the optimizer, with its first step size and schedule, as for "
                                                    "train; default: adamw:2e-4, of ia3 adamw:5e-3")
    how.add_argument("--max-length", type=int, metavar="N", help="tokens of a text that are kept; default: what the "
                                                                 f"model takes, {_LENGTH} at most")
    how.add_argument("--clip", default="1", metavar="NORM", help="the largest norm of all gradients, or value:0.5; "
                                                                 "default: 1")
    how.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches whose gradients are added up for "
                                                                            "a step; default: 1")
    how.add_argument("--engine", choices=("auto", "step", "epoch", "native"), default="auto",
                     help="what runs the steps; default: the fastest that can")
    add_divergence_option(how)
    how.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all that is drawn; default: 0")
    output = command.add_argument_group("output")
    output.add_argument("-o", "--output", "--out", type=Path, required=True, metavar="FILE",
                        help="path of the adapter to write: .onnx_adapter or .safetensors")
    output.add_argument("--base", type=Path, metavar="FILE", help="path of the base to write, which takes adapters")
    fitting.add_fitting_options(output)


def run_lora(args: argparse.Namespace) -> int:
    """Train an adapter, and write it."""
    _check_options(args)
    folder = fitting.find_folder(args)
    fitting.check_folder(folder, args)
    rows = _read_rows(args)
    optimizer = _make_optimizer(args, folder)
    batches = PaddedBatches([row.ids for row in rows], [row.labels for row in rows], args.batch_size,
                            random_state=args.seed, with_mask="attention_mask" in optimizer.training.spec.model.inputs)
    start = perf_counter()
    try:
        optimizer.fit(batches, resume=folder if args.resume else None)
        fitting.check_trained(optimizer)
    except KeyboardInterrupt:
        fitting.print_interruption(args, optimizer, folder)
        return 130
    except ConvergenceError:
        fitting.remove_checkpoints(folder, args)
        raise
    except DataError:
        if not args.resume:  # Checkpoints of a training before stay.
            fitting.remove_checkpoints(folder, args)
        raise
    with Interruption() as interruption:  # The work below is finished even after Ctrl-C.
        interruption.is_raised = False
        save_adapter(optimizer, args.output, args.base)
        if args.base is not None:
            _copy_settings(args.model, args.base)
        fitting.remove_checkpoints(folder, args)
        _print_end(args, optimizer, len(rows), perf_counter() - start)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Refuse what cannot be written, and numbers out of range, before any work is done."""
    if not args.model.is_file():  # Said before the tokenizer is looked for beside it.
        read(args.model)
    if args.output.suffix not in (".onnx_adapter", ".safetensors"):
        raise SettingError(f"--output is to end in .onnx_adapter or .safetensors, not {args.output.suffix!r}.")
    check_output(args.output, args.force, "the adapter")
    if args.output.suffix == ".onnx_adapter":
        check_adapter_files()
    if args.base is not None:
        check_output(args.base, args.force, "the base")
        if args.base.resolve() == args.output.resolve():
            raise SettingError(f"--output and --base are both {str(args.base)!r}; give the base a name of its own.")
    for name in ("epochs", "batch_size", "accumulate", "max_length"):
        if getattr(args, name) is not None:
            check_count(f"--{name.replace('_', '-')}", getattr(args, name))


def _read_rows(args: argparse.Namespace) -> list[Row]:
    """The rows of the data; those that are not taken as they are, are said."""
    reader = TextReader(args.model.parent)
    length = args.max_length or min(_LENGTH, int(reader.settings.get("context_length") or _LENGTH))
    rows, cut, empty = read_texts(args.data, reader, length)
    if cut and not args.quiet:
        print_line(f"cut to {length} tokens: {cut} of {len(rows) + empty} rows", sys.stderr)
    if empty and not args.quiet:
        print_line(f"left out, as nothing in them is learned: {empty} of {len(rows) + empty} rows", sys.stderr)
    return rows


def _make_optimizer(args: argparse.Namespace, folder: Path) -> OrtGradientForwardBackwardOptimizer:
    """The optimizer of the options."""
    adapted = _add_adapter(args, args.target or ["linear"])
    adapter = read_adapter(adapted)
    if adapter is not None and not args.quiet:
        names = set(adapter.weights)
        count = sum(math.prod(t.dims) for t in adapted.graph.initializer if t.name in names)
        print_line(f"{len(adapter.targets)} products adapted by {count:,} numbers", sys.stderr)
    return OrtGradientForwardBackwardOptimizer(
        adapted, "adapter", learning_loss=NextTokenLearningLoss(),
        learning_rate=parse_rate(args.rate or _RATES[args.method]), max_iter=args.epochs, random_state=args.seed,
        train_mode=args.dropout > 0, gradient_clipping=parse_clipping(args.clip), accumulate=args.accumulate,
        engine=args.engine, callbacks=fitting.make_callbacks(args, folder), verbose=int(fitting.has_bar(args)),
        raise_on_divergence=args.raise_on_divergence)


def _add_adapter(args: argparse.Namespace, targets: Sequence[str]) -> ModelProto:
    """The model with a new adapter in place of any other."""
    base = remove_adapter(args.model)
    if args.method == "ia3":
        return add_ia3(base, targets)
    add = add_dora if args.method == "dora" else add_lora
    return add(base, targets, args.rank, args.alpha, args.dropout, args.seed)


def _copy_settings(model: Path, base: Path) -> None:
    """Put what onnxruntime-genai needs beside the base, where it is not there."""
    if not (model.parent / "genai_config.json").is_file() or model.name != base.name:
        return
    contents = {file.name: read_regular(file) for file in sorted(model.parent.iterdir())
                if file.suffix in _BESIDE and not (base.parent / file.name).exists()}
    write_files(contents, base.parent)


def _print_end(args: argparse.Namespace, optimizer: OrtGradientForwardBackwardOptimizer, rows: int,
               seconds: float) -> None:
    """Print where the adapter is."""
    last = optimizer.history_[-1]
    if args.json:
        print_json({"event": "end", "adapter": args.output, **({"base": args.base} if args.base else {}),
                    "epochs": optimizer.n_iter_, "rows": rows, **{n: last[n] for n in fitting.list_losses(last)},
                    "seconds": seconds})
    elif not args.quiet:
        print_line(f"{paint(str(args.output), 'bold')}: the adapter, {fitting.format_losses(last)}")
        if args.base is not None:
            print_line(f"{paint(str(args.base), 'bold')}: the base, which takes it")
