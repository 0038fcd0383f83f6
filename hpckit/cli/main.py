"""The command line: picks the verb, imports only that, and turns errors into exit codes.

Exit codes: 0 fine, 1 a run failed or standard output cannot be written, 2 usage or configuration, 3 the
scheduler refused or does not answer; 130 after Ctrl-C and 141 after a closed pipe, as in shells.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import NoReturn

from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.parsing import OptionalValue, reword_argparse_error, suggest_option
from hpckit.cli.streams import open_standard_streams, redirect_output_to_null
from hpckit.cli.terminal.progress_bar import show_progress_bar
from hpckit.context import Context, current_folder
from hpckit.errors import HpckitError, OutputError, UsageError
from hpckit.planning.secrecy import find_secrets_in_environment, mask_message
from hpckit.runtime.environ import copy_environment
from hpckit.version import __version__

VERB_GROUPS = {
    "start": {
        "launch": "compose, freeze and start runs: one, or a sweep",
        "render": "freeze runs and write their batch scripts, without submitting",
        "check": "whether a launch could run: on this machine, within limits and budget",
        "plan": "what training a model will need: memory, layout, time, energy, money",
        "resume": "submit again what failed, was interrupted, or is missing",
        "rerun": "start runs again in a new launch, with today's code or exactly what was frozen",
        "watch": "wait for a launch, and resume what can be until all is done",
    },
    "look": {
        "ls": "the launches there are",
        "status": "how the runs of a launch stand",
        "top": "the runs of a launch on a whole terminal: curves, GPUs, logs and events, live",
        "logs": "what a run printed",
        "show": "what a run is: its configuration, code, environment, jobs and folders",
        "diff": "what differs between two runs, or two launches",
        "results": "a table of final metrics over a sweep",
        "report": "one HTML file about runs: verdicts, failures, timeline, curves, sweep, GPUs",
        "plot": "curves of runs as a figure for a paper or a slide: PDF, SVG or PNG",
        "checkpoint": "the checkpoints of runs: list them, verify them, write the model to a file",
        "export": "metrics for other programs: CSV, TensorBoard, W&B, MLflow, Prometheus, Perfetto",
        "nodes": "what happened on which node, over all launches, and which are avoided",
        "stacks": "what every rank of a running run is doing now: their Python stacks",
        "bench": "what the network between ranks carries, what it promises, which node is slow",
        "profile": "where the time of a running run's steps goes: kernels, communication, idle",
    },
    "act": {
        "cancel": "stop runs, waiting or running",
        "grow": "give a running run more replicas: a job brings the nodes, the run continues",
        "shrink": "have a running run continue with fewer replicas",
        "shell": "a shell, or a command, inside the allocation of a running run",
        "chaos": "inject faults into a running run, to see it survive",
    },
    "maintain": {
        "image": "container images: pull one into a file that nodes see, list and remove them",
        "init": "write the file of this cluster, conf/cluster/NAME.yaml, from what Slurm says",
        "clean": "remove what is no longer needed, after showing what and how much",
        "rm": "delete whole launches, after showing what and how much",
        "doctor": "find what broken submissions left behind; --env: what will not work on a node",
        "sandbox": "a real Slurm on this machine, to try launches and faults",
        "completion": "the lines by which a shell completes words after hpckit",
    },
}
"""The verbs by what they are for: each group is a folder of `cli.commands`."""

HIDDEN_VERBS = {
    "supervise": "work through one attempt of a run (batch scripts call this)",
    "local": "work through a launch on this machine (launch calls this)",
    "supervisor-lost": "rescue a run whose supervisor is gone (agents call this)",
    "auto-resume": "resume what can be of a launch, once (auto-resume jobs call this)",
    "node-facts": "write what this node offers (the run of doctor --env calls this)",
    "satellite": "bring this job's nodes to a running run (satellite jobs call this)",
}
VERBS = {verb: line for group in VERB_GROUPS.values() for verb, line in group.items()}

_MODULES = {
    **{verb: f"cli.commands.{name}.{verb}" for name, group in VERB_GROUPS.items() for verb in group},
    **dict.fromkeys(HIDDEN_VERBS, "cli.commands.hidden"),
    "plan": "features.capacity.verb",
    "bench": "features.interconnect.verb",
    "top": "features.top.verb",
    "profile": "features.profiling.verb",
    "report": "features.reporting.verb_report",
    "plot": "features.reporting.verb_plot",
    "export": "features.exporting.verb",
    "init": "features.site.verb",
    "image": "features.containers.verb",
}
"""Where each verb lives: in the folder of its group, or in the room of a feature."""
_TITLES = {
    "start": "start runs, and start them again",
    "look": "look at runs",
    "act": "act on running runs",
    "maintain": "maintain launches and this machine",
}

INTERRUPTED = 130
"""After Ctrl-C, as in shells. A view that was left this way has printed that the runs continue."""

PIPE_CLOSED = 141

_MEANT = {
    **dict.fromkeys(("run", "start", "submit", "train", "sweep", "multirun"), "launch"),
    **dict.fromkeys(("stop", "kill", "abort"), "cancel"),
    **dict.fromkeys(("list", "jobs", "history"), "ls"),
    **dict.fromkeys(("queue", "state", "energy", "cost", "ps", "squeue", "sacct"), "status"),
    **dict.fromkeys(("dashboard", "monitor", "live", "tui", "nvitop", "htop"), "top"),
    **dict.fromkeys(("restart", "requeue", "retry"), "resume"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("info", "describe", "config"), "show"),
    "compare": "diff",
    **dict.fromkeys(("curves", "figure", "chart"), "plot"),
    **dict.fromkeys(("stack", "dump", "py-spy", "pystack", "traceback"), "stacks"),
    **dict.fromkeys(("profiler", "prof", "nsys", "kineto", "perf"), "profile"),
    **dict.fromkeys(("tensorboard", "wandb", "mlflow", "metrics", "trace"), "export"),
    **dict.fromkeys(("html", "summary", "dashboard"), "report"),
    **dict.fromkeys(("checkpoints", "ckpt", "weights", "safetensors"), "checkpoint"),
    **dict.fromkeys(("benchmark", "nccl-tests", "all_reduce_perf", "bandwidth"), "bench"),
    **dict.fromkeys(("images", "container", "containers", "pull", "apptainer"), "image"),
    **dict.fromkeys(("setup", "configure", "profile-site"), "init"),
    **dict.fromkeys(("ssh", "exec", "attach", "srun"), "shell"),
}
"""Names that other tools use for hpckit's verbs."""

