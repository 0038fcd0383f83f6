"""The file of a cluster as text: its keys with their sources, and what else is known, as comments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from textwrap import indent, wrap

import yaml

from hpckit.features.site.facts import NodeKind, SiteFacts
from hpckit.features.site.probe import NodeProbe
from hpckit.features.site.tries import TriedOptions, Tries
from hpckit.features.site.values import KnownValue
from hpckit.model.cluster.preemption import Preemption, PreemptMode, slurm_restarts_preempted_job
from hpckit.model.cluster.site import Association, Partition, Qos
from hpckit.model.counted import format_count
from hpckit.model.launch import Runtime
from hpckit.model.moment import format_time_span
from hpckit.report.escape import escape_controls, escape_table_cell

_WIDTH = 108


def render_site_file(
    name: str, facts: SiteFacts, known: Sequence[KnownValue], tries: Tries, probes: Sequence[NodeProbe] = ()
) -> str:
    """Return the text of `conf/cluster/NAME.yaml`."""
    release = facts.settings.get("SLURM_VERSION", "of an unknown release")
    cluster = facts.settings.get("ClusterName", name)
    day = f"{facts.at:%Y-%m-%d}"
    head = [
        f"Cluster {cluster}, Slurm {release}: written by `hpckit init` on {day}, from what Slurm said.",
        f"`hpckit init {name} --diff` compares it with the cluster; docs/guides/site.md explains the keys.",
    ]
    elsewhere = [value for value in known if value.key.startswith("resources.")]
    body = "".join(_render_value(value, day) for value in known if value not in elsewhere)
    if elsewhere:
        rest = "".join(_render_value(value, day) for value in elsewhere).replace("resources.", "")
        body = f"cluster:\n{indent(body, '  ')}resources:\n{indent(rest, '  ')}"
    sections = list(_list_sections(facts, tries, probes, day))
    comments = "".join(
        f"\n{_comment(title)}{''.join(map(_item, lines))}" for title, lines in sections if lines
    )
    package = "# @package _global_\n" if elsewhere else ""
    return f"{package}{''.join(map(_comment, head))}{body}{comments}"


def _render_value(value: KnownValue, day: str) -> str:
    said = "; ".join(filter(None, (value.note, f"{value.source}, {day}" if value.source else "")))
    said = escape_table_cell(said)
    if value.value is None:
        return _comment(f"{value.key}: {said}")
    short = None if isinstance(value.value, list | dict) else False  # lists in one line
    text = yaml.safe_dump(
        {value.key: value.value}, default_flow_style=short, sort_keys=False, width=10_000, allow_unicode=True
    )
    first, _, more = text.partition("\n")
    if not said:
        return text
    together = f"{first}  # {said}"
    return f"{together}\n{more}" if len(together) <= _WIDTH else f"{_comment(said)}{text}"


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in wrap(escape_controls(text), _WIDTH - 2, break_on_hyphens=False))


def _item(text: str) -> str:
    lines = wrap(escape_controls(text), _WIDTH - 6, break_on_hyphens=False)
    return "".join(f"#   {'' if place == 0 else '  '}{line}\n" for place, line in enumerate(lines))


def _list_sections(
    facts: SiteFacts, tries: Tries, probes: Sequence[NodeProbe], day: str
) -> Iterator[tuple[str, list[str]]]:
    partitions = [describe_partition(one) for one in facts.open_partitions]
    yield f"Partitions (scontrol show partition, {day})", partitions
    closed = [f"{name}: {reason}" for name, reason in facts.closed.items()]
    yield "Partitions that do not take your jobs", closed
    yield (
        f"Nodes (sinfo, {day}); a site may keep some of the memory for itself",
        [describe_node_kind(kind) for kind in facts.open_kinds],
    )
    accounts = [_describe_account(one) for one in facts.site.associations or ()]
    yield f"Accounts (sacctmgr, {day}); choose with cluster.account", accounts
    yield f"Preemption (scontrol, sacctmgr, {day})", describe_all_preemption(facts)
    mine = {name for one in facts.site.associations or () for name in one.qos}
    qos = [_describe_qos(one) for name, one in (facts.site.qos or {}).items() if name in mine or not mine]
    yield f"QOS that you may use (sacctmgr, {day}); choose with resources.qos", qos
    yield f"Settings (scontrol show config, {day})", list(describe_settings(facts.settings))
    yield (
        f"Options that sbatch takes (sbatch --test-only, {day})",
        [_describe_trial(one) for one in tries.tried],
    )
    yield f"Nodes, seen by a job there ({day})", [describe_probe(probe) for probe in probes]
    yield "Not known", list(facts.unknown)


def describe_partition(one: Partition) -> str:
    """Return a partition in words: nodes, limits, who may use it."""
    said = [format_count(one.nodes or 0, "node")]
    if one.max_time is not None:
        said.append(f"{format_time_span(one.max_time)} at most")
    if one.default_time is not None:
        said.append(f"{format_time_span(one.default_time)} if not stated")
    if one.max_nodes:
        said.append(f"{format_count(one.max_nodes, 'node')} a job at most")
    said += [f"QOS {one.qos}"] if one.qos else []
    for word, names in (("accounts", one.allowed_accounts), ("QOS", one.allowed_qos)):
        said += [f"only {word} {', '.join(sorted(names))}"] if names else []
    said += ["hidden"] if one.hidden else []
    said += [f"now {one.state}"] if one.state != "UP" else []
    return f"{one.name}: {', '.join(said)}"


def describe_node_kind(kind: NodeKind) -> str:
    """Return nodes of a kind in words, with the share of CPUs and memory of each GPU."""
    memory = kind.memory_mb / 1024
    said = [f"{kind.cpus} CPUs ({kind.cores})" if kind.cores else f"{kind.cpus} CPUs", f"{memory:.0f} GB"]
    said += [
        f"{count} GPUs" + ("" if name == "gpu" else f" of type {name}")
        for name, count in kind.gpu_types.items()
    ]
    said += [f"{name}:{count}" for name, count in kind.gres.items() if not name.startswith("gpu")]
    said += [f"{kind.disk_mb / 1024:.0f} GB of local disk"] if kind.disk_mb else []
    share = (
        f"; for each GPU {kind.cpus / kind.gpus:.4g} CPUs, {memory / kind.gpus:.4g} GB" if kind.gpus else ""
    )
    features = f"; features {', '.join(kind.features)}" if kind.features else ""
    return f"{kind.partition}: {format_count(kind.nodes, 'node')} with {', '.join(said)}{share}{features}"


def describe_all_preemption(facts: SiteFacts) -> list[str]:
    """Return how jobs are preempted, and what that means for a run; one line if for none."""
    known = facts.list_preemption()
    settings = facts.site.settings
    if settings is not None and settings.preempt_type and not known:
        return ["jobs are not preempted"]
    wait = None if settings is None else settings.kill_wait
    return [f"{name}: {_describe_preemption(one, wait)}" for name, one in known.items()]


def _describe_preemption(found: Preemption, wait: timedelta | None) -> str:
    if found.mode is PreemptMode.off:
        return "its jobs are not preempted"
    if found.mode is PreemptMode.unknown:
        return "how its jobs are preempted is not known"
    if found.mode is PreemptMode.suspend:
        return "PreemptMode=SUSPEND: a run stands still while others run, and continues by itself"
    grace = found.grace or timedelta()
    left = f"GraceTime {grace.total_seconds():g} s"
    if wait is not None:
        total = (grace + wait).total_seconds()
        left = f"{total:g} s to save ({left}, KillWait {wait.total_seconds():g} s)"
        wished = Runtime().notice_grace_s
        left += f", less than runtime.notice_grace_s={wished:g}: save often" if total < wished else ""
    slurm = slurm_restarts_preempted_job(found.mode, requeueable=True)
    again = "Slurm requeues it" if slurm else "Slurm ends it for good, and hpckit submits it again"
    return f"PreemptMode={found.mode}: a preempted run has {left}; {again} (recovery.requeue)"


def _describe_account(one: Association) -> str:
    said = [f"only in partition {one.partition}"] if one.partition else []
    said += [f"QOS {', '.join(one.qos)}"] if one.qos else []
    said += [f"{format_time_span(one.max_wall)} at most"] if one.max_wall else []
    said += [format_count(one.max_submit, "job")] if one.max_submit is not None else []
    return f"{one.account}: {', '.join(said) or 'no limits of its own'}"


def _describe_qos(one: Qos) -> str:
    said = [f"{format_time_span(one.max_wall)} at most"] if one.max_wall else []
    counts = ((one.user_submit, "user"), (one.account_submit, "account"), (one.group_submit, "all together"))
    said += [f"{format_count(count, 'job')} ({whose})" for count, whose in counts if count is not None]
    return f"{one.name}: {', '.join(said) or 'no limits of its own'}"


def describe_settings(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield what follows from settings of Slurm for a run."""
    topology = settings.get("TopologyPlugin", "").rpartition("/")[2]
    words = {
        "tree": "a tree of switches: resources.switches=1 keeps a run below one",
        "block": "blocks of nodes: resources.segment=N keeps N nodes in one",
    }
    if topology in words:
        yield f"TopologyPlugin={topology}: {words[topology]}"
    private = settings.get("NamespaceType", settings.get("JobContainerType", ""))
    if "tmpfs" in private or "linux" in private:
        yield f"{private}: each job has a /tmp of its own, which is deleted at its end"
    for key, means in (
        ("KillWait", "from SIGTERM to SIGKILL"),
        ("MaxArraySize", "one more than the largest index of an array; sweeps are cut by it"),
        ("PropagateResourceLimits", "limits of the shell that launches, which jobs take over"),
        ("MpiDefault", "of srun; hpckit's own step uses --mpi=none"),
        ("TmpFS", "local disk, as the site names it"),
    ):
        if settings.get(key, "(null)") not in ("(null)", "", "none"):
            yield f"{key}={settings[key]}: {means}"


def _describe_trial(one: TriedOptions) -> str:
    takes = {True: "taken", False: "refused", None: "not decided, as nodes are away"}[one.takes]
    return f"{' '.join(one.options)} in {one.partition}: {takes}" + (f" ({one.said})" if one.said else "")


def describe_probe(probe: NodeProbe) -> str:
    """Return what a node said, in one paragraph."""
    if probe.said is None:
        return f"{probe.partition}: not seen: {probe.problem}"
    said = {key: list(values) for key, values in probe.said.items()}
    node = said.pop("node", [""])[0]
    parts = [f"{key} {', '.join(values)}" for key, values in said.items() if key not in ("clock", "scratch")]
    for place in said.get("scratch", []):
        folder, kind, *sizes = place.rsplit(" ", 3)
        free = f", {int(sizes[1]) / 2**20:.0f} GB free" if len(sizes) > 1 and sizes[1].isdecimal() else ""
        memory = ", counts as memory" if kind == "tmpfs" else ""
        parts.append(f"scratch {folder} ({kind}{free}{memory})")
    if probe.clock_offset_s is not None:
        parts.append(f"its clock differs by {probe.clock_offset_s:g} s from the file server's")
    return f"{probe.partition}, {node}: {'; '.join(parts)}"
