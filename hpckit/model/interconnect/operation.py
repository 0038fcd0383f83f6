"""What `hpckit bench comm` measures: operations between ranks, and between host and device."""

from __future__ import annotations

from enum import StrEnum


class CommOperation(StrEnum):
    """An operation, by the name that torch and NCCL use."""

    all_reduce = "all_reduce"
    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_to_all = "all_to_all"
    broadcast = "broadcast"
    point_to_point = "point_to_point"
    host_to_device = "host_to_device"
    device_to_host = "device_to_host"

    @property
    def needs_device(self) -> bool:
        """Whether it copies between the host's memory and a GPU's; all others join ranks."""
        return self in {CommOperation.host_to_device, CommOperation.device_to_host}


class SearchMode(StrEnum):
    """How a slow node or link is searched for."""

    auto = "auto"
    """if more than two nodes do not reach what their networks promise, or promise nothing known"""
    pairs = "pairs"
    """every pair of nodes once, in the rounds of a tournament"""
    bisect = "bisect"
    """halves of the nodes, then the slow half's: few rounds for many nodes"""
    never = "never"
