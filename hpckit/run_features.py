"""Where features take part in a run: their modules, by section of the configuration.

The core asks for a function by name and imports a feature only for runs that use its section. What
the function takes and returns is said where it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import ContainerRuntime, find_data_settings


def find_run_hooks(settings: LaunchConfig, config: Mapping[str, Any], name: str) -> list[Callable[..., Any]]:
    """Return the functions of this name of the features that a run uses, in the order of the table.

    `config` is the run's whole configuration.
    """
    modules = [import_module(module) for module, is_used in _FEATURES.items() if is_used(settings, config)]
    return [getattr(module, name) for module in modules if hasattr(module, name)]


AGENT = "hpckit.runtime.agent"


def choose_agent_module(settings: LaunchConfig, config: Mapping[str, Any]) -> str:
    """Return what is started on each node: the doorway if a feature of the run starts the agent."""
    return f"{AGENT}.doorway" if find_run_hooks(settings, config, "start_agent") else AGENT


_FEATURES: dict[str, Callable[[LaunchConfig, Mapping[str, Any]], bool]] = {
    "hpckit.features.staging.hooks": lambda _, config: find_data_settings(config) is not None,
    # Last: a container is around all that others start.
    "hpckit.features.containers.hooks": lambda settings, _: (
        settings.container.runtime is not ContainerRuntime.none
    ),
}
