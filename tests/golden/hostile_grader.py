"""Grades the lines of its standard input, one at a time, and reports what ran: a child of test_equal.py.

Hostile text is graded here and nowhere else: in a process that may be killed, with little memory, in an empty folder.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from qed.grading.equal import equal
from qed.grading.extract import extract_final_answer

FORBIDDEN = {"os.system", "subprocess.Popen", "os.fork", "os.exec", "os.kill", "import", "exec", "compile"}
ran: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Remember every event that answer text must not cause."""
    if event in FORBIDDEN or (event == "open" and str(arguments[1]) not in {"r", "rb", "None"}):
        ran.append(event)


def grade(case: dict[str, Any]) -> bool:
    """The verdict, through extraction where the case is a response."""
    answer: str = case["prediction"]
    if case["kind"] == "response":
        found = extract_final_answer(answer)
        if found is None:
            return False
        answer = found.answer
    return equal(case["gold"], answer).correct


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    # Whatever is imported late is imported now, and the clean process of the symbolic tier is started.
    equal("\\sqrt2", "\\sqrt{2}+0")
    equal("55", "\\sum_{k=1}^{10} k")
    sys.addaudithook(watch)
    for line in sys.stdin:
        case = json.loads(line)
        started = time.perf_counter()
        correct = grade(case)
        sys.stdout.write(json.dumps([correct, time.perf_counter() - started, ran]) + "\n")
        sys.stdout.flush()
