"""Every benchmark gives its problems: from the real files, and from folders laid out as the hub has them."""

from __future__ import annotations

import csv
import json
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, DatasetDict

from qed.config import plugins
from qed.config.resolve import resolve_settings
from qed.data import tasks
from qed.data.splits import load_problems
from qed.data.tasks.base import Benchmark, number_copies
from qed.errors import DataError, UsageError
from qed.evaluation.benchmarks import load_benchmarks
from qed.randomness import derive_seed
from qed.rewards import boxed
from qed.types import Problem, Rollout

# The task, its file, how many problems, and how many of them differ.
REAL = [
    ("gsm8k:train", "gsm8k/train.jsonl", 7473, 7473),
    ("gsm8k:test", "gsm8k/test.jsonl", 1319, 1319),
    ("gsm8k:test", "gsm8k/example_model_solutions.jsonl", 1319, 1319),
    ("aime:2024", "qwen_eval/aime24.jsonl", 30, 30),
    ("amc23:test", "qwen_eval/amc23.jsonl", 40, 40),
    ("asdiv:test", "qwen_eval/asdiv.jsonl", 2215, 2214),
    ("college_math:test", "qwen_eval/college_math.jsonl", 2818, 2808),
    ("gaokao2023en:test", "qwen_eval/gaokao2023en.jsonl", 385, 385),
    ("mawps:test", "qwen_eval/mawps.jsonl", 2065, 1981),
    ("minerva:test", "qwen_eval/minerva_math.jsonl", 272, 272),
    ("olympiad:test", "qwen_eval/olympiadbench.jsonl", 675, 675),
    ("sat_math:test", "qwen_eval/sat_math.jsonl", 32, 32),
    ("svamp:all", "qwen_eval/svamp.jsonl", 1000, 1000),
    ("mmlu:test", "mmlu/test", 14042, 13937),
    ("mmlu:dev", "mmlu", 285, 284),
    ("alpaca_eval:test", "alpaca_eval/alpaca_eval.jsonl", 805, 805),
    ("arc_c:test", "luffy/valid.arc_c.parquet", 1172, 1172),
    ("files", "luffy/valid.parquet", 30 + 83 + 500 + 272 + 675, 1560),
    ("files", "luffy/valid.all.parquet", 30 + 30 + 83 + 500 + 272 + 675, 1590),
]
# The two rows of Gaokao whose answer stands in the question.
WITHOUT_ANSWER = {"gaokao2023en": 2, "alpaca_eval": 805}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def read(name: str, path: Path, counts: Counter[str] | None = None) -> list[Problem]:
    return tasks.load_task(f"{name}@{path}", "test", {}, counts)


def graded(gold: str) -> bool:
    """Whether a gold is right when it is the boxed answer of a response."""
    text = f"The answer is \\boxed{{{gold}}}."
    return boxed.reward(Rollout(Problem("p", "?", gold), (), (), (), text, "stop")).correct


@pytest.mark.parametrize(("name", "file", "count", "distinct"), REAL)
def test_real_files_give_the_right_problems(shared: Path, name: str, file: str, count: int, distinct: int) -> None:
    """Every problem is there once a row, has a question and an answer, and no answer has a unit or a point zero."""
    counts: Counter[str] = Counter()
    problems = read(name, shared / "data" / file, counts)
    assert (len(problems), len({problem.id for problem in problems})) == (count, distinct)
    assert not counts
    leaf = name.partition(":")[0]
    assert sum(not problem.answer for problem in problems) == WITHOUT_ANSWER.get(leaf, 0)
    assert all(problem.question for problem in problems)
    if leaf in ("gsm8k", "svamp", "mawps", "aime", "amc23"):
        assert all(problem.answer.lstrip("-").replace(".", "").isdigit() for problem in problems)
        assert not any(problem.answer.endswith(".0") for problem in problems)
    if leaf in ("mmlu", "sat_math", "arc_c"):
        for problem in problems:
            assert problem.answer in problem.meta["options"]
            assert len(problem.meta["choices"]) == len(problem.meta["options"]) >= 3
            assert all(choice.strip() in problem.question for choice in problem.meta["choices"])


