"""One answer token by token, the grader's steps, and hostile texts as pieces."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
from asking_views import Asked
from hostile_texts import PAYLOADS
from making_views import ANSWERS, Plan, build_group, build_stats, build_tokenizer, make_view, open_run, write_stats

from qed.report.formulas import ALLOWED_ATTRIBUTES, ALLOWED_ELEMENTS, split_formulas
from qed.runs.run import Run
from qed.types import Grade, Problem, Rollout
from qed.viewer import explaining
from qed.viewer.params import Refused
from qed.viewer.texts import MAX_TEXT, build_answer_pieces, build_pieces

PLAN = Plan("first", steps=6)
STEP = 6
THINK = ("<think>", "</think>")
LEFT_OUT = re.compile(r"</?think>|\n")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The endpoints over a run of the run's own writers."""
    folder = tmp_path_factory.mktemp("views")
    make_view(folder, PLAN)
    return Asked(folder / "first", cache=folder / "cache")


def join(pieces: list[dict[str, Any]]) -> str:
    """The text of pieces without the tags of thoughts."""
    parts = (piece.get("text") or piece.get("source") or join(piece.get("thought", [])) for piece in pieces)
    return "".join(parts)


def write_answers(folder: Path, *rollouts: Rollout) -> Asked:
    """A run with one group."""
    run = Run(folder)
    run.write("settings.yaml", b"{method: grpo}")
    run.rollouts(1, [list(rollouts)])
    return Asked(folder, cache=folder.parent / "cache")


def build_answer(text: str, grade: Grade | None = None, **changes: Any) -> Rollout:
    """One answer of three tokens."""
    problem = Problem("p", "What is 1/2?", "\\frac{1}{2}")
    known: dict[str, Any] = {"prompt": (1,), "output": (5, 6, 7), "logps": (-1.0, -2.0, -3.0), "stop_reason": "stop"}
    return Rollout(problem=problem, text=text, grade=grade, **{**known, **changes})


def test_an_answer_has_the_text_of_each_token_and_its_masks(ask: Asked) -> None:
    written = build_group(PLAN, STEP, 4)[5]
    reply = ask("answer", run="first", step=STEP, group=4, answer=5)
    assert reply["tokens"] == list(written.output)
    assert len(reply["pieces"]) == len(written.output)
    assert "".join(reply["pieces"]) == build_tokenizer().decode(list(written.output), skip_special_tokens=False)
    assert reply["masks"]["sampled"] == list(map(int, written.sampled_mask))
    assert reply["n_answers"] == ANSWERS
    given = written.given or written.sampled_mask.count(False)
    assert reply["signals"]["logp"][:given] == [None] * given  # placeholders of a given prefix
    assert reply["signals"]["logp"][given:] == pytest.approx(written.logps[given:], abs=1e-5)
    with pytest.raises(Refused, match="no answer 99"):
        ask("answer", run="first", step=STEP, group=4, answer=99)


def test_signals_are_computed_from_the_statistics(tmp_path: Path) -> None:
    run = open_run(tmp_path, PLAN)
    groups = [build_group(PLAN, 5, number) for number in range(2)]
    groups[1][2].advantage = (0.5,) * len(groups[1][2].output)
    run.rollouts(5, groups)
    stats = build_stats(groups, [(0, 0), (1, 2)])
    stats[1]["entropy"][0] = None
    write_stats(run, 5, stats)
    ask = Asked(run.folder, cache=tmp_path / "cache")
    reply = ask("answer", run="first", step=5, group=1, answer=2)
    learner, updated, reference = (stats[1][name] for name in ("learner_logps", "updated_logps", "ref_logps"))
    sampled = [round(value, 6) for value in groups[1][2].logps]
    triples = list(zip(learner, updated, reference, sampled, strict=True))
    signals = reply["signals"]
    assert signals["ratio"] == pytest.approx([math.exp(new - old) for old, new, _, _ in triples])
    assert signals["mismatch"] == pytest.approx([old - own for old, _, _, own in triples])
    assert signals["kl_ref"] == pytest.approx([math.exp(ref - old) - (ref - old) - 1 for old, _, ref, _ in triples])
    assert signals["logp"] == pytest.approx(sampled)
    assert signals["advantage"] == [0.5] * len(sampled)
    assert signals["entropy"][0] is None
    scales = reply["scales"]
    assert scales["mismatch"]["low"] == -scales["mismatch"]["high"]
    assert scales["ratio"]["low"] * scales["ratio"]["high"] == pytest.approx(1)
    assert scales["entropy"]["low"] <= scales["entropy"]["high"]
    assert [len(one) for one in reply["top"]] == [3] * len(sampled)
    assert all(isinstance(each["text"], str) for each in reply["top"][0])
    other = ask("answer", run="first", step=5, group=1, answer=3)
    assert set(other["signals"]) == {"logp", "advantage"}
    assert (other["top"], len(other["notes"])) == (None, 1)


def test_a_placeholder_does_not_flatten_the_scale(tmp_path: Path) -> None:
    masks: dict[str, Any] = {"sampled_mask": [False] * 3 + [True] * 97, "output": list(range(100))}
    masks["loss_mask"] = [False] * 5 + [True] * 95
    ask = write_answers(tmp_path / "run", build_answer("x", logps=[-900.0] * 3 + [-1.0] * 97, advantage=0.5, **masks))
    reply = ask("answer", run="run", step=1, group=0, answer=0)
    assert reply["scales"]["logp"]["low"] == -1.0
    assert reply["signals"]["logp"] == [None] * 3 + [-1.0] * 97
    assert reply["signals"]["advantage"] == [None] * 5 + [0.5] * 95


