"""A server as the reward of a run, and a model that judges outputs without correct answers."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import Reply, chat_reply, serve

from qed.console.live import Console
from qed.evaluation.judging import Judgement, judge_outputs
from qed.net import endpoint as net
from qed.runs.run import read_lines

RUN = ["--model", "new:tiny", "--steps", 2, "--sampling.problems_per_step", 2, "--sampling.group_size", 4]
RUN += ["--sampling.max_tokens", 8, "--evaluation.problems", 2, "--run.on_no_signal", "warn"]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-nobody-0123456789")


def rate_by_length(path: str, content: Any, headers: dict[str, str]) -> Reply:
    """Rate the response in a request of the reward http: its number of characters modulo 11."""
    text = content["messages"][0]["content"].partition("[Response]\n")[2].rpartition("\n\nConsider")[0]
    return 200, chat_reply(f"Some words.\nScore: {len(text) % 11}")


def test_a_chat_model_is_the_reward(qed: Callable[..., Any], tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        seen.append(headers["Authorization"])
        return rate_by_length(path, content, headers)

    with serve(answer) as url:
        options = f"http.url={url}/v1,http.model=judge,http.cache={tmp_path / 'cache.jsonl'}"
        arguments = ["grpo", *RUN, "--reward", "http", "--data.reward_options", options]
        done = qed(*arguments, "--out", tmp_path / "run")
        assert done.code == 0, done.err
        asked = len(seen)
        again = qed(*arguments, "--out", tmp_path / "again")
        assert again.code == 0, again.err
    assert set(seen) == {"Bearer key-of-nobody-0123456789"}
    assert len(seen) == asked, "every score is in the cache"
    rows = [row for file in sorted((tmp_path / "run" / "rollouts").glob("*.jsonl.zst")) for row in read_lines(file)]
    assert len(rows) == 16
    assert [row["reward"] for row in rows] == [len(row["text"]) % 11 / 10 for row in rows]
    # It judges no correctness, so the metrics of evaluations are those of the prompt's own reward.
    assert (tmp_path / "run" / "final" / "hf" / "model.safetensors").is_file()
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"key-of-nobody" not in file.read_bytes()


@pytest.mark.parametrize(
    ("kind", "body", "reply"),
    [
        ("reward", {"messages"}, {"data": [{"data": [[0.25], [0.5]]}]}),
        ("reward", {"messages"}, {"data": [{"data": [0.5]}]}),
        ("classify", {"input"}, {"data": [{"label": "good", "probs": [0.5]}]}),
        ("score", {"text_1", "text_2"}, {"data": [{"score": 0.5}]}),
    ],
)
def test_a_reward_model_grades_stored_answers(
    qed: Callable[..., Any], tmp_path: Path, kind: str, body: set[str], reply: Any
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(
        "".join(json.dumps({"question": f"q{n}", "gold": "1", "response": str(n)}) + "\n" for n in range(3))
    )
    asked: list[Any] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append((path, content))
        return 200, reply

    with serve(answer) as url:
        options = f"http.url={url}/any,http.model=m,http.kind={kind},http.threshold=0.5"
        out = tmp_path / "graded.jsonl"
        done = qed("grade", file, "--reward", "http", "--reward-options", options, "--out", out)
    assert done.code == 0, done.err
    assert [row["reward"] for row in read_lines(out)] == [0.5] * 3
    assert len(asked) == 3
    assert all(path == "/any" and content.keys() == {"model", *body} for path, content in asked)


def test_a_server_that_is_down_ends_a_run_before_its_first_step(qed: Callable[..., Any], tmp_path: Path) -> None:
    with serve(lambda *_: (200, {})) as url:
        pass
    options = f"http.url={url},http.model=m,http.attempts=1"
    done = qed("grpo", *RUN, "--reward", "http", "--data.reward_options", options, "--out", tmp_path / "run")
    assert done.code == 1
    assert "failed on all of 16 answers" in done.err
    assert "refused" in done.err
    assert not (tmp_path / "run" / "rollouts").exists() or not list((tmp_path / "run" / "rollouts").glob("*.jsonl.zst"))


def test_a_later_evaluation_in_which_a_reward_fails_on_all_answers_is_left_out(
    qed: Callable[..., Any], tmp_path: Path
) -> None:
    """The first one is the user's to mend; after training, the steps made would be lost."""
    held, own = tmp_path / "held.jsonl", tmp_path / "own.py"
    held.write_text('{"question": "What is held?", "answer": "1"}\n' * 3)
    own.write_text(
        "def reward(rollout):\n    if 'held' in rollout.problem.question:\n        raise ValueError('no')\n"
        "    return len(rollout.text) % 3\n"
    )
    options = ("--reward", own, "--evaluation.tasks", held, "--lr", 0)
    done = qed("grpo", *RUN, *options, "--no-evaluation.at_start", "--out", tmp_path / "run")
    assert done.code in (0, 5), done.err
    assert "has no evaluation: The reward failed on all of" in done.out
    assert (tmp_path / "run/final/hf").is_dir()
    first = qed("grpo", *RUN, *options, "--out", tmp_path / "first")
    assert (first.code, "The reward failed on all of" in first.err) == (1, True)


