"""What in the words of a command will not do what it looks like. Pure.

Responsible for slips that the words alone show: signs that only a shell understands, and launchers
that start ranks a second time; it must not look for files or programs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from hpckit.model.finding import Finding, warning

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_SIGNS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>"})
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})|\A~/")
_DOTTED = re.compile(r"\$([A-Za-z_]\w*(?:\.\w+)+)")
_BRACED = re.compile(r"(?<!\$)\{[A-Za-z_][\w.]*\}")
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "mpirun", "mpiexec", "srun"})
_LAUNCHING_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})


def command_slips(words: Sequence[str], tasks_per_node: int) -> Iterator[Finding]:
    """Yield warnings about the words of a command that each of so many tasks a node runs."""
    if not _is_shell_line(words):
        yield from _shell_signs(words)
    for word in words:
        if dotted := _DOTTED.search(word):
            yield warning(
                "command",
                word,
                f"{dotted[0]} in command stays as it is: a value of the configuration is ${{key}}",
                f"write ${{{dotted[1]}}}, in quotes that keep your shell from reading it",
            )
        if braced := _BRACED.search(word):
            yield warning(
                "command",
                word,
                f"{braced[0]} in command stays as it is: a value of the configuration is ${{key}}",
                f"write ${braced[0]}, in quotes that keep your shell from reading it",
            )
    launcher = _launcher(words)
    if launcher and tasks_per_node > 1:
        yield warning(
            "command",
            launcher,
            f"{launcher} starts its own ranks, in each of the {tasks_per_node} tasks a node "
            "that hpckit starts: every rank would be there several times",
            "leave it out (hpckit starts the ranks and sets RANK, WORLD_SIZE …), or set "
            "resources.tasks_per_node=1",
        )


def _is_shell_line(words: Sequence[str]) -> bool:
    return words[0].rpartition("/")[2] in _SHELLS and any(
        re.fullmatch(r"-\w*c", word) for word in words[1:3]
    )


def _shell_signs(words: Sequence[str]) -> Iterator[Finding]:
    sign = next((word for word in words[1:] if word in _SIGNS or word.endswith(";")), None)
    found = sign or next((word for word in words if _is_variable(word)), None)
    if found is not None:
        line = " ".join(_for_shell(word) for word in words)
        yield warning(
            "command",
            found,
            f"{found} in command stays as it is: no shell reads it",
            f"let one read it: hpckit launch -- bash -c {shlex.quote(line)}",
        )


def _for_shell(word: str) -> str:
    """Return a word as a shell has to see it: what only a shell reads stays bare."""
    bare = word in _SIGNS or word.endswith(";") or _is_variable(word)
    return word if bare else shlex.quote(word)


def _is_variable(word: str) -> bool:
    return _VARIABLE.search(_DOTTED.sub("", word)) is not None


def _launcher(words: Sequence[str]) -> str:
    program = words[0].rpartition("/")[2]
    if program in _LAUNCHERS or (program == "accelerate" and "launch" in words[1:2]):
        return program
    return next((word for word in words[1:3] if word in _LAUNCHING_MODULES), "")