def test_a_run_without_a_tokenizer_shows_ids(tmp_path: Path) -> None:
    ask = write_answers(tmp_path / "run", build_answer("x"))
    reply = ask("answer", run="run", step=1, group=0, answer=0)
    assert (reply["tokens"], reply["pieces"]) == ([5, 6, 7], None)
    assert any("tokenizer.json" in note for note in reply["notes"])
    (tmp_path / "run" / "tokenizer.json").write_text('{"model": []}')
    assert any("cannot be read" in note for note in ask("answer", run="run", step=1, group=0, answer=0)["notes"])
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000001" / "hf"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "tokenizer.json").unlink()
    build_tokenizer().save(str(checkpoint / "tokenizer.json"))
    assert len(ask("answer", run="run", step=1, group=0, answer=0)["pieces"]) == 3


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    values: dict[str, Any] = {"logps": (math.nan, math.inf, -1.0), "output": (-1, 2**31 - 1, 3)}
    ask = write_answers(tmp_path / "run", build_answer("x", advantage=math.nan, **values))
    build_tokenizer().save(str(tmp_path / "run" / "tokenizer.json"))
    reply = ask("answer", run="run", step=1, group=0, answer=0)
    assert reply["signals"] == {"logp": [None, None, -1.0]}
    assert len(reply["pieces"]) == 3


def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    ask = write_answers(tmp_path / "run", build_answer("a" * (MAX_TEXT + 1)), build_answer("short"))
    first, second = ask("group", run="run", step=1, group=0)["answers"]
    assert (len(first["text"]), first["cut"], second["cut"]) == (MAX_TEXT, True, False)


def test_the_grader_explains_a_verdict_beside_what_was_stored(tmp_path: Path) -> None:
    grade = Grade(1.0, True, True, "0.5", {}, "typed", "the same value")
    rollouts = (
        build_answer("\\boxed{0.5}", grade),
        build_answer("none", Grade(0.0, False, False, None, tier="extract", reason="no answer found")),
        build_answer("x", Grade(0.3, True, True, "0.5", tier="http", reason="score 0.3")),
    )
    ask = write_answers(tmp_path / "run", *rollouts)
    first, second, third = (ask("explain", run="run", step=1, group=0, answer=number) for number in range(3))
    assert (first["correct"], first["tier"]) == (True, "typed")
    assert first["gold"]["values"] == ["divide(1, 2)"]
    assert first["answer"]["text"] == "0.5"
    assert first["stored"] == {"correct": True, "tier": "typed", "reason": "the same value", "extracted": "0.5"}
    assert (second["gold"], second["reason"]) == (None, "No answer was found in the text.")
    assert third["gold"] is None
    assert "graded by a server" in third["reason"]
    assert third["stored"]["reason"] == "score 0.3"


@pytest.mark.parametrize(
    ("tier", "judge"), [("", "such as your own"), ("model", "a reward model"), ("http", "a server")]
)
@pytest.mark.parametrize("extracted", [None, "0.5"])
def test_another_judge_is_named_in_place_of_steps(tmp_path: Path, tier: str, judge: str, extracted: str | None) -> None:
    ask = write_answers(tmp_path / "run", build_answer("x", Grade(1.0, True, True, extracted, tier=tier)))
    reply = ask("explain", run="run", step=1, group=0, answer=0)
    assert (reply["gold"], reply["correct"]) == (None, None)
    assert judge in reply["reason"]


def test_a_grader_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "SECONDS", 0.01)
    ask = write_answers(tmp_path / "run", build_answer("x", Grade(1.0, True, True, "0.5", tier="typed")))
    with pytest.raises(Refused, match=r"could not compare these answers within 0\.01 s"):
        ask("explain", run="run", step=1, group=0, answer=0)


def test_a_gold_answer_may_be_a_bare_formula() -> None:
    (piece,) = build_answer_pieces("\\frac{1}{2}")
    assert (piece["math"][0], piece["source"], piece["block"]) == ("math", "\\frac{1}{2}", False)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_hostile_text_is_text_or_an_allowed_formula(payload: str) -> None:
    pieces = build_pieces(payload, THINK)
    # Nothing is lost but tags and the line break after a formula.
    assert LEFT_OUT.sub("", join(pieces)) == LEFT_OUT.sub("", payload)
    json.dumps(pieces)

    def check(tree: Any) -> None:
        name, attributes, children = tree
        assert name in ALLOWED_ELEMENTS
        assert set(attributes) <= ALLOWED_ATTRIBUTES | {"alttext"}
        for child in children:
            if not isinstance(child, str):
                check(child)

    for piece in split_formulas(payload):
        if not isinstance(piece, str):
            check(piece.tree)


@pytest.mark.parametrize(
    "text", ["$" * 200_000, "$\\x$ " * 8_000, "\\[" * 20_000, "\\boxed{" * 5_700, "<think>$x$</think>" * 2_000]
)
def test_no_text_takes_long(text: str) -> None:
    begin = time.process_time()
    assert join(build_pieces(text, THINK))
    assert time.process_time() - begin < 0.5  # 0.06 s at most on a free core
