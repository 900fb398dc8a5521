"""qed's verdicts as a worker: generated responses, new ones each round, so that nothing is cached."""

from __future__ import annotations

import random

from qed.grading.equal import equal
from qed.grading.extract import extract_final_answer
from speed_parts.pace import Pace

LINE = "so we add both numbers and then divide the sum by two which gives what was asked for in problem {}."


def main() -> None:
    """Grade in each round."""
    pace = Pace()
    pace.ready()
    number = 0
    while True:
        rows = make_responses(pace.settings["responses"], number)
        pace.restart()
        right = 0
        for gold, response in rows:
            found = extract_final_answer(response)
            right += found is not None and equal(gold, found.answer).correct
        pace.done(tokens=len(rows), right=right)
        number += 1


def make_responses(count: int, seed: int) -> list[tuple[str, str]]:
    """Return gold answers and responses: a few lines of text, then mostly an answer, half of which are right."""
    chance, rows = random.Random(seed), []
    for _ in range(count):
        one, two = chance.randint(2, 99_999), chance.randint(2, 99)
        gold, *others = chance.choice(
            [
                (f"{one}", f"{one:,}", f"{one}.0", f"{one + 1}"),
                (f"\\frac{{{one}}}{{{two}}}", f"{one}/{two}", f"\\dfrac{{{one}}}{{{two}}}", f"{one + two}/{two}"),
                (f"{one / 100}", f"{one / 100:.3f}", f"\\${one / 100}", f"{one / 10}"),
                (f"{two}\\sqrt{{{one}}}", f"\\sqrt{{{one}}} \\cdot {two}", f"{two}\\sqrt{{{one + 1}}}"),
                (f"({one}, {two})", f"\\left({one},{two}\\right)", f"({two}, {one})"),
                (f"{two}\\%", f"{two}", f"{two + 1}\\%"),
                (f"x={one}", f"{one}", f"x = {one}", f"y={one + 1}"),
                (f"{one} cm", f"{one}\\text{{ cm}}", f"{one + 3}"),
            ]
        )
        lines = [LINE.format(chance.randint(1, 999)) for _ in range(6)]
        shape = chance.choice(
            ("So it is $\\boxed{{{}}}$.", "The answer is {}.", "#### {}", "<answer> {} </answer>", "I do not know.")
        )
        rows.append((gold, "\n".join([*lines, shape.format(chance.choice(others))])))
    return rows


if __name__ == "__main__":
    main()
