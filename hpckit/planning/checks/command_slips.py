"""Words in a command that will not do what they seem to do. Pure.

Only slips that the words alone show: signs that only a shell understands, with a warning, and
launchers that start the ranks a second time, which are refused. No files or programs are looked up.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from hpckit.model.command import (
    MPI_CURE,
    extract_code_passed_to_shell,
    list_inner_commands,
    parse_invocation,
    parse_shell_commands,
    strip_command_wrappers,
)
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import Resources
from hpckit.patterns import lazy_pattern

_OWN_SIGNS = frozenset({"awk", "gawk", "mawk", "find", "perl", "sed", "xargs"})
"""Programs that read `$` or `;` themselves."""
_SIGNS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>", "|&"})
_PIPES = frozenset({"|", "|&"})
_OTHER_PROGRAM = lazy_pattern(r"\./|(?:Rscript|julia|matlab|octave)\b")
_VARIABLE = lazy_pattern(r"\$([A-Za-z_]\w*|\{[A-Za-z_]\w*\})|\A~/")
_DOTTED = lazy_pattern(r"\$([A-Za-z_]\w*(?:\.\w+)+)")
_BRACED = lazy_pattern(r"(?<![${])\{([A-Za-z_][\w.]*)\}(?!\})")
_ASSIGNMENT = lazy_pattern(r"[A-Za-z_]\w*=")
_NODE_LAUNCHERS = frozenset({"torchrun", "deepspeed", "horovodrun", "composer"})
_MPI_LAUNCHERS = frozenset({"mpirun", "mpiexec", "orterun", "prterun"})
_RANK_LAUNCHERS = _MPI_LAUNCHERS | {"srun"}
_MODULES = {
    "torch.distributed.run": "torch.distributed.run",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "horovod.runner.launch": "horovodrun",
}
_BY_WORD = {"accelerate": "launch", "colossalai": "run", "fabric": "run"}
_FLAGS = lazy_pattern(
    r"-[mq]|--(?:module|standalone|run[-_]path|use[-_](?!env_)\w+|no[-_]\w+|multi_gpu|cpu|tpu|ipex|"
    r"quiet|debug|same_network|enable_cpu_affinity|force_multi|save_pid|bind_cores_to_rank|"
    r"elastic_training|virtual[-_]local[-_]rank|dynamo_use_\w+|tpu_use_\w+|verbose)"
)
"""Options of launchers without a value."""
_ONLY_SAYS = frozenset({"-h", "--help", "--version"})
_OF_LAUNCH = frozenset({"--wait", "--foreground", "--auto-resume", "--multirun"})
"""Options that programs hardly have; `--dry-run` and `--json` many do."""
_PLAIN = lazy_pattern(r"[\w@%+=:,./~${}-]+", re.ASCII)
_MEETING = ("--rdzv", "--master", "--main_process_ip", "--hostfile", "--node_rank", "--node-rank")
"""Options with which launchers on several nodes find each other."""
_RANKS_A_NODE = lazy_pattern(r"--nproc[-_]?\w*(?:[-_]node)?[= ](\d+)\b")
_CHOOSES = lazy_pattern(r"RANK|PROCID|LOCALID|NODEID|NODENAME|(?i:\bhostname)")
"""In a line for a shell: it may start the launcher in one rank only."""


def find_command_mistakes(
    words: Sequence[str], resources: Resources, keys: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield what is wrong with the words of a command; `keys` are the configuration's, dotted.

    A placeholder that a script fills in itself, such as `--format {epoch}.pt`, gives no warning.
    """
    started = parse_invocation(words)
    for word in words[1:]:
        if word in _OF_LAUNCH:
            yield build_warning_finding(
                "command",
                word,
                f"{word} comes after --, so it is part of the command",
                f"if it is meant for hpckit: hpckit launch {word} -- …",
            )
    if started.code is None:
        yield from _warn_about_shell_syntax(words)
        yield from _warn_about_unfilled_placeholders(words, keys)
    elif started.is_shell:
        yield from _warn_about_unfilled_placeholders(words, None)
    line = extract_code_passed_to_shell(strip_command_wrappers(words)) or ""
    yield from _warn_about_hidden_pipe_failures(words, line)
    chosen = _CHOOSES.search(line) is not None
    for command in list_inner_commands(words):
        yield from _find_nested_launcher_problem(command, resources, chosen=chosen)


