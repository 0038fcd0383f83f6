"""`hpckit completion`: prints the lines that enable completion of hpckit's words in a shell."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode

from hpckit.context import Context

_IN_ORDER = "$([[ ${BASH_VERSINFO[0]:-0}${BASH_VERSINFO[1]:-0} -ge 44 ]] && echo -o nosort)"
"""Newest first, if bash can keep the given order (from 4.4)."""

EPILOG = """\
put one of these into the shell's own file:
  ~/.bashrc                    eval "$(hpckit completion bash)"
  ~/.zshrc, below compinit     eval "$(hpckit completion zsh)"
  ~/.config/fish/config.fish   hpckit completion fish | source
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the lines; always returns 0."""
    code = shellcode(
        ["hpckit"],
        shell=arguments.shell,
        complete_arguments=["-o nospace -o default -o bashdefault", _IN_ORDER],
    )
    if arguments.shell == "fish":
        code = code.replace("complete --command", "complete --keep-order --command")
    context.stdout.write(code)
    return 0
