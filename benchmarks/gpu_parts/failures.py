"""A pytest plugin that prints why a test failed immediately, before its outcome."""

from __future__ import annotations

import pytest


class _Failures:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the traceback of a failed test."""
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"{report.nodeid}, {report.when}:\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    """Print failures in the process that has the terminal."""
    config.pluginmanager.register(_Failures(config), "gpu-kit-failures")
