"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_output_option", "add_straight_through_option", "add_weights_option"]


def add_weights_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--weights", nargs="+", metavar="NAME", help="initializers to train; default: all trainable")


def add_output_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", type=Path, required=True, help="path of the model to write")


def add_straight_through_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--straight-through", action="store_true", default=None,
                         help="pass gradients through the rounding of a quantization")
