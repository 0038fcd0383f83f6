"""Hands the tests that strike a run on a real Slurm the same sandbox as the integration tests."""

from integration.conftest import _leave_nothing, sandbox

__all__ = ["_leave_nothing", "sandbox"]
