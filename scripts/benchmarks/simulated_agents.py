"""All agents of an attempt in one process, with ranks that exist only as messages.

Stands in for srun: `python -m benchmarks.simulated_agents SETTINGS … LAUNCH RUN ATTEMPT`. It sends
what agents and ranks would send, and notes the times. The channel, and the way to the supervisor,
are the real agents'.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scale import Scale
from hpckit.model import messages
from hpckit.model.failure import ExitReason, RankExit
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.runtime.agent.joining import connect_to_supervisor
from hpckit.runtime.channel import tcp
from hpckit.runtime.channel.pace import message_interval_s
from hpckit.runtime.clock import now

GUILTY = 5
"""The rank that fails by itself."""
_NODE_TIMEOUT_S = 6.0
_SETTLE_S = 2.0
_FRAMES = '  File "/project/train.py", line 10, in step\n    loss.backward()\n' * 8
_TRACE = f"Traceback (most recent call last):\n{_FRAMES}"
_PORT = 29500


@dataclass(slots=True)
class Cast:
    """All agents. `times` are the noted times, by the wall clock."""

    scale: Scale
    paths: AttemptPaths
    times: dict[str, float] = field(default_factory=dict)
    channels: dict[int, tcp.Channel] = field(default_factory=dict)
    addressed: int = 0
    step: int = -1
    everyone: asyncio.Event = field(default_factory=asyncio.Event)

    async def perform(self) -> None:
        """Connect all agents at once, train a while, let a rank fail, and leave when asked to."""
        self.times["called"] = time.time()
        async with asyncio.TaskGroup() as group:
            for node in range(self.scale.nodes):
                group.create_task(self._serve(node))
            failing = group.create_task(self._train_and_fail())
        await failing

    async def _serve(self, node: int) -> None:
        """Act as one agent."""
        channel = self.channels[node] = await connect_to_supervisor(self.paths)
        channel.send_without_waiting(messages.Hello(node=f"n{node:05d}", node_rank=node, pid=os.getpid()))
        beating = asyncio.create_task(self._beat(node, channel))
        try:
            while (message := await channel.receive()) is not None:
                if isinstance(message, messages.Shutdown):
                    return
                self._follow(node, channel, message)
        finally:
            beating.cancel()
            await channel.close()

    async def _beat(self, node: int, channel: tcp.Channel) -> None:
        """Send what a real agent sends: the newest step if there is one, else a heartbeat."""
        told = -1
        while True:
            await asyncio.sleep(message_interval_s(self.scale.nodes, _NODE_TIMEOUT_S))
            if self.step > told:
                told = self.step
                channel.send_without_waiting(messages.StepBegun(rank=self._ranks(node)[0], step=told))
            else:
                channel.send_without_waiting(messages.Beat())

    def _follow(self, node: int, channel: tcp.Channel, message: messages.Message) -> None:
        match message:
            case messages.ReservePort():
                self.times["gathered"] = time.time()
                channel.send_without_waiting(messages.PortReserved(port=_PORT))
            case messages.StartRound() if node == 0:
                self.times["bound"] = time.time()
                channel.send_without_waiting(messages.StoreBound(port=_PORT))
            case messages.StoreAddress():
                self.addressed += 1
                if self.addressed == self.scale.nodes:
                    self.times["heard"] = time.time()
                    self.everyone.set()
            case messages.StopRound():
                for rank in self._ranks(node):
                    if rank != GUILTY:
                        self._end(rank, "RuntimeError", "[gloo] Connection closed by peer")

    def _ranks(self, node: int) -> range:
        first = node * self.scale.tasks_per_node
        return range(first, first + self.scale.tasks_per_node)

    def _end(self, rank: int, exception: str, message: str) -> None:
        node = rank // self.scale.tasks_per_node
        trace = f"{_TRACE}{exception}: {message}\n"
        record = RankExit(
            rank=rank,
            node=f"n{node:05d}",
            code=1,
            reason=ExitReason.raised,
            exception=exception,
            message=message,
            traceback=trace,
            at=now(),
        )
        self.channels[node].send_without_waiting(messages.RankEnded(round=0, exit=record))

    async def _train_and_fail(self) -> None:
        """Begin a step every second, and let one rank fail."""
        await self.everyone.wait()
        await asyncio.sleep(_SETTLE_S)
        before, began = self._supervisor_cpu_s(), time.monotonic()
        while time.monotonic() - began < self.scale.idle_s:
            self.step += 1
            await asyncio.sleep(1.0)
        used = self._supervisor_cpu_s() - before
        self.times["cpu_share_idle"] = used / (time.monotonic() - began)
        time.sleep(self.scale.starved_s)  # noqa: ASYNC251  # the whole process must stand still
        await asyncio.sleep(0)
        self.times["failed"] = time.time()
        self._end(GUILTY, "ValueError", "the user's own mistake")

    def _supervisor_cpu_s(self) -> float:
        """Return the CPU time of the supervisor, the parent of this process."""
        text = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Play the attempt, and write the times to the file named in the settings."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    told = Path(settings.pop("told"))
    launch, index, attempt = sys.argv[-3:]
    paths = LaunchPaths(Path(launch)).run(int(index)).attempt(int(attempt))
    cast = Cast(Scale(**settings), paths)
    asyncio.run(cast.perform())
    told.write_text(json.dumps(cast.times), encoding="utf-8")


if __name__ == "__main__":
    main()
