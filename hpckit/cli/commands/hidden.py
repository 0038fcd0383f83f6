"""The verbs that only hpckit itself calls, in batch scripts, jobs and agents; `--help` hides them.

What a verb does is imported when it runs: a supervisor needs nothing of what resumes runs.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from types import ModuleType

from hpckit.context import Context
from hpckit.record.launches import load_launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that hpckit passes to the parser's verb."""
    verb = parser.prog.split()[-1]
    if verb == "node-facts":
        return  # the variables of its run say all
    parser.add_argument("folder", type=Path, help="the launch folder")
    if verb == "local":
        parser.add_argument(
            "--job", type=int, action="append", help="a job to work through (default: those frozen)"
        )
        return
    parser.add_argument("--job", type=int, required=True, help="index of the job in the launch")
    if verb == "supervise":
        parser.add_argument("--run", type=int, help="index of the run; else the array element's")
    if verb == "supervisor-lost":
        parser.add_argument("--run", type=int, required=True, help="index of the run")
        parser.add_argument("attempt", type=int, help="number of the attempt")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Do what the verb is for; return the exit code, which is 0 also if there is nothing to do."""
    verb, code = arguments.words[0], 0
    if verb == "node-facts":
        import_module("hpckit.operations.environment").write_node_facts(context)
        return code
    launch, index = load_launch(arguments.folder), arguments.job
    if verb == "local":
        jobs = tuple(index or ())
        code = _import_batch_module("local_executor").run_local_jobs(launch, jobs, context, arguments.program)
    elif verb == "auto-resume":
        _import_batch_module("auto_resume").run_auto_resume_job(launch, index, context)
    elif verb == "supervisor-lost":
        lost = _import_batch_module("supervisor_lost")
        lost.restart_or_end_orphaned_run(launch, index, arguments.run, arguments.attempt, context)
    else:
        supervise = _import_batch_module("supervise")
        job = supervise.find_launch_job(launch, index)
        if verb == "satellite":
            code = _import_batch_module("satellite").lend_job_nodes_to_run(launch, job, context)
        elif job.shared_job is not None and arguments.run is None:
            executor = _import_batch_module("shared_job.executor")
            code = executor.run_shared_job(launch, job, context, arguments.program)
        else:
            code = supervise.supervise_run(launch, job, arguments.run, context)
    return code


def _import_batch_module(name: str) -> ModuleType:
    return import_module(f"hpckit.batch.{name}")