_ALIKE = 0.7
"""`launhc` is that similar to `launch`; `energy` and `render` are not."""

_UNRECOGNIZED = "unrecognized arguments: "
"""How argparse reports unknown options."""

_EPILOG = """\
exit codes: 0 fine, 1 a run failed, 2 usage or configuration, 3 the scheduler refused or is away

`hpckit VERB --help` says more. `hpckit launch experiment=digits` trains a small example.
For programs and agents: `hpckit [VERB] --help --json`.
"""


def main(argv: Sequence[str] | None = None, context: Context | None = None) -> int:
    """Run the command line and return its exit code; tests pass their own words and context."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        context = context or build_process_context()
    except UsageError as error:
        sys.stderr.write(f"hpckit: error: {error.message}\n  {error.hint}\n")
        return error.exit_code
    if argv is None and "_ARGCOMPLETE" in context.environ and "COMP_LINE" in context.environ:
        code: int = importlib.import_module("hpckit.cli.completion").answer_shell_completion(context)
        return code
    try:
        code = _run_verb(words, context)
        context.stdout.flush()
    except HpckitError as error:
        known = find_secrets_in_environment(context.environ)
        context.note(f"error: {mask_message(error.message, words, known)}")
        context.note_more(mask_message(error.hint, words, known))
        if isinstance(error, OutputError):
            redirect_output_to_null()
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        redirect_output_to_null()
        return PIPE_CLOSED
    return code


def build_process_context() -> Context:
    """Return the context of this process."""
    output_open = sys.stdout is not None
    stdout, stderr = open_standard_streams()
    return Context(
        environ=copy_environment(),
        cwd=current_folder(),
        stdout=stdout,
        stderr=stderr,
        now=lambda: datetime.now(UTC),
        sleep=time.sleep,
        meter=show_progress_bar,
        output_open=output_open,
    )


def import_verb_module(verb: str) -> ModuleType:
    """Import a verb's module; raises UsageError for an unknown verb."""
    if verb not in VERBS and verb not in HIDDEN_VERBS:
        meant = _MEANT.get(verb)
        near = [meant] if meant else difflib.get_close_matches(verb, VERBS, n=1, cutoff=_ALIKE)
        raise UsageError(
            f"there is no verb {verb!r}" + (f"; did you mean `hpckit {near[0]}`?" if near else ""),
            hint="`hpckit --help` lists all verbs",
        )
    with pause_garbage_collector():
        return importlib.import_module(f"hpckit.{_MODULES[verb]}")


