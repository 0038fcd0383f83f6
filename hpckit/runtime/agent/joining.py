"""How an agent joins its attempt: it finds the supervisor, and what prepares its node for ranks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.errors import ChannelError, FrozenFolderError, HpckitError, NodeError
from hpckit.model import messages
from hpckit.model.failure import Cause
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.store import read_json
from hpckit.run_features import NodeContext, NodeFeature, find_run_hooks
from hpckit.runtime.agent.rank_starter import RankOutlook
from hpckit.runtime.channel import tcp
from hpckit.runtime.environ import SATELLITE, copy_environment, find_node_name

FOLDER_WAIT_S = 30.0
"""How long a node may take to see files that another node has just written.

NFS attribute caches hold up to 30 s.
"""

_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 0.0)
"""Longest waits of an agent before it connects again; after the last one it gives up."""


async def connect_to_supervisor(paths: AttemptPaths) -> tcp.Channel:
    """Read where the supervisor listens and connect; raises FrozenFolderError, ChannelError."""
    secret = (await _wait_for_file(paths.secret)).read_text().strip()
    address = read_json(await _wait_for_file(paths.address))
    for pause_s in _PAUSES_S:
        try:
            return await tcp.connect_to_any_address(address["hosts"], address["port"], secret)
        except ChannelError as error:
            problem = error.message
        # All agents of a job call at once: those that found no room must not all retry at once.
        await asyncio.sleep(pause_s * random.random())  # noqa: S311  # no secret
    raise ChannelError(
        f"node {find_node_name()} cannot reach the supervisor at port {address['port']}: {problem}",
        hint="nodes of one job must be able to open TCP connections to each other",
    )


async def _wait_for_file(path: Path) -> Path:
    deadline = asyncio.get_running_loop().time() + FOLDER_WAIT_S
    while not os.access(path, os.R_OK):
        if asyncio.get_running_loop().time() > deadline or not path.parent.parent.is_dir():
            raise FrozenFolderError(
                f"node {find_node_name()} cannot read {path}, which the supervisor wrote on another node",
                hint="put output_dir on a file system that all nodes see",
            )
        await asyncio.sleep(0.2)
    return path


def tell_of_refusal(arguments: Sequence[str], error: NodeError) -> None:
    """Tell the supervisor of an attempt (its launch folder, run and number) why this node has no agent."""
    paths = LaunchPaths(Path(arguments[0])).run(int(arguments[1])).attempt(int(arguments[2]))
    refusal = messages.Refused(
        node=find_node_name(),
        cause=Cause(error.cause),
        problem=f"{error.message}\n  {error.hint}".rstrip(),
        satellite=copy_environment().get(SATELLITE),
    )

    async def tell() -> None:
        async with asyncio.timeout(FOLDER_WAIT_S):
            channel = await connect_to_supervisor(paths)
            await channel.send(refusal)
            await channel.receive()  # it ends the connection once it has taken this in
            await channel.close()

    with contextlib.suppress(HpckitError, OSError, TimeoutError):  # the log of the step has it, too
        asyncio.run(tell())


def open_node_feature(
    outlook: RankOutlook,
    config: Mapping[str, Any],
    send: Callable[[messages.Message], Coroutine[Any, Any, None]],
) -> NodeFeature | None:
    """Return what prepares this node for the ranks of a run; None if nothing is to be prepared.

    `send` is awaited in this loop with what it tells the supervisor.
    """
    loop = asyncio.get_running_loop()
    hooks = find_run_hooks(outlook.settings, config, "prepare_node")
    if not hooks:
        return None

    def tell(message: messages.Message) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.run_coroutine_threadsafe(send(message), loop)

    context = NodeContext(
        launch=outlook.launch,
        index=int(outlook.run.folder.name),
        settings=outlook.settings,
        config=config,
        node=outlook.node,
        secret=outlook.attempt.secret.read_text().strip(),
        serves=outlook.info.world_size > 1,
        environ=copy_environment(),
        tell=tell,
    )
    feature: NodeFeature = hooks[0](context)
    return feature
