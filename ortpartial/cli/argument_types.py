"""Types of argparse that have no public names."""

from __future__ import annotations

import argparse
from typing import TypeAlias

__all__ = ["Commands", "OptionGroup"]

#: The object that commands are added to.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: An object that options are added to: a command, or a group of its options.
OptionGroup: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"