def build_verb_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb's words."""
    module = import_verb_module(verb)
    parser = _Parser(
        prog=f"hpckit {verb}",
        description=(VERBS | HIDDEN_VERBS)[verb],
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.takes_command = getattr(module, "TAKES_COMMAND", False)
    module.add_arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """Reports errors like all others, and accepts `--sort -loss` and `--watch LAUNCH`.

    argparse would take `-loss` for an option, and LAUNCH for the option's value.
    """

    words: tuple[str, ...] = ()
    takes_command = True

    def error(self, message: str) -> NoReturn:
        """Raise UsageError in words, naming the option or value that was probably meant."""
        message, guess = reword_argparse_error(message)
        hint = guess or self._hint_for_message(message) or f"`{self.prog} --help` lists the options"
        unknown = message.removeprefix(_UNRECOGNIZED).split() if _UNRECOGNIZED in message else ()
        if unknown:
            hint = suggest_option(
                unknown[0],
                self.words,
                self._option_string_actions,
                verb=self.prog,
                composes=any(action.dest == "overrides" for action in self._actions),
                takes_command=self.takes_command,
            )
        raise UsageError(message, hint=hint)

    def _hint_for_message(self, message: str) -> str:
        """Return the choices of the first missing argument, or what to do about two options, if known."""
        for group in self._mutually_exclusive_groups:
            names = {name for action in group._group_actions for name in action.option_strings}  # noqa: SLF001
            if message.startswith("cannot combine ") and len(names.intersection(message.split())) > 1:
                return group.description or "leave one of the two out"
        for action in self._actions:
            if action.choices and message.startswith(f"{action.metavar} ") and "missing" in message:
                return f"{action.metavar} is one of {', '.join(map(str, action.choices))}"
        return ""

    def parse_known_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self.words = tuple(args)
        words: list[str] = []
        for word in args:
            action = self._option_string_actions.get(words[-1]) if words else None
            if words and words[-1] == "--sort" and word.startswith("-"):
                words[-1] = f"--sort={word}"
            elif isinstance(action, OptionalValue) and not word.startswith("-"):
                own = action.takes(word)
                words[-1] = f"{words[-1]}={word if own else action.const}"
                words += [] if own else [word]
            else:
                words.append(word)
        return super().parse_known_intermixed_args(words, namespace)


def _run_verb(words: Sequence[str], context: Context) -> int:
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own and ("help" in own[:1] or {"-h", "--help"} & {*own}):
        code: int = importlib.import_module("hpckit.cli.machine_help").print_machine_help(own, context)
        return code
    if not words or words[0].startswith("-"):
        return _print_general_help(words, context)
    if words[0] == "help":
        return _run_verb([*words[1:2], "--help"], context)
    module = import_verb_module(words[0])
    given, command = words[1:], None
    if getattr(module, "TAKES_COMMAND", False) and "--" in given:
        at = given.index("--")
        given, command = given[:at], list(given[at + 1 :])
    # Overrides may be anywhere among the options: `launch a=1 --wait b=2`.
    try:
        parser = build_verb_parser(words[0])
        intermixed = getattr(module, "INTERMIXED", True)
        parse = parser.parse_intermixed_args if intermixed else parser.parse_args
        arguments = parse(given)
    except SystemExit as end:  # --help was printed
        return int(end.code or 0)
    arguments.words = tuple(words)
    if command is not None:
        arguments.command = command
    arguments.program = main  # for the verbs that start others
    done: int = module.run(arguments, context)
    return done


def _print_general_help(words: Sequence[str], context: Context) -> int:
    parser = _Parser(
        prog="hpckit",
        usage="hpckit [-h] [--version] VERB ...",
        description="From a Hydra config to a finished run on Slurm, whatever breaks on the way.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hpckit {__version__}")
    for folder, group in VERB_GROUPS.items():
        titled = parser.add_argument_group(_TITLES[folder])
        for verb, line in group.items():
            # Listed only: verbs never get here.
            titled.add_argument(verb, nargs="?", help=line, default=argparse.SUPPRESS)
    try:
        parser.parse_args(words)
    except SystemExit as end:  # --help or --version was printed
        return int(end.code or 0)
    parser.print_help(context.stderr)
    return UsageError.exit_code
