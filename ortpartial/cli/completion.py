"""The command `completion`: a script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortpartial.exceptions import RuntimeMissingError
from ortpartial.installation import install_command

from .options import Commands

__all__ = ["add_completion_command"]

_EXAMPLES = """\
examples:
  eval "$(ortpartial completion bash)"         # in ~/.bashrc
  eval "$(ortpartial completion zsh)"          # in ~/.zshrc, after compinit
  ortpartial completion fish | source          # in ~/.config/fish/config.fish"""


def add_completion_command(commands: Commands, program: argparse.ArgumentParser) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    program : argparse.ArgumentParser
        The parser of all commands, whose options are completed.
    """
    summary = "Print what completes commands in a shell."
    command = commands.add_parser("completion", help=summary, description=summary, epilog=_EXAMPLES,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    command.set_defaults(run=lambda args: _run_completion(args, program), custom_ops=None)


def _run_completion(args: argparse.Namespace, program: argparse.ArgumentParser) -> int:
    """Print the script of a shell, which shtab writes; none starts Python when a key is pressed."""
    try:
        import shtab
    except ImportError:
        raise RuntimeMissingError("shtab, which writes completions of shells, is not installed: run "
                                  f"{install_command('cli')}.") from None
    _complete_files(program, shtab.FILE)
    print(shtab.complete(program, shell=args.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser, files: object) -> None:
    """Let paths be completed as files, in all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, files)
        elif action.type is Path:
            action.complete = files  # type: ignore[attr-defined]
