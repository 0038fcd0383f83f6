"""`hpckit init`: writes the file of this cluster, or says where it differs from the cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from hpckit.cli.options import add_flag, add_json_option
from hpckit.config.request import ComposeRequest, find_user_conf_folder
from hpckit.context import Context, login_name
from hpckit.errors import NotFoundError, OutputError, SchedulerAbsentError, SchedulerError, UsageError
from hpckit.features.site.document import render_site_file
from hpckit.features.site.facts import SiteFacts, ask_site_facts
from hpckit.features.site.probe import NodeProbe, ProbeOrder, probe_nodes
from hpckit.features.site.tries import Tries, try_options
from hpckit.features.site.values import KnownValue, find_known_values, find_probed_values
from hpckit.model.ids import slugify_name
from hpckit.model.launch import MISSING
from hpckit.model.plain import attributes_to_json, iterate_leaf_values, to_plain
from hpckit.patterns import lazy_pattern
from hpckit.record.store import create_file_if_missing, read_regular_file
from hpckit.slurm.clusters import refuse_slurm_cluster_variables
from hpckit.slurm.commands import SlurmCommands
from hpckit.values import dataclass

EPILOG = """\
examples:
  hpckit init   conf/cluster/CLUSTER.yaml, from what Slurm says
  hpckit init lab --probe gpu cpu
  hpckit init lab --diff
