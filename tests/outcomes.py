"""Writes down which tests failed, in the file that HPCKIT_TEST_RECORD names: a pytest plugin.

One JSON object a line. tests/second_try.py reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "HPCKIT_TEST_RECORD"


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that hears of all tests: not in its workers, not in their children."""
    if path := os.environ.pop(VARIABLE, ""):
        config.pluginmanager.register(_Record(Path(path), config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the report say if the test is exact: the reports of workers have no markers."""
    report = yield
    report.exact = item.get_closest_marker("exact") is not None  # type: ignore[attr-defined]
    return report


class _Record:
    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path, self._config = path, config
        self._passed = 0
        self._ended: dict[str, Any] = {}

    def _write(self, **values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # The report of a worker that crashed comes from no test: it cannot say if it is exact.
            exact = getattr(report, "exact", None)
            self._write(failed=report.nodeid, exact=exact, reason=_reason(report))
        self._passed += report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(broken=f"{report.nodeid} cannot be collected")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = str(session.shouldstop or session.shouldfail or "")
        self._ended = {"status": int(exitstatus), "stopped": stopped, "passed": self._passed}

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None, "pytest has been told to print nothing"
        parts, _ = reporter.build_summary_stats_line()
        closing = ", ".join(text for text, _ in parts)
        self._write(**self._ended, closing=closing)


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = (lines[0] if crash is not None else lines[-1]) if lines else "no reason was given"
    return f"{report.when} after {report.duration:.1f} s: {line}"