def test_a_gold_is_itself(shared: Path) -> None:
    """Every gold of every file is right as the boxed answer of a response."""
    golds = {
        problem.answer
        for name, file, _, _ in REAL
        if name != "mmlu:test"
        for problem in read(name, shared / "data" / file)
        if problem.answer
    }
    assert len(golds) > 4800
    assert not [gold for gold in golds if not graded(gold)]


@pytest.mark.parametrize(
    ("file", "repeats"),
    [
        ("valid.parquet", {"aime": (30, 8), "amc": (83, 4), "math": (500, 1), "minerva": (272, 1)}),
        ("valid.all.parquet", {"aime": (30, 32), "aime25": (30, 32), "amc": (83, 32), "olympiad_bench": (675, 1)}),
    ],
)
def test_repeated_rows_are_one_problem_with_its_k(shared: Path, file: str, repeats: dict[str, tuple[int, int]]) -> None:
    found = Counter((p.meta["source"], p.meta.get("k", 1)) for p in read("files", shared / "data" / "luffy" / file))
    for source, (count, k) in repeats.items():
        assert found[source, k] == count
    assert sum(count * k for (_, k), count in found.items()) == {"valid.parquet": 2019}.get(file, 6023)


def test_rows_that_stand_twice_by_chance_are_no_repeats(tmp_path: Path) -> None:
    rows = [{"question": f"{number}?", "answer": "1"} for number in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    assert ["k" in problem.meta for problem in read("files", tmp_path / "a.jsonl")] == [False] * 5
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows * 3)))
    assert [problem.meta["k"] for problem in read("files", tmp_path / "a.jsonl")] == [3] * 4


def test_a_copied_row_is_a_problem_with_the_usual_number_of_answers(tmp_path: Path) -> None:
    rows = [{"problem": f"{number}?", "answer": "1", "subject": "one"} for number in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*rows, *({**rows[0], "subject": "two"},) * 2])))
    settings: Any = resolve_settings("grpo", []).settings
    (bench,) = load_benchmarks(settings, [f"aime:2024@{tmp_path / 'a.jsonl'}"], 0, (0, 0))
    first, *_, second, third = bench.problems
    assert list(bench.counts.values()) == [32] * 6, "those that are usual"
    assert (second.id, third.id) == (f"{first.id}-2", f"{first.id}-3")
    assert [problem.meta["subject"] for problem in bench.problems] == ["one"] * 4 + ["two"] * 2
    assert bench.copies == 2
    assert not bench.left_out


@pytest.mark.parametrize(
    ("name", "count", "subject"),
    [("mawps:test@qwen_eval/mawps.jsonl", 2065, None), ("mmlu:test@mmlu/test", 14042, ("clinical_knowledge", 265))],
)
def test_a_benchmark_has_a_problem_for_each_row_of_its_file(
    shared: Path, name: str, count: int, subject: tuple[str, int] | None
) -> None:
    settings: Any = resolve_settings("grpo", []).settings
    (bench,) = load_benchmarks(settings, [name.replace("@", f"@{shared}/data/")], 0, (0, 0))
    assert len({problem.id for problem in bench.problems}) == len(bench.problems) == count
    if subject:
        assert sum(problem.meta["subject"] == subject[0] for problem in bench.problems) == subject[1]


