"""`qed evaluate` refuses options that its mode does not use, by name, and only if the user gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qed.cli.commands import evaluate
from qed.cli.commands.base import ParserRevealed, reveal_parsers
from qed.cli.commands.evaluate_modes import MODEL, STORED, UNUSED
from qed.cli.evaluation_file import read_options
from qed.config.values import Raw, split_items
from qed.errors import UsageError

Run = Callable[..., tuple[int, str, str]]
# Options with a use in every mode, although the help lists them with those of a model.
ALWAYS = {"model", "resume", "overwrite", "allow_user_code"}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": number, "answer": "4", "completion": "4"} for number in range(3)]
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "answers.jsonl"


@pytest.mark.parametrize("command", [["evaluate", "--responses"], ["grade"]])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--reward", "accuracy", "--extract", "regex:(x)"], "--extract regex:(x) has no effect with --reward"),
        (["--reward-options", "accuracy.mode=strict"], "--reward-options has no effect without --reward"),
    ],
)
def test_what_a_reward_does_not_use_is_refused(
    run: Run, answers: str, command: list[str], options: list[str], words: str
) -> None:
    code, out, err = run(*command, answers, *options)
    assert (code, out) == (2, "")
    assert words in err


def test_a_reward_grades_the_last_line(run: Run, answers: str) -> None:
    assert run("evaluate", "--responses", answers, "--reward", "accuracy", "--extract", "last-line")[0] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--responses", "answers.jsonl", "--limit", "1"], "--limit"),
        (
            ["--responses", "answers.jsonl", "--tasks=x", "--temperature", "1", "--stop=a"],
            "--tasks, --temperature, --stop",
        ),
        (["--responses", "answers.jsonl", "--sampler", "server", "--url", "x"], "--sampler, --url"),
        (["--model", "new:tiny", "--tasks", "arithmetic", "--extract", "strict"], "--extract"),
        (
            ["--model", "new:tiny", "--id-key", "a", "--gold-key", "b", "--lists", "parts"],
            "--id-key, --gold-key, --lists",
        ),
        (
            ["--model", "new:tiny", "--scoring", "likelihood", "--temperature", "1", "--stop", "a"],
            "--temperature, --stop",
        ),
        (["--model", "new:tiny", "--scoring", "likelihood", "--extract", "strict"], "--extract"),
        (
            ["--model", "openai:x", "--url", "http://x/v1", "--rows-per-batch", "4", "--preflight=false"],
            "--rows-per-batch, --preflight",
        ),
        (["--model", "openai:x", "--url", "http://x/v1", "--id-key", "a"], "--id-key"),
        (["--model", "new:tiny", "--sweep", "extract=strict,lenient"], "--extract"),
        (["--sweep", "temperature=0,1", "--responses", "answers.jsonl"], "--temperature"),
    ],
)
def test_an_option_without_a_use_is_refused_by_name(run: Run, answers: str, options: list[str], named: str) -> None:
    code, out, err = run("evaluate", *options)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert err.rstrip().endswith(f"Leave out {named}.")


@pytest.mark.parametrize(
    ("file", "code"),
    [("limit: 2\n", 2), ("evaluation:\n  problems: 2\nsampling:\n  max_tokens: 7\ndata:\n  prompt: boxed\n", 0)],
)
def test_a_file_gives_options_under_their_own_names(run: Run, answers: str, file: str, code: int) -> None:
    """The settings of a run are in its file whether the user thought of them or not."""
    Path("own.yaml").write_text(file)
    assert run("evaluate", "own.yaml", "--responses", answers)[0] == code


@pytest.mark.parametrize(
    "options",
    [
        ["--responses", "answers.jsonl", "--scoring", "sampled", "--limit", "0", "--samples", "1"],
        ["--model", "none", "--tasks", "arithmetic", "--greedy", "--top-p", "1", "--top-k", "0"],
        ["--model", "none", "--tasks", "mmlu", "--scoring", "likelihood", "--samples", "1", "--policy", "math"],
        ["--model", "none", "--tasks", "mmlu", "--sweep", "scoring=sampled,likelihood", "--temperature", "1"],
    ],
)
def test_a_value_that_changes_nothing_is_not_refused(run: Run, answers: str, options: list[str]) -> None:
    """Scripts fill in every option; in a sweep over modes one of them may use what another does not."""
    _, out, err = run("evaluate", *options)
    assert "Leave out" not in out + err
    assert "--greedy ignores" not in err


def test_what_is_missing_is_told_first(run: Run, answers: str) -> None:
    code, _, err = run("evaluate", "--gold-key", "answer", "--response-key", "completion")
    assert (code, "--responses" in err, "Leave out" in err) == (2, True, False)


def test_greedy_has_no_use_for_parameters_of_sampling() -> None:
    with pytest.raises(UsageError, match="--greedy ignores --top-p, --top-k"):
        evaluate.run(["--model", "new:tiny", "--greedy", "--top-k", "3", "--top-p", "0.9"])


def test_greedy_in_a_file_has_no_use_for_them_either(run: Run, answers: str) -> None:
    """A file that says both is refused; beside --greedy of the command line, what it says is told to be unused."""
    Path("both.yaml").write_text("model: none\ntasks: arithmetic\ngreedy: true\ntop_p: 0.9\n")
    code, _, err = run("evaluate", "both.yaml")
    assert (code, "--greedy ignores --top-p: leave" in err) == (2, True)
    Path("sampled.yaml").write_text("model: none\ntasks: arithmetic\ntop_p: 0.9\n")
    _, out, err = run("evaluate", "sampled.yaml", "--greedy")
    assert "--greedy ignores" not in err
    assert "sampled.yaml: top_p has no effect with --greedy." in out
    Path("settings.yaml").write_text("evaluation:\n  top_p: 0.9\n")
    _, out, err = run("evaluate", "settings.yaml", "--model", "none", "--tasks", "arithmetic", "--greedy")
    assert "no effect" not in out + err, "the settings of a run have it whether the user thought of it or not"


def read_file(name: str) -> list[str]:
    return read_options(name, evaluate._build_parser(), evaluate.PASSED, allow_user_code=False)


def test_a_file_switches_off_what_one_that_it_extends_switches_on(answers: str) -> None:
    Path("base.yaml").write_text("greedy: true\noverwrite: true\n")
    Path("sampled.yaml").write_text("extends: base.yaml\ngreedy: false\n")
    assert read_file("sampled.yaml") == ["--overwrite"]


def test_a_stop_string_of_a_file_stays_as_it_is(answers: str) -> None:
    Path("stops.yaml").write_text('stop: ["\\n\\n", "a, b"]\nreward: [boxed, length]\nsystem_prompt: "One, two "\n')
    stops, rewards, system = read_file("stops.yaml")
    assert split_items(stops.removeprefix("--stop=")) == (Raw("\n\n", plain=False), Raw("a, b", plain=False))
    assert (rewards, system) == ("--reward=boxed,length", "--system-prompt=One, two ")
    Path("stops.yaml").write_text('sampling:\n  stop: "\\nQ:"\n')
    assert [raw.text for raw in split_items(read_file("stops.yaml")[0].removeprefix("--stop="))] == ["\nQ:"]
    Path("stops.yaml").write_text('stop: ["[INST]", "</s>"]\n')
    assert [raw.text for raw in split_items(read_file("stops.yaml")[0].removeprefix("--stop="))] == ["[INST]", "</s>"]


def test_lists_that_are_cut_at_commas_have_no_brackets(answers: str) -> None:
    Path("commas.yaml").write_text('reward: ["boxed, length", " strict"]\nurl: ["http://a,http://b"]\n')
    assert read_file("commas.yaml") == ["--reward=boxed, length, strict", "--url=http://a,http://b"]


def test_resume_needs_the_folder_of_scored_answers(run: Run, answers: str) -> None:
    code, _, err = run("evaluate", "--responses", answers, "--resume")
    assert (code, "--resume needs the folder" in err) == (2, True)


def test_every_option_of_one_mode_is_in_the_table() -> None:
    with reveal_parsers(), pytest.raises(ParserRevealed) as revealed:
        evaluate.run([])
    groups = {
        group.title: {action.dest for action in group._group_actions} for group in revealed.value.parser._action_groups
    }
    assert (groups["a model"] | groups["servers"]) - ALWAYS == set(MODEL)
    assert groups["stored answers"] - {"responses"} == set(STORED)
    assert {name for _, names in UNUSED.values() for name in names} <= set().union(*groups.values())
