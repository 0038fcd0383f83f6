"""Hands tests the sandbox of the integration tests, and a place that several users share."""

from adversarial.shared_place import mine, place, world
from integration.conftest import _leave_nothing, sandbox

__all__ = ["_leave_nothing", "mine", "place", "sandbox", "world"]