def test_held_out_copies_have_ids_of_their_own_and_training_rows_are_asked_once(tmp_path: Path) -> None:
    rows = [{"question": f"{number}?", "answer": "1"} for number in range(4)]
    for name, start in (("train", 0), ("test", 2)):
        own = [*rows[start : start + 2], rows[start]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)))
    settings: Any = resolve_settings(
        "grpo", [f"data.tasks={tmp_path / 'train.jsonl'}", f"evaluation.tasks={tmp_path / 'test.jsonl'}"]
    ).settings
    loaded = load_problems(settings.data, settings.evaluation, 0)
    (held_out,) = loaded.benchmarks.values()
    assert len({problem.id for problem in held_out}) == 3
    assert (len(loaded.problems), loaded.left_out["duplicate rows"]) == (2, 1)


def test_a_copy_takes_no_id_of_another_problem() -> None:
    problems = [Problem(name, "?", "1") for name in ("a", "a", "a-2", "a")]
    assert [problem.id for problem in number_copies(problems)] == ["a", "a-3", "a-2", "a-4"]


# What the hub has: the task, the configurations, the hub's split, and a row with what is to come of it.
MATH = {"problem": "x?", "level": "Level 3", "type": "Algebra", "solution": r"It is \boxed{7}."}
HUB: list[tuple[str, list[str], str, dict[str, Any], tuple[str, str]]] = [
    ("gsm8k:test", ["main"], "test", {"question": "6*8?", "answer": "So <<6*8=48>>48.\n#### 48"}, ("6*8?", "48")),
    ("math:train", ["algebra", "geometry"], "train", MATH, ("x?", "7")),
    ("math:test500", [], "test", {**MATH, "answer": "7", "subject": "Algebra", "unique_id": "t/1"}, ("x?", "7")),
    ("aime:2024", [], "train", {"id": 60, "problem": "x?", "solution": "so", "answer": "025"}, ("x?", "025")),
    ("aime:2025", [], "test", {"problem": "x?", "answer": "70", "id": "0"}, ("x?", "70")),
    ("amc23:test", [], "test", {"question": "x?", "answer": "27", "url": "u"}, ("x?", "27")),
    ("amc23:2022-2023", [], "train", {"id": 0, "problem": "x?", "answer": 142.0}, ("x?", "142")),
    ("minerva:test", [], "test", {"question": "x?", "answer": "1.6"}, ("x?", "1.6")),
    (
        "olympiad:test",
        ["OE_TO_maths_en_COMP"],
        "train",
        {"id": 1, "context": "Let.", "question": "x?", "solution": ["so"], "final_answer": ["$1$", "$2$"]},
        ("Let. x?", "1, 2"),
    ),
    ("college_math:test", [], "test", {"problem": "x?", "answer": "$2$"}, ("x?", "$2$")),
    ("gaokao2023en:test", [], "train", {"question": "x?", "answer": "$2$"}, ("x?", "$2$")),
    ("svamp:test", [], "test", {"Body": "A has 2", "Question": "x?", "Answer": "2.0"}, ("A has 2. x?", "2.0")),
    (
        "asdiv:test",
        ["asdiv"],
        "validation",
        {"body": "Seven apples.", "question": "How many?", "answer": "9 (apples)"},
        ("Seven apples. How many?", "9"),
    ),
    (
        "mawps:test",
        [],
        "train",
        {"Question": "N_00 and N_01 ?", "Numbers": "70.0 27.5", "Answer": 43.0},
        ("70 and 27.5 ?", "43"),
    ),
    (
        "sat_math:test",
        [],
        "train",
        {"Question": "x?", "Possible Answers": "A) 1 B) 2 C) 3 D) 4", "Answer": "B"},
        ("x?\n\nA) 1\nB) 2\nC) 3\nD) 4", "B"),
    ),
    ("competition_math:train", [], "train", MATH, ("x?", "7")),
    ("deepscaler:train", [], "train", {"problem": "x?", "answer": "-1", "solution": "so"}, ("x?", "-1")),
    (
        "dapo17k:train",
        ["all"],
        "train",
        {"prompt": "x?", "solution": "34", "reward_model": {"ground_truth": "34", "style": "rule"}},
        ("x?", "34"),
    ),
    (
        "openmathreasoning:mini",
        [],
        "cot",
        {"problem": "x?", "expected_answer": "14", "generated_solution": "<think>a</think>b"},
        ("x?", "14"),
    ),
    (
        "openr1:train",
        ["default"],
        "train",
        {
            "problem": "x?",
            "solution": "short",
            "answer": "3",
            "generations": ["<think>a", "<think>b</think>3"],
            "correctness_math_verify": [True, True],
            "is_reasoning_complete": [False, True],
            "messages": [{"role": "user", "content": "x?"}],
        },
        ("x?", "3"),
    ),
    (
        "mmlu:dev",
        ["all"],
        "dev",
        {"question": "x?", "subject": "law", "choices": ["a", "b", "c", "d"], "answer": 2},
        ("x?\n\nA) a\nB) b\nC) c\nD) d", "C"),
    ),
    (
        "mmlu_pro:test",
        [],
        "test",
        {"question": "x?", "options": list("pqrstuvwxy"), "answer": "J", "answer_index": 9, "category": "law"},
        ("x?\n\n" + "\n".join(f"{a}) {b}" for a, b in zip("ABCDEFGHIJ", "pqrstuvwxy", strict=True)), "J"),
    ),
    (
        "arc_c:test",
        ["ARC-Challenge"],
        "test",
        {"id": "i", "question": "x?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "2"},
        ("x?\n\nA) a\nB) b\nC) c", "B"),
    ),
]


def hub_folder(folder: Path, configs: list[str], split: str, row: dict[str, Any]) -> None:
    """A folder like a hub dataset's repository: parquet files, and their configurations in the README."""
    listed = []
    for config in configs or ["default"]:
        place = config if configs else "data"
        (folder / place).mkdir(parents=True)
        Dataset.from_list([row]).to_parquet(str(folder / place / f"{split}-00000-of-00001.parquet"))
        files = f"  data_files:\n  - split: {split}\n    path: {place}/{split}-*"
        listed.append(f"- config_name: {config}\n{files}")
    (folder / "README.md").write_text("---\nconfigs:\n" + "\n".join(listed) + "\n---\n")


@pytest.mark.parametrize(("name", "configs", "split", "row", "expected"), HUB, ids=[case[0] for case in HUB])
def test_a_folder_like_the_hubs_is_read(
    tmp_path: Path, name: str, configs: list[str], split: str, row: dict[str, Any], expected: tuple[str, str]
) -> None:
    hub_folder(tmp_path / "hub", configs, split, row)
    problems = read(name, tmp_path / "hub")
    assert [(problem.question, problem.answer) for problem in problems] == [expected] * max(1, len(configs))
    assert "generations" not in problems[0].meta


def test_the_hub_is_asked_for_what_the_table_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The name, configuration, split and pinned revision of the first split of every benchmark reach load_dataset."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None = None, **how: Any) -> Dataset:
        asked.append((name, config, how.get("split"), how.get("revision"), how.get("data_files")))
        return Dataset.from_list([{"question": "x?", "answer": "1"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    assert [problem.answer for problem in tasks.load_task("gsm8k:train", "", {})] == ["1"]
    assert tasks.load_task("svamp", "test", {}, revisions={"svamp": "abc"})
    assert len(tasks.load_task("math:test", "", {})) == 7
    tasks.load_task("alpaca_eval:test", "", {})
    assert asked[0] == ("openai/gsm8k", "main", "train", "740312add88f781978c0658806c59bc2815b9866", None)
    assert asked[1] == ("ChilleD/SVAMP", None, "test", "abc", None)
    assert {config for name, config, *_ in asked if name == "EleutherAI/hendrycks_math"} == set(
        plugins.load_leaf("tasks", "math").SUBJECTS
    )
    assert asked[-1][-1] == "hf://datasets/tatsu-lab/alpaca_eval@main/alpaca_eval.json"


def test_an_unreachable_hub_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question to the hub, no retries; the message says how to do without it."""

    def nobody(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", nobody)
    monkeypatch.setattr("huggingface_hub.HfApi.hf_hub_download", lambda *args, **kwargs: pytest.fail("a retry"))
    with pytest.raises(DataError, match=r"openai/gsm8k .*no answer.*--tasks gsm8k:test@PATH"):
        tasks.load_task("gsm8k", "test", {})
    with pytest.raises(DataError, match=r"gated"):
        tasks.load_task("gpqa:diamond", "", {})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        tasks.load_task("minerva", "test", {})
    assert not datasets.config.HF_HUB_OFFLINE


def test_what_is_cached_needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the hub does not answer, the datasets library is kept to its cache, and let go again."""

    def load_dataset(*args: Any, **kwargs: Any) -> Dataset:
        assert datasets.config.HF_HUB_OFFLINE
        return Dataset.from_list([{"question": "x?", "answer": "1"}])

    def nobody(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", nobody)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(tasks.load_task("minerva", "test", {})) == 1
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize("shelf", ["tasks", "prompts"])
def test_the_documentation_names_every_leaf(shelf: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    for leaf in plugins.list_leaves(shelf):
        assert f"| `{leaf}` |" in text, leaf


def test_splits_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"math has no split 'test50'. Did you mean 'test500'\?"):
        tasks.load_task("math:test50", "", {})
    with pytest.raises(UsageError, match="There are: 2024, 2025"):
        tasks.load_task(f"aime:2023@{tmp_path}", "", {})
    hub_folder(tmp_path / "hub", ["all"], "test", HUB[-3][3])
    with pytest.raises(DataError, match="no split 'dev'"):
        read("mmlu:dev", tmp_path / "hub")
    assert not tasks.has_test_split(f"gsm8k@{Path(__file__)}")
    assert tasks.has_test_split("gsm8k")


@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_saved_dataset_is_read(tmp_path: Path, kind: str) -> None:
    table = Dataset.from_list([{"question": "x?", "answer": "1"}])
    (DatasetDict({"train": table, "test": table}) if kind == "several" else table).save_to_disk(str(tmp_path / "d"))
    assert [problem.question for problem in tasks.load_task(str(tmp_path / "d"), "train", {})] == ["x?"]


def test_gpqa_orders_its_options_by_the_question(tmp_path: Path) -> None:
    """The same in every run and file, and each letter about equally often."""
    fields = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3", "Writer"]
    with (tmp_path / "gpqa.csv").open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow([*fields, "Subdomain"])
        writer.writerows([f"{n}?", "right", "wrong a", "wrong b", "wrong c", "me", "Optics"] for n in range(400))
    problems = read("gpqa:diamond", tmp_path / "gpqa.csv")
    letters = Counter(problem.answer for problem in problems)
    assert sorted(letters) == list("ABCD")
    assert all(70 <= count <= 130 for count in letters.values())
    for problem in problems:
        assert problem.meta["choices"]["ABCD".index(problem.answer)] == "right"
    assert problems[0].meta["subject"] == "Optics"
    assert "Writer" not in problems[0].meta
    assert read("gpqa:diamond", tmp_path / "gpqa.csv") == problems
    assert read("files", tmp_path / "gpqa.csv")[5].answer == problems[5].answer


def test_dapos_instruction_is_taken_off(tmp_path: Path) -> None:
    told = (
        "Solve the following math problem step by step. The last line is Answer.\n\nLet $x=2$.\n\nFind $x$.\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": told}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
    }
    Dataset.from_list([row, row]).to_parquet(str(tmp_path / "dapo.parquet"))
    problems = read("dapo17k:train", tmp_path / "dapo.parquet")
    assert (problems[0].question, problems[0].answer) == ("Let $x=2$.\n\nFind $x$.", "2")


def test_long_traces_are_counted(tmp_path: Path) -> None:
    rows = [{"problem": f"{n}?", "expected_answer": "1", "generated_solution": "a" * n} for n in (3000, 5000, 9000)]
    (tmp_path / "o.jsonl").write_text("\n".join(map(json.dumps, rows)))
    counts: Counter[str] = Counter()
    (problem,) = read("openmathreasoning:mini-4k", tmp_path / "o.jsonl", counts)
    assert problem.meta["completion"] == "a" * 3000
    assert counts == {"worked traces that are too long": 2}


def test_several_answers_are_counted(tmp_path: Path) -> None:
    rows = [{"body": "B.", "question": "Q?", "answer": answer} for answer in ("3 (red); 4 (blue)", "5 (cm)")]
    (tmp_path / "asdiv.jsonl").write_text("\n".join(map(json.dumps, rows)))
    counts: Counter[str] = Counter()
    (problem,) = read("asdiv", tmp_path / "asdiv.jsonl", counts)
    assert (problem.answer, problem.meta["unit"]) == ("5", "cm")
    assert counts == {"problems with several answers": 1}


def test_reasoning_gym_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package one line says what to install; with it, its generators are tasks."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UsageError, match=r"qed\[reasoning-gym\]"):
        tasks.load_task("reasoning_gym:leg_counting", "", {})
    gym = types.ModuleType("reasoning_gym")
    gym.factory = types.SimpleNamespace(DATASETS={"leg_counting": None})  # type: ignore[attr-defined]
    gym.create_dataset = lambda name, size, seed: [  # type: ignore[attr-defined]
        {"question": f"{name} {seed} {n}?", "answer": str(n), "metadata": {}} for n in range(size)
    ]
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    train, test = (tasks.load_task(f"reasoning_gym:{name}", "", {}) for name in ("leg_counting", "leg_counting-test"))
    assert (len(train), len(test)) == (8000, 500)
    assert not {problem.question for problem in train} & {problem.question for problem in test}
    assert train[3].meta["source"] == "leg_counting"
    with pytest.raises(UsageError, match="Did you mean 'leg_counting'"):
        tasks.load_task("reasoning_gym:leg_countin", "", {})


@pytest.mark.parametrize("leaf", plugins.list_leaves("tasks"))
def test_a_benchmark_is_a_table(leaf: str) -> None:
    benchmark = getattr(plugins.load_leaf("tasks", leaf), "BENCHMARK", None)
    if isinstance(benchmark, Benchmark):
        assert benchmark.name == leaf
        assert tuple(benchmark.splits) == plugins.load_leaf("tasks", leaf).SPLITS
        for hub in benchmark.splits.values():
            assert hub.name.count("/") == 1
            assert hub.revision == "main" or len(hub.revision) == 40


def test_ids_hang_on_what_a_problem_says(tmp_path: Path) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "two\n#### 2"}))
    (problem,) = read("gsm8k:test", tmp_path / "gsm8k.jsonl")
    assert problem.id == f"gsm8k-{derive_seed('1+1?', '2', 'two', ''):016x}"


@pytest.mark.parametrize(
    ("name", "count", "k"),
    [
        ("math:test500", 500, None),
        ("aime:2024", 30, 32),
        ("aime:2025", 30, 32),
        ("amc23", 83, 32),
        ("minerva", 272, None),
        ("olympiad", 675, None),
    ],
)
def test_of_a_file_that_joins_benchmarks_each_takes_its_own(shared: Path, name: str, count: int, k: int | None) -> None:
    left_out: Counter[str] = Counter()
    found = tasks.load_task(f"{name}@{shared / 'data/luffy/valid.all.parquet'}", "test", {}, left_out)
    assert len(found) == count
    assert {one.meta.get("k") for one in found} == {k}
    assert left_out == {"rows of other benchmarks in the same file": 1590 - count}
