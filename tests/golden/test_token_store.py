"""The store of tokenised demonstrations: its rows are those that the prompt renders, whole or absent, made once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_demonstrations import ROWS, read
from waiting import wait_until

from qed.config import plugins
from qed.data import demonstrations
from qed.data.changed_chat import change_chat
from qed.data.demonstrations import Demonstrations, Windows, build_key, tokenize_problems
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.data.sources.rows import Place
from qed.data.tasks.base import build_problems
from qed.data.token_store import TokenRow, build_store, open_store, read_store
from qed.models import load
from qed.types import Problem, Rollout

PROBLEMS = [replace(read(row), id=name) for name, row in ROWS.items()]
TOKENIZER = load.build_tokenizer([problem.question for problem in PROBLEMS], 500)
ALPACA = {"instruction": "Name three colors.", "input": "In French.", "output": "Rouge, vert et bleu."}


def bind(name: str, system: str = "") -> PromptTemplate:
    TOKENIZER.chat_template = load.CHAT_TEMPLATE
    return PromptTemplate(change_chat(load_leaf(name), name, system, ()), TOKENIZER, (1,))


def quiet(line: str) -> None:
    """Nobody reads what is said."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of one test, which takes the smallest data."""
    monkeypatch.setenv("QED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demonstrations, "CACHED_CHARACTERS", 0)
    return tmp_path / "cache" / "demonstrations"


def rendered(template: PromptTemplate, problems: list[Problem]) -> list[Rollout]:
    """The demonstrations without a store; the rows of one have no text."""
    direct = filter(None, map(template.demonstration, problems))
    return [replace(rollout, text="", prompt_text="") for rollout in direct]


def stores(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


@pytest.mark.parametrize("prompt", plugins.list_leaves("prompts"))
@pytest.mark.parametrize("batch", [1, 1_000_000])
def test_the_rows_are_those_that_the_prompt_renders(prompt: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, when the store is written and when it is read; problems without a demonstration have no row."""
    monkeypatch.setattr(demonstrations, "BATCH_CHARACTERS", batch)
    (alpaca,) = build_problems(iter([(Place("x", 1), ALPACA)]), "x", {}, Counter())
    problems = [Problem("none", "?", "5", meta={"completion": None}), *PROBLEMS, alpaca]
    template = bind(prompt)
    said: list[str] = []
    written, found = (Demonstrations(tokenize_problems(template, problems, said.append), problems) for _ in range(2))
    assert list(written) == list(found) == rendered(template, problems)
    assert [line.split()[0] for line in said] == ["Tokenised", str(len(found))]
    monkeypatch.setattr(demonstrations, "CACHED_CHARACTERS", 10**9)
    assert list(Demonstrations(tokenize_problems(template, problems, quiet), problems)) == list(found)


def test_traces_and_their_probabilities_are_kept() -> None:
    base = read(ROWS["LUFFY"])
    text = base.meta["completion"]
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    meta = {**base.meta, "traces": [text, "another"], "trace_probabilities": [0.5, -1.0] + [0.25] * (len(ids) - 1)}
    only_a_trace = replace(base, solution="", answer="", meta={"traces": ["a trace"]})
    problems = [replace(base, meta=meta), only_a_trace]
    for prompt, known in (("luffy", True), ("think_answer", False)):
        template = bind(prompt)
        rows = Demonstrations(tokenize_problems(template, problems, quiet), problems)
        assert list(rows) == rendered(template, problems)
        assert bool(rows[0].behaviour) == known
        assert len(rows) == 2


def test_rows_beyond_the_limit_are_left_out_and_the_longest_is_known() -> None:
    template = bind("r1_zero")
    store = tokenize_problems(template, PROBLEMS, quiet)
    everything = rendered(template, PROBLEMS)
    lengths = [len(row.prompt) + len(row.output) for row in everything]
    for limit in (0, sorted(lengths)[len(lengths) // 2], max(lengths)):
        rows = Demonstrations(store, PROBLEMS, limit)
        kept = [row for row, length in zip(everything, lengths, strict=True) if length <= limit]
        assert list(rows) == kept
        assert rows[1:4] == kept[1:4]
        prompts, replies = ([len(getattr(row, name)) for row in kept] for name in ("prompt", "output"))
        assert rows.longest == (max(prompts, default=0), max(replies, default=0))


def test_an_index_behind_the_end_ends_a_loop() -> None:
    rows = Demonstrations(tokenize_problems(bind("r1_zero"), PROBLEMS, quiet), PROBLEMS)
    assert rows[-1] == rows[len(rows) - 1]
    for sequence in (rows, Windows(rows.store, range(len(rows)), 5)):
        with pytest.raises(IndexError):
            sequence[len(sequence)]


token_lists = st.lists(st.integers(0, 150_000), max_size=9)


@given(
    rows=st.lists(st.tuples(token_lists, st.lists(st.integers(0, 150_000), min_size=1, max_size=9)), max_size=12),
    length=st.integers(1, 30),
    order=st.randoms(use_true_random=False),
)
def test_windows_are_those_of_the_concatenated_stream(
    rows: list[tuple[list[int], list[int]]], length: int, order: Any
) -> None:
    store = build_store(TokenRow(number, *row, False) for number, row in enumerate(rows))
    numbers = list(range(len(rows)))
    order.shuffle(numbers)
    stream = [token for number in numbers for part in rows[number] for token in part]
    # Inputs of two windows do not overlap; the last label of one is the first input of the next.
    expected = [stream[start : start + length + 1] for start in range(0, len(stream) - length, length)]
    windows = Windows(store, numbers, length)
    assert [[*window.prompt, *window.output] for window in windows] == expected
    assert windows.longest == ((1, length) if expected else (0, 0))
    assert [window.output for window in windows[1:3]] == [window.output for window in list(windows)[1:3]]


CHANGES: dict[str, Callable[[], tuple[PromptTemplate, list[Problem]]]] = {
    "a text": lambda: (bind("r1_zero"), [*PROBLEMS[:-1], replace(PROBLEMS[-1], question="Why?")]),
    "a solution": lambda: (bind("r1_zero"), [replace(PROBLEMS[0], solution="Because."), *PROBLEMS[1:]]),
    "a completion": lambda: (
        bind("r1_zero"),
        [replace(PROBLEMS[0], meta={**PROBLEMS[0].meta, "completion": "5"}), *PROBLEMS[1:]],
    ),
    "the order": lambda: (bind("r1_zero"), PROBLEMS[::-1]),
    "fewer problems": lambda: (bind("r1_zero"), PROBLEMS[1:]),
    "the prompt": lambda: (bind("think_answer"), PROBLEMS),
    "the end token": lambda: (PromptTemplate(load_leaf("r1_zero"), TOKENIZER, (2,)), PROBLEMS),
    "the tokenizer": lambda: (
        PromptTemplate(load_leaf("r1_zero"), load.build_tokenizer(["5", "abc abc"], 300), (1,)),
        PROBLEMS,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_the_tokens_changes_the_key(change: str) -> None:
    assert build_key(*CHANGES[change]()) != build_key(bind("r1_zero"), PROBLEMS)


def test_the_key_is_the_same_in_another_process() -> None:
    """Sets and hashes of texts have another order there."""
    code = "from test_token_store import *; print(build_key(bind('chat', 'Be brief.'), PROBLEMS))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == build_key(bind("chat", "Be brief."), PROBLEMS)


def test_the_key_changes_with_a_prompts_options_and_its_template() -> None:
    options = [load_leaf("working_out"), load_leaf("working_out", ["working_out.reasoning_start=<how>"])]
    assert len({build_key(PromptTemplate(leaf, TOKENIZER, (1,)), PROBLEMS) for leaf in options}) == 2
    keys = {build_key(bind("chat", system), PROBLEMS) for system in ("", "Be brief.", "Be long.")}
    template = bind("chat")
    assert build_key(template, PROBLEMS) in keys
    TOKENIZER.chat_template = load.CHAT_TEMPLATE.replace("<|user|>", "<|user|> ")
    assert build_key(template, PROBLEMS) not in keys
    assert len(keys) == 3
    TOKENIZER.chat_template = load.CHAT_TEMPLATE


def test_a_prompt_of_ones_own_is_known_by_its_source_and_by_what_it_renders(tmp_path: Path) -> None:
    source = (
        "from pathlib import Path\nCHAT, STOP, REWARD = False, (), 'accuracy'\n"
        "def render(problem, tokenizer): return Path(r'{text}').read_text() + problem.question\n"
        "def demonstration(problem): return problem.answer or None\n"
    )
    text, keys = tmp_path / "text.txt", set()
    for number, words in enumerate(("Answer.", "Answer.", "Please answer.")):
        text.write_text(words)
        leaf = tmp_path / f"own{number}.py"
        leaf.write_text(source.format(text=text) + f"# {min(number, 1)}\n")
        keys.add(build_key(PromptTemplate(load_leaf(str(leaf)), TOKENIZER, (1,)), PROBLEMS))
    assert len(keys) == 3


def test_what_is_damaged_is_made_again(cache: Path) -> None:
    template = bind("r1_zero")
    first = list(Demonstrations(tokenize_problems(template, PROBLEMS, quiet), PROBLEMS))
    (folder,) = stores(cache)
    for name in ("tokens.bin", "offsets.bin", "sizes.json"):
        for damage in (b"", (folder / name).read_bytes()[:-3], None):
            if damage is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(damage)
            assert read_store(folder) is None
            said: list[str] = []
            assert list(Demonstrations(tokenize_problems(template, PROBLEMS, said.append), PROBLEMS)) == first
            assert said[0].startswith("Tokenised")
    assert stores(cache) == [folder]


def test_offsets_that_do_not_fit_are_refused(cache: Path) -> None:
    store = tokenize_problems(bind("r1_zero"), PROBLEMS, quiet)
    (folder,) = stores(cache)
    for change in (store.offsets[::-1], store.offsets * 2, store.offsets + 1):
        (folder / "offsets.bin").write_bytes(np.ascontiguousarray(change).tobytes())
        assert read_store(folder) is None


def test_no_demonstration_at_all_is_a_store_too() -> None:
    problems = [Problem(str(number), "?", "", meta={"completion": None}) for number in range(3)]
    for _ in range(2):
        assert len(Demonstrations(tokenize_problems(bind("r1_zero"), problems, quiet), problems)) == 0


def test_stores_that_nobody_used_for_long_are_removed(cache: Path) -> None:
    tokenize_problems(bind("r1_zero"), PROBLEMS, quiet)
    (old,) = stores(cache)
    os.utime(old, (0, 0))
    tokenize_problems(bind("boxed"), PROBLEMS, quiet)
    (young,) = stores(cache)
    assert young != old
    tokenize_problems(bind("think_answer"), PROBLEMS, quiet)
    assert young in stores(cache)


def test_a_full_disk_leaves_nothing(cache: Path) -> None:
    def rows() -> Iterator[TokenRow]:
        yield TokenRow(0, [1], [2], False)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        open_store(cache / "key", rows, quiet)
    assert stores(cache) == []


def test_a_cache_that_cannot_be_written_is_said_and_the_data_is_tokenised_in_memory(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tokenize_problems(bind("r1_zero"), PROBLEMS, quiet)
    blocked = cache.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("QED_CACHE", str(blocked))
    told: list[str] = []
    for _ in range(2):
        told.clear()
        store = tokenize_problems(bind("r1_zero"), PROBLEMS, told.append)
        assert [store.read(row) for row in range(len(store))] == [stored.read(row) for row in range(len(stored))]
    first, last = told
    assert first.startswith(f"The tokenised data cannot be cached in {blocked}")
    assert "QED_CACHE" in first
    assert last.startswith("Tokenised ")
    assert "cached" not in last
    told.clear()
    monkeypatch.setattr("qed.host.find_cache", lambda: (blocked / "qed").mkdir())  # no folder for any cache
    assert len(tokenize_problems(bind("r1_zero"), PROBLEMS, told.append)) == len(stored)
    assert told[0].startswith(f"The tokenised data cannot be cached in {blocked}/qed: Not a directory.")


WRITER = """
import sys, time
from pathlib import Path
from qed.data.token_store import TokenRow, open_store

def rows():
    for number in range(int(sys.argv[2])):
        Path(sys.argv[3]).open("a").write("x")
        time.sleep(float(sys.argv[4]))
        yield TokenRow(number, [number], [number, 1], False)

store = open_store(Path(sys.argv[1]), rows, print)
print(len(store), int(store.tokens.sum()))
"""


def start(folder: Path, count: int, marks: Path, seconds: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, *map(str, (folder, count, marks, seconds))]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_leaves_nothing_half_and_one_of_several_writes(cache: Path, tmp_path: Path) -> None:
    """Two processes that want the same store wait for the first one; it is killed, and one of the two writes."""
    folder, marks = cache / "key", tmp_path / "marks"
    killed = start(folder, 10**6, marks, 0.01)
    wait_until(marks.exists)
    again = tmp_path / "again"
    both = [start(folder, 20, again, 0.02) for _ in range(2)]
    time.sleep(0.2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert read_store(folder) is None
    for process in both:
        out, _ = process.communicate(timeout=60)
        assert out.splitlines()[-1] == "20 400"
        assert process.returncode == 0
    assert again.read_text() == "x" * 20  # one of the two has made the rows
    assert stores(cache) == [folder]


def test_without_locks_the_first_to_rename_wins(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    folder = cache / "key"

    def second() -> Iterator[TokenRow]:
        yield TokenRow(0, [1], [2], False)

    def first() -> Iterator[TokenRow]:
        yield TokenRow(0, [1], [2], False)
        open_store(folder, second, quiet)
        assert folder.is_dir()

    assert open_store(folder, first, quiet).tokens.tolist() == [1, 2]
    assert stores(cache) == [folder]


def test_the_tokenizers_threads_end_with_the_tokenising(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child would wait for them for ever, such as that of a grader."""
    seen = []
    encode = PromptTemplate.encode

    def watched(template: PromptTemplate, *arguments: Any) -> Any:
        seen.append(os.environ.get("TOKENIZERS_PARALLELISM"))
        return encode(template, *arguments)

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(PromptTemplate, "encode", watched)
    tokenize_problems(bind("r1_zero"), PROBLEMS * 9, quiet)
    assert seen[-1] == "true"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    code = os.fork()
    if code == 0:
        os._exit(0 if TOKENIZER(["5", "a b"] * 99)["input_ids"] else 1)
    assert os.waitpid(code, 0)[1] == 0


def test_sizes_are_readable(cache: Path) -> None:
    store = tokenize_problems(bind("r1_zero"), PROBLEMS, quiet)
    (folder,) = stores(cache)
    sizes = json.loads((folder / "sizes.json").read_text())
    assert sizes["tokens"] == len(store.tokens)
    assert sizes["numbers"] == len(store)