"""

_NAME = lazy_pattern(r"[A-Za-z0-9][\w.-]*\Z")
_SHIPPED = ("auto", "local", "slurm")
_DIFFERENT = 1
"""The exit code of --diff if something differs, as of diff(1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key of which the file (`stated`) and the cluster (`found`) say different things."""

    key: str
    stated: Any
    found: Any
    source: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `init`."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name of the file, for cluster=NAME (default: Slurm's ClusterName)",
    )
    parser.add_argument(
        "--probe",
        metavar="PARTITION",
        nargs="+",
        action="extend",
        default=[],
        help="also start a job of at most 2 minutes on each kind of node there: it says what only nodes know",
    )
    parser.add_argument(
        "--wait-s",
        metavar="N",
        type=float,
        default=300.0,
        help="seconds to wait for these jobs; then they are cancelled (default: 300)",
    )
    add_flag(parser, "--diff", "write nothing: say where the file differs from the cluster; 1 if it does")
    add_flag(parser, "--share", "leave out what is this user's: accounts, name, home")
    parser.add_argument("--bin-dir", metavar="DIR", help="folder of sbatch and the others, if not on PATH")
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        type=Path,
        help="your own conf/ (default: $HPCKIT_CONFIG_DIR, else ./conf, which is made)",
    )
    add_json_option(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Ask, write and say; raises HpckitError. Returns 1 if --diff found differences, else 0."""
    refuse_slurm_cluster_variables(context.environ)
    if arguments.diff and arguments.probe:
        raise UsageError("--diff compares what Slurm says, and starts no jobs", hint="leave --probe out")
    folder = _find_cluster_folder(arguments.config_dir, context)
    if arguments.name is not None:
        _check_target(folder, arguments.name, diff=arguments.diff)
    commands = SlurmCommands(bin_dir=arguments.bin_dir, environ=context.environ)
    with context.show_progress("asking Slurm", quiet=arguments.json):
        try:
            facts = ask_site_facts(commands, login_name(), context.now())
        except SchedulerAbsentError as error:
            hint = "start from a login node, or name the folder of Slurm's programs: --bin-dir DIR"
            raise SchedulerAbsentError(error.message, hint=hint) from error
    name = arguments.name or slugify_name(facts.settings.get("ClusterName", ""))
    file = _check_target(folder, name, diff=arguments.diff)
    account = facts.accounts[0] if len(facts.accounts) == 1 else None
    tries = Tries() if arguments.diff else try_options(facts, commands, account)
    probes: tuple[NodeProbe, ...] = ()
    if arguments.probe:
        patience = timedelta(seconds=max(0.0, arguments.wait_s))
        order = ProbeOrder(partitions=tuple(arguments.probe), patience=patience, tries=tries, account=account)
        probes = probe_nodes(order, facts, commands, context)
    if arguments.share:
        facts = facts.without_user()
        probes = tuple(probe.without_user(login_name(), context.environ.get("HOME", "")) for probe in probes)
    has_pyxis = False
    with suppress(SchedulerError):  # it asks nothing of the controller
        has_pyxis = "--container-image" in commands.run_with_all_output("srun", "--help")
    known = (
        *find_known_values(facts, tries, bin_dir=arguments.bin_dir, share=arguments.share),
        *(() if arguments.diff else find_probed_values(probes, has_pyxis=has_pyxis)),
    )
    if arguments.diff:
        found = list(find_differences(_read_cluster_keys(file), known))
        if arguments.json:
            context.say_json({**facts_to_json(file, facts, known, tries, probes), "differences": found})
        else:
            _tell_differences(file, found, context)
        return _DIFFERENT if found else 0
    _write_new_file(file, render_site_file(name, facts, known, tries, probes))
    document = facts_to_json(file, facts, known, tries, probes)
    if arguments.json:
        context.say_json(document)
    else:
        _tell_what_was_written(file, name, facts, known, probes, context)
    return 0


def _find_cluster_folder(named: Path | None, context: Context) -> Path:
    request = ComposeRequest(config_dir=named, environ=context.environ, cwd=context.cwd)
    return (find_user_conf_folder(request) or context.cwd / "conf") / "cluster"


def _check_target(folder: Path, name: str, *, diff: bool) -> Path:
    """Return the file of that name; raises UsageError if it is there already, or with --diff is not."""
    if not _NAME.match(name) or name in _SHIPPED:
        raise UsageError(
            f"{name!r} cannot be the name of a cluster's file: letters, digits, `.`, `_` and `-` are "
            f"allowed, and hpckit's own {', '.join(_SHIPPED)} are taken",
            hint="for example: hpckit init lab",
        )
    file = folder / f"{name}.yaml"
    if diff and not file.is_file():
        raise NotFoundError(f"there is no {file}", hint=f"hpckit init {name} writes it")
    if not diff and file.exists():
        raise UsageError(
            f"{file} is there already, and is not overwritten",
            hint=f"hpckit init {name} --diff compares it with the cluster; hpckit init OTHER writes another",
        )
    return file


def _write_new_file(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        written = create_file_if_missing(file, text)
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror or error}") from error
    if not written:
        raise UsageError(f"{file} is there already, and is not overwritten", hint="choose another name")


def _tell_what_was_written(
    file: Path,
    name: str,
    facts: SiteFacts,
    known: Sequence[KnownValue],
    probes: Sequence[NodeProbe],
    context: Context,
) -> None:
    context.say(f"wrote {file}; use it with cluster={name}")
    for value in known:
        if value.value == MISSING:
            context.say(f"choose {value.key} there: {value.note}")
    for probe in probes:
        if probe.problem:
            context.note(f"warning: partition {probe.partition} was not probed: {probe.problem}")
    for missing in facts.unknown:
        context.note(f"not known: {missing}")


def _tell_differences(file: Path, found: Sequence[Difference], context: Context) -> None:
    for one in found:
        context.say(f"{one.key}: the file says {one.stated}, Slurm says {one.found} ({one.source})")
    if not found:
        context.say(f"{file} says what Slurm says")


def _read_cluster_keys(file: Path) -> Mapping[str, Any]:
    try:
        held = yaml.safe_load(read_regular_file(file))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {file}: {error}", hint="correct it, or write another") from error
    inner = held.get("cluster", held) if isinstance(held, dict) else None
    if not isinstance(inner, dict):
        raise UsageError(f"{file} holds no mapping of keys", hint="correct it, or write another")
    return inner


def find_differences(stated: Mapping[str, Any], known: Sequence[KnownValue]) -> Iterator[Difference]:
    """Yield what the cluster says otherwise; keys that only the file has are the user's own."""
    for value in known:
        if value.value in (None, MISSING) or value.key.startswith("resources."):
            continue
        has = stated.get(value.key)
        if not (isinstance(value.value, Mapping) and isinstance(has, Mapping)):
            if has != value.value:
                yield Difference(key=value.key, stated=has, found=value.value, source=value.source)
            continue
        new, old = dict(iterate_leaf_values(value.value)), dict(iterate_leaf_values(has))
        for key in sorted({*new, *old}):
            if new.get(key) != old.get(key):
                yield Difference(
                    key=f"{value.key}.{key}", stated=old.get(key), found=new.get(key), source=value.source
                )


def facts_to_json(
    file: Path, facts: SiteFacts, known: Sequence[KnownValue], tries: Tries, probes: Sequence[NodeProbe]
) -> dict[str, Any]:
    """Return the facts behind the file as JSON values; `differences` is null."""
    return {
        "file": str(file),
        "cluster": facts.settings.get("ClusterName"),
        "release": facts.settings.get("SLURM_VERSION"),
        "at": to_plain(facts.at),
        "values": [attributes_to_json(value, "key value source note") for value in known],
        "partitions": [
            attributes_to_json(one, "name default state nodes max_nodes qos hidden max_time_s=max_time")
            for one in facts.open_partitions
        ],
        "closed_partitions": dict(facts.closed),
        "nodes": [
            attributes_to_json(kind, "partition nodes cpus memory_mb gpu_types gres features disk_mb names")
            for kind in facts.open_kinds
        ],
        "accounts": list(facts.accounts),
        "preemption": [
            {"of": name, "mode": to_plain(one.mode), "grace_s": to_plain(one.grace)}
            for name, one in facts.list_preemption().items()
        ],
        "tried": [attributes_to_json(one, "partition options takes said") for one in tries.tried],
        "probes": [attributes_to_json(one, "partition job said clock_offset_s problem") for one in probes],
        "unknown": list(facts.unknown),
        "differences": None,
    }
