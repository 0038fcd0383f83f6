"""What a job asks Slurm for in tests that only care for some of it."""

from __future__ import annotations

from typing import Any

from hpckit.model.plan import ResourceSpec


def asking(**asked: Any) -> ResourceSpec:
    """Return the resources of a job of one node, with these differences."""
    nothing = dict.fromkeys(
        (
            *("mem_gb", "timeout", "partition", "account", "qos", "constraint", "nodelist"),
            *("exclude", "reservation", "gres", "dependency", "comment", "mail_type", "mail_user"),
        )
    )
    given: dict[str, Any] = {
        **nothing,
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": 1,
        "gpus_per_node": 0,
        "exclusive": False,
        "array_parallelism": 1,
        "additional_parameters": (),
        **asked,
    }
    return ResourceSpec(**given)
