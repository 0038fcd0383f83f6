"""Hydra's own suites for launchers, with hpckit's: real applications, and functions in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite
from tiers import thorough

Plugins.instance()  # so that the state that the suites restore has them

_WAIT = "hydra.launcher.wait=true"
_NOT_OURS = {
    "test_failure_preserves_task_traceback": "of Hydra 1.4: the sweep raises RunFailedError, with what the "
    "function raised as a note"
}
_pickled = pytest.mark.parametrize(("launcher_name", "overrides"), [("hpckit_local", [_WAIT])])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if request.node.originalname in _NOT_OURS:
        request.applymarker(pytest.mark.xfail(reason=_NOT_OURS[request.node.originalname]))


@_pickled
@pytest.mark.usefixtures("hydra_restore_singletons")
class TestFunctionOfAnotherProgram:
    """A function that no program can be started again for is pickled, with what Hydra holds."""

    test_sweep_with_custom_resolver = LauncherTestSuite.test_sweep_with_custom_resolver


@thorough
@_pickled
class TestLauncher(LauncherTestSuite):
    """All of such functions."""


@thorough
@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"), [({}, ["-m", "hydra/launcher=hpckit_local", _WAIT])]
)
class TestIntegration(IntegrationTestSuite):
    """Applications that are started again."""
