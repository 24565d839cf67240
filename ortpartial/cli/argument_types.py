"""Types of argparse that have no public names."""

from __future__ import annotations

import argparse
from typing import TypeAlias

__all__ = ["Commands", "OptionGroup"]

#: What a command is added to.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: What options are added to: a command, or a group of its options.
OptionGroup: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"
