"""Renders the batch script of a job from its plan. Pure, except for reading the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import jinja2

from hpckit.errors import TemplateError
from hpckit.model.cluster.gpus_asked import rank_cpus_from_cpus_per_gpu
from hpckit.model.plain import MASK
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.patterns import lazy_pattern
from hpckit.planning.jobs.stage_jobs import format_dependency_template
from hpckit.record.layout import LaunchPaths
from hpckit.slurm.clusters import HINT
from hpckit.slurm.quoting import FILTERS, refuse_unquoted_value
from hpckit.slurm.template_blocks import TemplateBlocks

SHIPPED = "hpckit"
"""The prefix by which a user's template refers to the shipped one: `hpckit/job.sbatch.j2`."""

AUTO_RESUME = "auto_resume.sbatch.j2"
"""The template of jobs without runs; it extends the template of the launch's jobs."""

SATELLITE = "satellite.sbatch.j2"
"""The template of jobs that bring nodes to a running run; it extends the same template."""

_STATED = {
    "array": "sweep to get an array; resources.array_parallelism bounds it",
    "cluster-constraint": HINT,
    "clusters": HINT,
    "chdir": "a run starts in its own folder",
    "cpus-per-task": "set resources.cpus_per_task",
    "error": "logs go to the launch folder",
    "gpus-per-node": "set resources.gpus_per_node",
    "job-name": "set name",
    "nodes": "set resources.nodes",
    "no-kill": "set resources.min_nodes or resources.spare_nodes",
    "no-requeue": "set recovery.requeue",
    "ntasks": "set resources.nodes and resources.tasks_per_node",
    "ntasks-per-node": "set resources.tasks_per_node",
    "open-mode": "hpckit always appends to logs",
    "output": "logs go to the launch folder",
    "requeue": "set recovery.requeue",
    "wrap": "set command",
}
"""Options that only the plan may set, and what to set instead."""

_GOES_ON = lazy_pattern(r"<<|\n|(\\|&&|\||[{(]|\b(then|do|else|in))\s*$|^\s*([})]|fi|done|esac)")
_CHAINED = lazy_pattern(r"^(?!.*\|\|)[^#]*(&&|\|)")
_CONDITION = lazy_pattern(
    r"\s*([\[!(]|test\b|grep\b|command -v|type\b|which\b|if\b|for\b|while\b|until\b|case\b|\S+\(\))"
)
_CONTROL = lazy_pattern(r"[\x00-\x1f\x7f]+")


def render_batch_script(plan: LaunchPlan, job: JobSpec, template_folders: Sequence[Path]) -> str:
    """Return the batch script of a job; raises TemplateError.

    `template_folders` are searched in order for `cluster.template`, or for the template of
    auto-resume jobs and satellites; the last is the shipped one.
    """
    name = plan.cluster.template
    folders = list(template_folders)
    if Path(name).is_absolute():
        folders.insert(0, Path(name).parent)
        name = Path(name).name
    text = _render_for_job_kind(name, folders, build_template_variables(plan, job), job)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateError(
            f"the script of {job.name} has the character {error.object[error.start]!r}, which is "
            "not valid UTF-8",
            hint="look for a file or folder name with a broken encoding",
        ) from error
    return text


def _render_for_job_kind(
    name: str, folders: Sequence[Path], variables: Mapping[str, Any], job: JobSpec
) -> str:
    if job.runs:
        return _check_script_calls_hpckit(_render_template(name, folders, variables), name, verb="supervise")
    if job.satellite is not None:
        return _render_service_script(name, folders, variables, template=SATELLITE, verb="satellite")
    return _render_service_script(name, folders, variables, template=AUTO_RESUME, verb="auto-resume")


def _check_script_calls_hpckit(text: str, name: str, *, verb: str) -> str:
    hint = f'begin it with `{{% extends "{SHIPPED}/job.sbatch.j2" %}}`, and change its blocks'
    if not text.startswith("#!"):
        start = repr(text[:20]) if text.strip() else "nothing"
        raise TemplateError(f"the script of template {name} begins with {start} instead of #!", hint=hint)
    if not any(verb in line for line in text.splitlines() if not line.lstrip().startswith("#")):
        raise TemplateError(
            f"the script of template {name} does not call `hpckit {verb}`: it would start nothing", hint=hint
        )
    return text


