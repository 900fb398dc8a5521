"""The findings for people, and the words for the table in docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence

from faults_parts.rival import Finding


def card(findings: Sequence[Finding]) -> list[str]:
    """A table in Markdown, a line for each case."""
    lines = ["| group | case | exit code | seconds | outcome |", "|---|---|--:|--:|---|"]
    return lines + [line(finding) for finding in findings]


def line(finding: Finding) -> str:
    """A line of the table."""
    code = "" if finding.ended.code is None else str(finding.ended.code)
    outcome = finding.outcome.replace("|", "\\|")
    return f"| {finding.group} | {finding.case} | {code} | {finding.ended.seconds:.0f} | {outcome} |"
