"""Where features take part in a run: their modules, by section of the configuration.

The core asks for a function by name and imports a feature only for runs that use its section. What
the function takes and returns is said where it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

from hpckit.model import messages
from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import ContainerRuntime, has_data_settings
from hpckit.record.launches import Launch
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """A run on one node, for what prepares it there.

    `secret` is the attempt's; with `serves` other nodes may ask this one for what it has. `environ` is
    what the node's processes have, `tell` sends to the supervisor, from any thread.
    """

    launch: Launch
    index: int
    settings: LaunchConfig
    config: Mapping[str, Any]
    node: str
    secret: str
    serves: bool
    environ: Mapping[str, str]
    tell: Callable[[messages.Message], None]


class NodeFeature(Protocol):
    """What prepares a node for ranks, in its agent. No method may block: threads do the work.

    `port` is where it listens for other nodes, 0 if it does not.
    """

    port: int

    def follow(self, order: messages.Prepare | messages.BringOut) -> None:
        """Begin to prepare the node, or to bring results to where they stay; what comes of it is told."""

    def get_variables(self) -> Mapping[str, str]:
        """Return the variables that the node's ranks get."""

    def close(self, *, final: bool) -> None:
        """Leave the node; `final`: the run will not come back. It may block for seconds."""


def find_run_hooks(settings: LaunchConfig, config: Mapping[str, Any], name: str) -> list[Callable[..., Any]]:
    """Return the functions of this name of the features that a run uses, in the order of the table.

    `config` is the run's whole configuration.
    """
    modules = [import_module(module) for module, is_used in _FEATURES.items() if is_used(settings, config)]
    return [getattr(module, name) for module in modules if hasattr(module, name)]


def describe_inputs(
    settings: LaunchConfig, config: Mapping[str, Any], read: Callable[[str], str]
) -> dict[str, str]:
    """Return what features bring to a run, by name, and what that was at launch.

    `describe_inputs(*, config, read) -> Mapping[str, str]`: `read` returns the text of a frozen file.
    """
    hooks = find_run_hooks(settings, config, "describe_inputs")
    return {name: told for hook in hooks for name, told in hook(config=config, read=read).items()}


AGENT = "hpckit.runtime.agent"
DOORWAY = "hpckit.runtime.agent.doorway"
WATCH = "--watch"
"""Of the doorway: it starts no agent, and watches that of its node."""


def choose_agent_module(settings: LaunchConfig, config: Mapping[str, Any]) -> str:
    """Return what is started on each node: the doorway if a feature of the run starts the agent."""
    return DOORWAY if find_run_hooks(settings, config, "start_agent") else AGENT


_FEATURES: dict[str, Callable[[LaunchConfig, Mapping[str, Any]], bool]] = {
    "hpckit.features.staging.hooks": lambda _, config: has_data_settings(config),
    # Last: a container is around all that others start.
    "hpckit.features.containers.hooks": lambda settings, _: (
        settings.container.runtime is not ContainerRuntime.none
    ),
}