def _render_service_script(
    name: str, folders: Sequence[Path], variables: Mapping[str, Any], *, template: str, verb: str
) -> str:
    """Return the script of a job that runs another verb, by a template that extends the job's."""
    text = _render_template(template, folders, variables, job_template=name)
    if f"hpckit {verb}" not in text:
        raise TemplateError(
            f"template {name} has no block `run` for the command of {verb} jobs",
            hint=f"extend {SHIPPED}/job.sbatch.j2, or put your own {template} next to it",
        )
    return _check_script_calls_hpckit(text, template, verb=verb)


def build_template_variables(plan: LaunchPlan, job: JobSpec) -> dict[str, Any]:
    """Return the variables for the template of this job; raises TemplateError.

    `options` are the remaining sbatch options in order, with None for one without a value; they are
    made from `resources`. `array` is None for a job with one run. `log` contains Slurm's own
    patterns. `nodes` includes the spare ones. `dependency` is set if the job belongs to a stage
    that follows another one, with `$JOB0` for Slurm's id of job 0. `judged` are the lines of
    `setup` after which the script may check the exit code of the whole line.
    """
    resources, cluster = job.resources, plan.cluster
    return {
        "launch": plan.id,
        "job_name": job.name,
        "job_index": job.index,
        "folder": plan.folder,
        "log": _build_log_path(plan.folder, job),
        "nodes": resources.allocated_nodes,
        "tasks_per_node": resources.tasks_per_node,
        "cpus_per_task": None if rank_cpus_from_cpus_per_gpu(resources) else resources.cpus_per_task,
        "gpus_per_node": resources.gpus_per_node,
        "gpu_type": resources.gpu_type,
        "array": f"0-{job.array_element_count - 1}%{resources.array_parallelism}" if job.is_array else None,
        "requeue": job.requeue,
        "options": (*_list_sbatch_options(resources), *_list_additional_options(resources)),
        "resources": resources,
        "modules": tuple(cluster.modules),
        # Secrets are only for the ranks: any user who can see a job may see its script.
        "environment": tuple((name, text) for name, text in cluster.env.items() if text != MASK),
        "setup": tuple(cluster.setup),
        "judged": _list_chained_setup_lines(cluster.setup),
        "python": plan.python,
        "dependency": format_dependency_template(job),
    }


def _list_chained_setup_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that are chains or pipes; none if a statement extends over several lines."""
    if any(_GOES_ON.search(line) or line.count("'") % 2 or line.count('"') % 2 for line in lines):
        return ()
    return tuple(line for line in lines if _CHAINED.search(line) and not _CONDITION.match(line))


def _build_log_path(folder: str, job: JobSpec) -> str:
    if "\\" in folder:
        # A backslash disables %j in Slurm's log names, and no release can escape one.
        raise TemplateError(
            f"the launch folder {folder!r} has a backslash in its path; Slurm cannot write logs there",
            hint="set output_dir to a folder without one",
        )
    pattern = "%A_%a" if job.is_array else "%j"
    logs = str(LaunchPaths(Path(folder)).logs).replace("%", "%%")
    return f"{logs}/job-{job.index}-{pattern}.log"


def _list_sbatch_options(resources: ResourceSpec) -> list[tuple[str, str | None]]:
    comment = resources.comment
    values: dict[str, str | None] = {
        "mem": None if resources.mem_gb is None else _format_memory(resources.mem_gb),
        "time": None if resources.timeout is None else _format_time_limit(resources.timeout),
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "nodelist": resources.nodelist,
        "exclude": resources.exclude,
        "reservation": resources.reservation,
        "switches": resources.switches,
        "segment": None if resources.segment is None else str(resources.segment),
        "gres": resources.gres,
        "dependency": resources.dependency,
        "comment": None if comment is None else _CONTROL.sub(" ", comment),
        "mail-type": resources.mail_type,
        "mail-user": resources.mail_user,
    }
    flags = {"exclusive": resources.exclusive, "no-kill": resources.survives_node_loss}
    stated: list[tuple[str, str | None]] = [(key, text) for key, text in values.items() if text]
    return [*stated, *((name, None) for name, said in flags.items() if said)]


def _format_memory(gigabytes: float) -> str:
    return f"{gigabytes:.0f}G" if gigabytes == int(gigabytes) else f"{gigabytes * 1024:.0f}M"


def _format_time_limit(limit: timedelta) -> str:
    minutes, seconds = divmod(int(limit.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"


def _list_additional_options(resources: ResourceSpec) -> list[tuple[str, str | None]]:
    """Return the user's own options: true is an option without a value; null and false are none."""
    options: list[tuple[str, str | None]] = []
    for key, value in resources.additional_parameters:
        name = key.replace("_", "-")
        if name in _STATED:
            raise TemplateError(
                f"resources.additional_parameters.{key} conflicts with an option of hpckit",
                hint=_STATED[name],
            )
        if value is True:
            options.append((name, None))
        elif isinstance(value, str):
            options.append((name, value))
    return options