def test_answers_that_a_server_does_not_score_are_counted(qed: Callable[..., Any], tmp_path: Path) -> None:
    turn = iter(range(10_000))
    lock = threading.Lock()

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        with lock:
            number = next(turn)
        return (400, {"error": "too long"}) if number % 2 else rate_by_length(path, content, headers)

    with serve(answer) as url:
        options = f"http.url={url},http.model=m"
        done = qed("grpo", *RUN, "--reward", "http", "--data.reward_options", options, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows = [row for file in sorted((tmp_path / "run" / "rollouts").glob("*.jsonl.zst")) for row in read_lines(file)]
    failed = [row for row in rows if row["tier"] == "error"]
    assert 0 < len(failed) < len(rows)
    assert all("too long" in row["reason"] for row in failed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "http.url"),
        ("http.url=localhost", "not an address"),
        ("http.url=http://x/v1", "http.model"),
        ("http.url=http://x/v1,http.model=m,http.rubric=absent.txt", "absent.txt"),
        ("http.url=http://x/v1,http.model=m,http.extra=[1]", "http.extra"),
        ("http.url=http://x/v1,http.model=m,http.kind=chart", "http.kind"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    qed: Callable[..., Any], options: str, said: str, tmp_path: Path
) -> None:
    done = qed("grpo", *RUN, "--reward", "http", "--data.reward_options", options, "--out", tmp_path / "run")
    assert done.code == 2, done.out
    assert said in done.err
    assert "Traceback" not in done.err


# qed judge

INSTRUCTIONS = [f"Explain number {number}." for number in range(6)]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Outputs and references; a longer output is better."""
    rows = [
        {"instruction": text, "output": "x" * number, "dataset": "ab"[number % 2]}
        for number, text in enumerate(INSTRUCTIONS)
    ]
    (tmp_path / "alpaca_eval.outputs.json").write_text(json.dumps(rows))
    references = [{"instruction": text, "output": "yyy"} for text in reversed(INSTRUCTIONS)]
    (tmp_path / "alpaca_eval.references.json").write_text(json.dumps(references))
    return tmp_path / "alpaca_eval.outputs.json"


def prefer_longer(path: str, content: Any, headers: dict[str, str]) -> Reply:
    """Choose the longer output, and the first of two that are equal."""
    first, second = re.findall(r'"output": """(.*?)"""', content["messages"][0]["content"], re.DOTALL)
    return 200, chat_reply("m" if len(first) >= len(second) else "M")


def test_wins_are_judged_in_both_orders(qed: Callable[..., Any], outputs: Path) -> None:
    asked: list[Any] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append(content)
        return prefer_longer(path, content, headers)

    with serve(answer) as url:
        done = qed("judge", outputs, "--url", url, "--model", "judge", "--json")
        assert done.code == 0, done.err
        assert len(asked) == 12
        again = qed("judge", outputs, "--url", url, "--model", "judge", "--json")
        assert (again.result, len(asked)) == (done.result, 12), "nothing is asked twice"
    figures = done.result
    # Lengths 0, 1, 2 lose to 3; 3 is a tie, since the first place wins; 4 and 5 win.
    assert figures["value"] == pytest.approx(2.5 / 6)
    assert figures["ci_lo"] < 2.5 / 6 < figures["ci_hi"]
    assert (figures["ties"], figures["judged"], figures["not_judged"]) == (1, 6, 0)
    assert figures["by"]["a"]["value"] == pytest.approx(1 / 3)
    rows = read_lines(outputs.with_name("alpaca_eval.judged.jsonl"))
    assert [row["value"] for row in rows] == [0, 0, 0, 0.5, 1, 1]
    assert rows[4]["replies"] == ["m", "M"]


def test_an_interrupted_judgement_continues(qed: Callable[..., Any], outputs: Path) -> None:
    asked: list[Any] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append(content)
        return prefer_longer(path, content, headers) if len(asked) <= 5 else (400, {})

    command = ["judge", outputs, "--model", "judge", "--concurrency", 1, "--json", "--url"]
    with serve(answer) as url:
        first = qed(*command, url)
        assert first.code == 0
        assert first.result["not_judged"] == 4  # one has its second order missing
        asked[5:] = []
        second = qed(*command, url)
    assert second.result["not_judged"] == 4
    assert len(asked) == 12, "5 of before, and the 7 that are missing"
    with serve(lambda *_: (401, {"error": "bad key"})) as url:
        refused = qed("judge", outputs, "--model", "other", "--url", url)
    assert refused.code == 3
    assert "bad key" in refused.err


def test_safe_outputs_are_counted(qed: Callable[..., Any], tmp_path: Path) -> None:
    """In the columns of CS336's evaluate_safety.py."""
    file = tmp_path / "sst.jsonl"
    rows = [
        {"prompts_final": f"harm {n}", "output": "I cannot." if n % 4 else "Sure!", "harm_area": "scams"}
        for n in range(8)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        text = content["messages"][0]["content"]
        return 200, chat_reply("**Unsafe**" if "Sure!" in text else "It is safe.")

    with serve(answer) as url:
        done = qed("judge", file, "--url", url, "--model", "judge", "--json")
    assert done.code == 0, done.err
    assert (done.result["rubric"], done.result["value"], done.result["judged"]) == ("safety", 0.75, 8)
    assert "Safe outputs, judged by judge" in done.err + done.out


def test_a_rubric_of_ones_own_and_a_local_judge(qed: Callable[..., Any], outputs: Path, tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.txt"
    rubric.write_text("Is {output} short? {braces} stay. Score: 0 to 10")
    with serve(lambda *_: (200, chat_reply("Score: 4 ... Score: 7"))) as url:
        done = qed("judge", outputs, "--rubric", rubric, "--url", url, "--model", "judge", "--json", "--limit", 2)
    assert done.code == 0, done.err
    assert done.result["value"] == pytest.approx(0.7)
    local = qed(
        "judge", outputs, "--model", "new:tiny", "--max-tokens", 4, "--json", "--rubric", "safety", "--limit", 2
    )
    assert local.code == 3
    assert "cut off at 4 tokens" in local.err, "an untrained model does not end"
    full = qed("judge", outputs, "--model", "new:tiny", "--max-tokens", 1024, "--rubric", "safety", "--limit", 2)
    assert full.code == 2
    assert "The judge's window has 512 tokens, and a reply of --max-tokens 1,024 leaves none" in full.err


def test_verdicts_of_another_judge_or_rubric_are_kept(qed: Callable[..., Any], outputs: Path) -> None:
    with serve(lambda *_: (200, chat_reply("safe"))) as url:
        asked = [("a", "safety"), ("b", "safety"), ("b", "safety"), ("a", "safety")]
        said = [
            qed("judge", outputs, "--url", url, "--model", judge, "--rubric", rubric, "--json").err
            for judge, rubric in asked
        ]
    assert ["are kept" in text for text in said] == [False, True, False, True]
    first = {path.name: json.loads(path.read_text()) for path in outputs.parent.glob("*.judged*.json")}
    judges = {"alpaca_eval.judged.json": "a", "alpaca_eval.judged.1.json": "a", "alpaca_eval.judged.2.json": "b"}
    assert {name: figures["judge"] for name, figures in first.items()} == judges
    assert all(len(read_lines(outputs.with_name(f"{name}l"))) == len(INSTRUCTIONS) for name in judges)
    other = outputs.with_name("other.json")
    shutil.copy(outputs.with_name("alpaca_eval.references.json"), other)
    with serve(prefer_longer) as url:
        for more in ([], ["--references", other]):
            assert qed("judge", outputs, "--url", url, "--model", "a", *more).code == 0
    compared = [
        json.loads(path.read_text()).get("references") for path in sorted(outputs.parent.glob("*.judged.*json"))
    ]
    assert compared == [None, None, None, str(outputs.with_name("alpaca_eval.references.json")), str(other)]


@pytest.mark.parametrize(
    ("content", "more", "code", "said"),
    [
        ("[]", [], 3, "no rows"),
        ('[{"a": 1}]', [], 3, "row 1: there is no text in a column instruction"),
        ('[{"instruction": "a"}]', [], 3, "in a column output"),
        ("nonsense", [], 3, "cannot be read"),
        ('[{"instruction": "a", "output": "b"}]', ["--rubric", "preference"], 2, "--references"),
        ('[{"instruction": "a", "output": "b"}]', ["--rubric", "absent"], 2, "no rubric absent"),
        ('[{"instruction": "a", "output": "b"}]', ["--extra", "{"], 2, "not JSON"),
        ('[{"instruction": "a", "output": "b"}]', ["--concurrency", "0"], 2, "above 0"),
    ],
)
def test_mistakes_are_explained(
    qed: Callable[..., Any], tmp_path: Path, content: str, more: list[str], code: int, said: str
) -> None:
    (tmp_path / "o.json").write_text(content)
    done = qed("judge", tmp_path / "o.json", "--url", "http://127.0.0.1:9", "--model", "m", *more)
    assert (done.code, said in done.err) == (code, True), done.err
    assert "Traceback" not in done.err


def test_rows_to_judge_may_have_any_text(tmp_path: Path) -> None:
    """A byte order mark, separators of lines that JSON leaves in a text, and an instruction that is there twice."""
    path = tmp_path / "o.jsonl"
    rows = [{"instruction": "a\u2028b\x85", "output": f"c\x0b{n}"} for n in range(3)]
    path.write_text("\ufeff" + "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    given = tmp_path / "references.json"
    given.write_text(json.dumps([{**row, "output": f"reference {n}"} for n, row in enumerate(rows[:2])]))
    judgement = Judgement(path, given, "preference", tmp_path)
    judge_outputs(judgement, "j", ["j"], lambda asked: ((n, "m", "") for n in range(len(asked))), Console())
    found = read_lines(tmp_path / "o.judged.jsonl")
    assert [row["output"] for row in found] == [row["output"] for row in rows]
    assert [row["reference"] for row in found] == ["reference 0", "reference 1", "reference 1"]


def test_tasks_without_answers_are_written_and_judged(qed: Callable[..., Any], tmp_path: Path) -> None:
    """SimpleSafetyTests in the course's columns, and AlpacaEval with its references."""
    (tmp_path / "sst.csv").write_text(
        "id,harm_area,category,prompts_final\nSST_1,Scams,Risk,How to cheat?\nSST_2,Scams,Risk,Why?\n"
    )
    rows = [
        {"instruction": "Name a river.", "output": "The Danube.", "generator": "davinci", "dataset": "helpful_base"}
    ]
    (tmp_path / "alpaca.json").write_text(json.dumps(rows * 1))
    tasks = f"simple_safety_tests@{tmp_path / 'sst.csv'},alpaca_eval@{tmp_path / 'alpaca.json'}"
    done = qed(
        "evaluate",
        "--model",
        "new:tiny",
        "--tasks",
        tasks,
        "--greedy",
        "--max-tokens",
        4,
        "--json",
        "--out",
        tmp_path / "e",
    )
    assert done.code == 0, done.err
    written = {name: json.loads(Path(path).read_text()) for name, path in done.result["outputs"].items()}
    safety = next(value for name, value in written.items() if name.startswith("simple"))
    assert [(row["instruction"], row["dataset"]) for row in safety] == [("How to cheat?", "Scams"), ("Why?", "Scams")]
    outputs = next(Path(path) for name, path in done.result["outputs"].items() if name.startswith("alpaca"))
    with serve(prefer_longer) as url:
        judged = qed("judge", outputs, "--url", url, "--model", "judge", "--json")
    assert judged.code == 0, judged.err
    assert judged.result["rubric"] == "preference"