def _warn_about_hidden_pipe_failures(words: Sequence[str], line: str) -> Iterator[Finding]:
    """Yield a warning of a pipe in a shell's line that hides how a program in front of it ended."""
    if "pipefail" in " ".join(words) or "PIPESTATUS" in line:
        return
    parts = (part for part, sign in parse_shell_commands(line) if sign in _PIPES)
    starts = (
        parse_invocation(inner)
        for part in parts
        for inner in list_inner_commands(part)
        if _may_start_training(inner)
    )
    for program in islice((started.program for started in starts), 1):
        yield build_warning_finding(
            "command",
            line,
            f"a pipe ends like its last program: if {program} fails, the run still completes",
            "leave the pipe out, as hpckit keeps what is printed (hpckit logs); or begin the "
            "line, for bash, with: set -o pipefail;",
        )


def _may_start_training(words: Sequence[str]) -> bool:
    """Whether a command starts a Python, a launcher or a script, and no tool such as `cat`."""
    started = parse_invocation(words)
    known = started.is_python or started.script or _find_launcher_and_arguments(words)[0]
    return bool(known or _OTHER_PROGRAM.match(words[0]))


def _warn_about_shell_syntax(words: Sequence[str]) -> Iterator[Finding]:
    if parse_invocation(words).program in _OWN_SIGNS:
        return
    sign = next(filter(_is_shell_operator, words[1:]), None)
    variables = (word for word in words if _VARIABLE.search(_DOTTED.sub("", word)))
    found = sign or next(variables, None)
    if found is not None:
        yield build_warning_finding(
            "command",
            found,
            f"{found} in command is not expanded: no shell reads it",
            _suggest_wrapping_in_shell(words, found),
        )
    elif _ASSIGNMENT.match(words[0]):
        name, _, value = words[0].partition("=")
        yield build_warning_finding(
            "command",
            words[0],
            f"{words[0]} in command is taken as the program: no shell reads the command",
            f"set the variable in the configuration, env.{name}={value}; or put the word env before it",
        )


def _suggest_wrapping_in_shell(words: Sequence[str], found: str) -> str:
    line = " ".join(word if _is_shell_operator(word) else _quote_shell_word(word) for word in words)
    line = line if _PIPES.isdisjoint(words) else f"set -o pipefail; {line}"
    cure = f"use a shell: hpckit launch -- bash -c {shlex.quote(line)}"
    variable = _VARIABLE.search(found)
    if variable is None or variable[1] is None:
        return cure
    name = variable[1].strip("{}")
    return f"{cure}; or insert your own value at launch: ${{oc.env:{name}}}"


def _quote_shell_word(word: str) -> str:
    # A shell still has to expand variables.
    if not _VARIABLE.search(word):
        return shlex.quote(word)
    return word if _PLAIN.fullmatch(word) else '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'


def _is_shell_operator(word: str) -> bool:
    return word in _SIGNS or (word.endswith(";") and not re.search(r"\s", word))


def _warn_about_unfilled_placeholders(
    words: Sequence[str], keys: Collection[str] | None
) -> Iterator[Finding]:
    """Yield what looks like a configured value; braces only with `keys`: shells expand them."""
    for word in words:
        dotted = _DOTTED.search(word)
        found = [(dotted[0], dotted[1])] if dotted else []
        for braced in _BRACED.finditer(word) if keys is not None else ():
            key = _guess_config_key(braced[1], keys or ())
            if key is not None or word.rpartition("=")[2] == braced[0]:
                found.append((braced[0], key or braced[1]))
        for text, key in found:
            yield build_warning_finding(
                "command",
                word,
                f"{text} in command is not expanded: a configuration value is written ${{key}}",
                f"write ${{{key}}}, in quotes that keep your shell from reading it",
            )


def _guess_config_key(name: str, keys: Collection[str]) -> str | None:
    if name in keys:
        return name
    ends = [key for key in keys if key.endswith(f".{name}")]
    near = difflib.get_close_matches(f"params.{name}", ends, n=1, cutoff=0)
    return near[0] if near else None


