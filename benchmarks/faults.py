"""TRL's GRPOTrainer under the faults of docs/reliability.md: how a run ends, and whether it can be resumed.

    python benchmarks/faults.py --against trl
    python benchmarks/faults.py --against trl --only C1,D1 --python /somewhere/bin/python
    python benchmarks/faults.py

The model is a tiny Llama with random weights on the CPU, with TRL's defaults except for the sizes, a learning rate of
1e-3, `bf16=False`, and metrics and a checkpoint at every step; each case is a separate process with a time limit. Runs
are resumed in the documented way, `resume_from_checkpoint=True`. qed under the same faults is `pytest -m faults`;
without `--against`, the groups are listed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from faults_parts import behaviour, commands, damage, resuming
from faults_parts.rival import Finding, Rival
from grading_parts.card import machine
from results import add_json, print_result

GROUPS: dict[str, Callable[[Rival], Iterator[Finding]]] = {
    "R1": resuming.r1,
    "R2": resuming.r2,
    "R3": resuming.r3,
    "K1": resuming.k1,
    "K2": resuming.k2,
    "C1": damage.c1,
    "C2": damage.c2,
    "D1": damage.d1,
    "S1": behaviour.s1,
    "F1": commands.f1,
    "N1": behaviour.n1,
    "N2": behaviour.n2,
    "H1": behaviour.h1,
    "B1": behaviour.b1,
    "L1": commands.l1,
    "P1": commands.p1,
    "P2": commands.p2,
}
ASK = "import json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in %r}))"
LIBRARIES = ("trl", "transformers", "accelerate", "datasets", "torch")


def main() -> None:
    """Run the groups, print the summary, then one line of JSON."""
    asked = _asked(sys.argv[1:])
    if not asked.against:
        for name in asked.only:
            print(f"{name}: {(GROUPS[name].__doc__ or '').partition(chr(10))[0]}")
        print_result({"groups": asked.only}, asked.json)
        return
    libraries = versions(asked.python)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        findings = measured(Rival(asked.python, asked.place or Path(folder)), asked.only)
    print(f"\n{machine()}, Python {platform.python_version()}, {libraries}\n")
    print("\n".join(card(findings)))
    print_result(
        {"machine": machine(), "versions": libraries, "findings": [one.plain() for one in findings]}, asked.json
    )


def measured(rival: Rival, groups: list[str]) -> list[Finding]:
    """Return the outcomes of the cases of these groups, and print each one as soon as it is known."""
    found = []
    for name in groups:
        for finding in GROUPS[name](rival):
            print(line(finding), file=sys.stderr, flush=True)
            found.append(finding)
    return found


def card(findings: Sequence[Finding]) -> list[str]:
    """Format a Markdown table with a line for each case."""
    lines = ["| group | case | exit code | seconds | outcome |", "|---|---|--:|--:|---|"]
    return lines + [line(finding) for finding in findings]


def line(finding: Finding) -> str:
    """Format a line of the table."""
    code = "" if finding.ended.code is None else str(finding.ended.code)
    outcome = finding.outcome.replace("|", "\\|")
    return f"| {finding.group} | {finding.case} | {code} | {finding.ended.seconds:.0f} | {outcome} |"


def versions(python: Path) -> dict[str, Any]:
    """Return the versions of the rival and its libraries; exit if it is not installed."""
    done = subprocess.run([str(python), "-c", ASK % (LIBRARIES,)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"TRL is not installed for {python} (qed[bench]): {done.stderr.splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def groups_of(text: str) -> list[str]:
    """Return the groups of a comma-separated list, in the order of the table."""
    names = [name.strip().upper() for name in text.split(",")]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown groups: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return [name for name in GROUPS if name in names]


def _asked(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    parser.add_argument("--against", choices=("trl",), help="the rival; TRL must be installed (qed[bench])")
    parser.add_argument("--only", type=groups_of, default=list(GROUPS), help="groups of cases, such as C1,D1")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the rival's interpreter")
    parser.add_argument("--place", type=Path, help="folder to keep runs and logs in; by default they are deleted")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