def _render_template(name: str, folders: Sequence[Path], fields: Mapping[str, Any], **more: str) -> str:
    variables = {**fields, **more}
    try:
        environment = _create_jinja_environment(folders)
        TemplateBlocks(environment=environment, names=more).check_template(name)
        return environment.get_template(name).render(variables)
    except jinja2.TemplateNotFound as error:
        raise _build_missing_template_error(str(error.name or name), folders) from error
    except jinja2.UndefinedError as error:
        raise TemplateError(
            f"{_locate_template_error(error, name)}: {error.message}",
            hint=f"a template may use: {', '.join(variables)}",
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"template {error.name}, line {error.lineno}: {error.message}") from error
    except TemplateError as error:
        raise TemplateError(
            f"{_locate_template_error(error, name)}: {error.message}", hint=error.hint
        ) from error
    except RecursionError as error:
        raise TemplateError(
            f"template {name} includes or extends itself",
            hint=f'the shipped template is always `{{% extends "{SHIPPED}/job.sbatch.j2" %}}`',
        ) from error
    except UnicodeDecodeError as error:
        raise TemplateError(
            f"template {name}, or one that it extends, is not UTF-8: byte {error.start} is "
            f"{error.object[error.start]:#x}",
            hint="convert it, for example: iconv -f latin1 -t utf-8 OLD > NEW",
        ) from error
    except Exception as error:  # a template is a program of its writer's
        raise TemplateError(
            f"{_locate_template_error(error, name)}: {type(error).__name__}: {error}",
            hint="correct the expression there",
        ) from error


def _create_jinja_environment(folders: Sequence[Path]) -> jinja2.Environment:
    loaders: list[jinja2.BaseLoader] = [jinja2.FileSystemLoader(folders)]
    if folders:
        loaders.append(jinja2.PrefixLoader({SHIPPED: jinja2.FileSystemLoader(folders[-1])}))
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        undefined=jinja2.StrictUndefined,
        # Not for HTML: it makes blocks and macros return Markup, as our filters do.
        autoescape=True,
        finalize=refuse_unquoted_value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment


def _build_missing_template_error(name: str, folders: Sequence[Path]) -> TemplateError:
    searched = "\n".join(f"    {folder}" for folder in folders) or "    (no folder)"
    return TemplateError(
        f"there is no template {name!r}; searched in this order:\n{searched}",
        hint="set cluster.template to a file in one of them, or to an absolute path",
    )


def _locate_template_error(error: BaseException, name: str) -> str:
    """Return template and line of an error: Jinja2 maps tracebacks to the template's lines."""
    place, trace = f"template {name}", error.__traceback__
    while trace is not None:
        code: Any = trace.tb_frame.f_code
        if code.co_filename.endswith(".j2") or "__jinja_template__" in trace.tb_frame.f_globals:
            place = f"template {Path(code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place