def _find_nested_launcher_problem(
    words: Sequence[str], resources: Resources, *, chosen: bool
) -> Iterator[Finding]:
    """Yield an error; just a warning for srun, which may start no ranks, or for a `chosen` rank."""
    launcher, given = _find_launcher_and_arguments(words)
    own = list(_list_launcher_options(given))
    starts = launcher and not _ONLY_SAYS.intersection(own)
    why = _explain_duplicate_ranks(launcher, own, resources) if starts else ""
    if why:
        say = build_warning_finding if chosen or launcher == "srun" else build_error_finding
        command = _remove_launcher(own, given[len(own) :])
        cure = _suggest_dropping_launcher(command, own, resources)
        if launcher.partition(".")[0] in _MPI_LAUNCHERS:
            cure = f"for torch, {cure}; {MPI_CURE}" if command else MPI_CURE
        yield say("command", launcher, f"{launcher} {why}", cure)


def _find_launcher_and_arguments(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the launcher that a command starts, and the words given to it; empty if none."""
    started = parse_invocation(words)
    given = started.arguments
    name = started.program
    if started.is_python and started.script is not None:
        path = started.script.removesuffix(".py").replace("/", ".")
        module = next((known for known in _MODULES if f".{path}".endswith(f".{known}")), None)
        if module is not None and "." in module:
            return _MODULES[module], given
        name = started.script.rpartition("/")[2]
    if name.partition(".")[0] in _MPI_LAUNCHERS or name in _NODE_LAUNCHERS | _RANK_LAUNCHERS:
        return name, given
    if name in _BY_WORD and given[:1] == (_BY_WORD[name],):
        return f"{name} {given[0]}", given[1:]
    return _MODULES.get(started.module or "", ""), given


def _list_launcher_options(given: Sequence[str]) -> Iterator[str]:
    """Yield a launcher's own words: those before the script or module, whose words are its own."""
    valued = False
    for word in given:
        if not word.startswith("-") and (not valued or word.endswith(".py")):
            return
        yield word
        valued = word.startswith("-") and "=" not in word and not _FLAGS.fullmatch(word)


def _explain_duplicate_ranks(launcher: str, own: Sequence[str], resources: Resources) -> str:
    """Return why ranks would exist several times, or not find each other; empty if neither."""
    if resources.tasks_per_node > 1:
        return (
            f"starts its own ranks, in each of the {resources.tasks_per_node} tasks per node that "
            "hpckit starts: every rank would exist several times"
        )
    if resources.nodes > 1 and launcher.partition(".")[0] in _RANK_LAUNCHERS:
        return (
            f"starts its own ranks on all nodes, from each of the {resources.nodes} nodes: every "
            "rank would exist several times"
        )
    meets = any(word.startswith(_MEETING) for word in own) and "--standalone" not in own
    if resources.nodes > 1 and not meets:
        return (
            f"starts its own ranks on each of the {resources.nodes} nodes, and does not know the "
            "other nodes: each node would train alone"
        )
    return ""


def _suggest_dropping_launcher(command: Sequence[str], own: Sequence[str], resources: Resources) -> str:
    line = " ".join(map(shlex.quote, command or ("python", "train.py")))
    stated = _RANKS_A_NODE.search(" ".join(own))
    ranks = int(stated[1]) if stated else resources.tasks_per_node
    shape = f"resources.nodes={resources.nodes} resources.tasks_per_node={ranks}"
    return (
        f"leave it out: hpckit launch {shape} -- {line}; hpckit starts resources.tasks_per_node "
        "ranks on each node, and sets RANK, WORLD_SIZE … for them"
    )


def _remove_launcher(own: Sequence[str], behind: Sequence[str]) -> Sequence[str]:
    """Return the command without its launcher; empty if that is not easy to read."""
    if own and own[-1] in {"-m", "--module"}:
        return ["python", "-m", *behind]
    if behind and behind[0].endswith(".py"):
        return ["python", *behind]
    return behind if behind and parse_invocation(behind).is_python else ()
