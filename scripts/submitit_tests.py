"""Runs submitit's own tests with `hpckit.Executor` in the place of its executors.

    python scripts/submitit_tests.py [PYTEST ARGUMENT ...]

submitit's wheel brings its tests; none of them is copied. docs/guides/executor.md lists what does
not pass, and why.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = (
    *("local/test_local.py", "test_helpers.py", "test_pickle.py"),
    *("auto/test_auto.py", "core/test_utils.py"),
)
"""Those of its public surface. The others are of its own parts: Slurm's programs replaced, plugins."""


def pytest_configure() -> None:
    """Put our executor in the place of submitit's, before its tests import one."""
    import submitit  # noqa: PLC0415
    from submitit.auto import auto  # noqa: PLC0415
    from submitit.core import utils  # noqa: PLC0415
    from submitit.local import local  # noqa: PLC0415

    import hpckit  # noqa: PLC0415
    from hpckit.errors import RunFailedError  # noqa: PLC0415

    class LocalExecutor(hpckit.Executor):
        """Takes the arguments of submitit's."""

        def __init__(self, folder: Any, max_num_timeout: int = 3, max_pickle_size_gb: float = 1.0) -> None:
            limits: dict[str, Any] = {
                "slurm_max_num_timeout": max_num_timeout,
                "max_pickle_size_gb": max_pickle_size_gb,
            }
            super().__init__(folder, cluster="local", **limits)

    local.LocalExecutor = LocalExecutor  # type: ignore[misc, assignment]
    submitit.AutoExecutor = auto.AutoExecutor = hpckit.Executor  # type: ignore[misc, assignment]
    original = utils.FailedJobError

    class Either(type):
        """A class of errors to which ours belong, too."""

        def __instancecheck__(cls, error: object) -> bool:
            return isinstance(error, RunFailedError | original)

    utils.FailedJobError = Either("FailedJobError", (original,), {})  # type: ignore[misc, assignment]


def main(arguments: list[str]) -> int:
    """Run the tests in an empty project; returns pytest's exit code."""
    import submitit  # noqa: PLC0415

    package = Path(submitit.__file__).parent
    with tempfile.TemporaryDirectory() as project:
        words = ["-p", Path(__file__).stem, "-p", "no:cacheprovider", "-ra", "--tb=short", "--no-header"]
        files = [str(package / test) for test in TESTS]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--rootdir",
            str(package.parent),
            *words,
            *arguments,
            *files,
        ]
        path = {"PYTHONPATH": str(Path(__file__).parent)}
        return subprocess.run(
            command, cwd=project, env={**__import__("os").environ, **path}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
