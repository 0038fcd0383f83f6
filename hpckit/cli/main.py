"""The command line: picks the verb, imports only that, and turns errors into exit codes.

Responsible for the table of verbs and for how an error is shown; it must not do a verb's work.
Exit codes: 0 fine, 1 a run failed, 2 usage or configuration, 3 the scheduler refused or is away;
130 after Ctrl-C and 141 after a closed pipe, as shells have it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from hpckit import __version__
from hpckit.cli.context import Context
from hpckit.errors import HpckitError, UsageError
from hpckit.runtime.environ import environment

VERBS = {
    "launch": "compose, freeze and start runs: one, or a sweep",
    "render": "freeze runs and write their batch scripts, without submitting",
    "check": "whether a launch could run: on this machine, within Slurm's limits and your budget",
    "status": "how the runs of a launch stand",
    "logs": "what a run printed",
    "cancel": "stop runs, waiting or running",
    "resume": "submit again what failed, was interrupted, or is missing",
    "rerun": "one run anew, with today's code or exactly what was frozen",
    "watch": "wait for a launch, and resume what can be until all is done",
    "chaos": "inject faults into a running run, to see it survive",
    "results": "a table of final metrics over a sweep",
    "ls": "the launches there are",
    "clean": "remove what nobody needs any more, after showing what and how much",
    "doctor": "find what a broken submission left behind, and adopt or cancel it",
}
HIDDEN_VERBS = {
    "supervise": "work through one attempt of a run (batch scripts call this)",
    "local": "work through a launch on this machine (launch calls this)",
    "orphaned": "see to a run whose supervisor is gone (agents call this)",
    "janitor": "resume what can be of a launch, once (its janitor's batch script calls this)",
}
INTERRUPTED = 130
"""After Ctrl-C, as shells have it. A view that was left so has said that the runs go on."""

PIPE_CLOSED = 141

_EPILOG = """\
exit codes: 0 fine, 1 a run failed, 2 usage or configuration, 3 the scheduler refused or is away

`hpckit VERB --help` says more. `hpckit launch` alone trains a small example here.
"""


def main(argv: Sequence[str] | None = None, context: Context | None = None) -> int:
    """Run the command line and return its exit code; tests hand in words and world."""
    words = sys.argv[1:] if argv is None else list(argv)
    context = context or process_context()
    try:
        return _dispatch(words, context)
    except HpckitError as error:
        show_error(error, context)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return PIPE_CLOSED


def process_context() -> Context:
    """Return the context of this very process."""
    return Context(
        environ=environment(),
        cwd=Path.cwd(),
        stdout=sys.stdout,
        stderr=sys.stderr,
        now=lambda: datetime.now(UTC),
        sleep=time.sleep,
    )


def show_error(error: HpckitError, context: Context) -> None:
    """Write an error and what to do about it to standard error."""
    context.note(f"error: {error.message}")
    for line in error.hint.splitlines():
        context.stderr.write(f"  {line}\n")


def verb_module(verb: str) -> ModuleType:
    """Import a verb's module; raises UsageError for a word that is none."""
    if verb not in VERBS and verb not in HIDDEN_VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        raise UsageError(
            f"there is no verb {verb!r}; there are {', '.join(VERBS)}",
            hint=f"did you mean `hpckit {near[0]}`?" if near else "`hpckit --help` lists them",
        )
    return importlib.import_module(f"hpckit.cli.{verb}")


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb's words."""
    parser = _VerbParser(
        prog=f"hpckit {verb}",
        description=(VERBS | HIDDEN_VERBS)[verb],
        allow_abbrev=False,
    )
    verb_module(verb).add_arguments(parser)
    return parser


class _VerbParser(argparse.ArgumentParser):
    """Takes `--sort -loss` as people write it: argparse would take `-loss` for an option."""

    def parse_known_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words: list[str] = []
        for word in args:
            if words and words[-1] == "--sort" and word.startswith("-"):
                words[-1] = f"--sort={word}"
            else:
                words.append(word)
        return super().parse_known_intermixed_args(words, namespace)


def _dispatch(words: Sequence[str], context: Context) -> int:
    if not words or words[0].startswith("-"):
        return _without_verb(words, context)
    module = verb_module(words[0])
    # Overrides may stand anywhere among the flags: `launch a=1 --wait b=2`.
    arguments = verb_parser(words[0]).parse_intermixed_args(words[1:])
    arguments.words = tuple(words)
    code: int = module.run(arguments, context)
    return code


def _without_verb(words: Sequence[str], context: Context) -> int:
    parser = argparse.ArgumentParser(
        prog="hpckit",
        description="From a Hydra config to a finished run on Slurm, whatever breaks on the way.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hpckit {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for verb, help_line in VERBS.items():
        verbs.add_parser(verb, help=help_line, add_help=False)
    parser.parse_args(words)
    parser.print_help(context.stderr)
    return UsageError.exit_code


def _forget_stdout() -> None:
    """Keep Python from reporting the closed pipe once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
