"""The demonstrations of problems as a sequence of rollouts whose token ids are read from a `TokenStore` on demand.

Large data is tokenised only once: its store is cached under a hash of the problems, the prompt, the tokenizer, the
code that renders them, and a few freshly rendered rows.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import numpy as np

import qed
from qed import host
from qed.console.progress import report_progress
from qed.data.prompts.base import PromptTemplate, read_author_logps
from qed.data.prompts.demonstrations import iterate_demonstrations
from qed.data.prompts.wrapping import WrappedLeaf
from qed.data.token_store import TokenRow, TokenStore, build_store, open_store, pack_ids
from qed.errors import DataError
from qed.guards.signals import check_signals
from qed.randomness import shuffle_indices
from qed.types import Problem, Prompt, Rollout

CACHED_CHARACTERS = 8_000_000  # about 2 million tokens (8 MB); smaller data is tokenised at every start
BATCH_CHARACTERS = 1_000_000  # characters tokenised in one call, in parallel
SAMPLED = 1_000  # problems of large data that are checked first, until one fits
ENOUGH = 300  # demonstrations that suffice to judge the others
PROBED = 32  # rows that are rendered again for each key
FORMAT = 1  # format version of the store's files
CODE = ("data", "environments", "grading", "models", "rewards")  # determine how a demonstration is rendered
LIBRARIES = ("jinja2", "tokenizers", "transformers")
PARALLEL = "TOKENIZERS_PARALLELISM"


class Demonstrations(Sequence[Rollout]):
    """Demonstrations as rollouts, in the order of their problems, with token ids but without text.

    Args:
        store: the store of the token ids.
        problems: the problems to whose indices the store refers.
        limit: skip rows with more tokens; None for no limit.
        template: identifies the tokens of an environment; None if there are none.
    """

    def __init__(
        self,
        store: TokenStore,
        problems: Sequence[Problem],
        limit: int | None = None,
        template: PromptTemplate | None = None,
    ) -> None:
        self.store, self.problems, self.template = store, problems, template
        lengths = store.lengths
        self.rows = np.flatnonzero(lengths <= limit) if limit is not None else np.arange(len(lengths))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...

    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...

    def __getitem__(self, index: int | slice) -> Rollout | list[Rollout]:
        if isinstance(index, slice):
            return [self._build(int(row)) for row in self.rows[index]]
        return self._build(int(self.rows[index]))

    @property
    def longest(self) -> tuple[int, int]:
        """The lengths of the longest prompt and of the longest reply, possibly of different rows."""
        prompts = self.store.prompt_lengths[self.rows]
        replies = self.store.lengths[self.rows] - prompts
        return int(prompts.max(initial=0)), int(replies.max(initial=0))

    def _build(self, row: int) -> Rollout:
        problem = self.problems[int(self.store.numbers[row])]
        prompt, reply = self.store.read(row)
        behaviour = read_author_logps(problem, len(reply)) if self.store.verbatim[row] else ()
        trained = self.template.mask_replies(reply) if self.template else ()
        return Rollout(problem, prompt, reply, (), "", "stop", "demonstration", behaviour=behaviour, loss_mask=trained)


class Windows(Sequence[Rollout]):
    """Consecutive windows of the concatenated rows of a store, as rollouts.

    The inputs of a window are all but its last token, its labels all but its first. So the inputs of two windows do not
    overlap, and every token of the stream except the first is a label once. There are (tokens - 1) // length windows;
    the rest of the stream is dropped.

    Args:
        store: the store of the token ids.
        order: the order of the rows.
        length: the number of labels in a window.
    """

    def __init__(self, store: TokenStore, order: Sequence[int], length: int) -> None:
        self.store, self.length = store, length
        self.order = np.array(order, dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(store.lengths[self.order])])  # offset of each row in the stream
        self.numbers = range(max(0, int(self.starts[-1]) - 1) // length)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...

    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...

    def __getitem__(self, index: int | slice) -> Rollout | list[Rollout]:
        if isinstance(index, slice):
            return [self._build(number) for number in self.numbers[index]]
        return self._build(self.numbers[index])

    @property
    def longest(self) -> tuple[int, int]:
        """The lengths of the longest prompt and of the longest reply."""
        return (1, self.length) if self.numbers else (0, 0)

    def _build(self, number: int) -> Rollout:
        begin, end = number * self.length, (number + 1) * self.length + 1
        place = int(np.searchsorted(self.starts, begin, "right")) - 1
        pieces = []
        while begin < end:
            start, stop = int(self.starts[place]), min(end, int(self.starts[place + 1]))
            offset = int(self.store.offsets[self.order[place]]) - start
            pieces.append(self.store.tokens[offset + begin : offset + stop])
            begin, place = stop, place + 1
        ids = np.concatenate(pieces)
        # Every token except the first is a label, so the row's prompt is its first token.
        return Rollout(
            Problem(f"window {number}", "", ""), pack_ids(ids[:1]), pack_ids(ids[1:]), (), "", "stop", "demonstration"
        )


def tokenize_problems(template: PromptTemplate, problems: Sequence[Problem], say: Callable[[str], None]) -> TokenStore:
    """Tokenise the demonstrations of problems; for large data, only once for all runs.

    Args:
        template: renders the demonstrations.
        problems: the problems; those without a demonstration get no row.
        say: prints a line, for large data only.
    """
    if not _is_large(problems):
        return build_store(_tokenize(template, enumerate(problems)))
    began = time.monotonic()
    folder: Path | None = None
    made, place = False, ""

    def make() -> Iterator[TokenRow]:
        nonlocal made
        made = True
        with parallel_tokenizer():
            numbered = report_progress(problems, say, "Tokenising", "problems", len(problems))
            yield from _tokenize(template, numbered)

    try:
        folder = host.find_cache() / "demonstrations" / build_key(template, problems)
        store = open_store(folder, make, say)
        place = f"; cached in {folder}"
    except OSError as error:
        say(
            f"The tokenised data cannot be cached in {folder or error.filename}: {error.strerror or error}. Each run "
            f"tokenises it again; to cache it, set the environment variable {host.CACHE} to a writable folder with "
            "enough space."
        )
        store = build_store(make())
    what = f"{len(store):,} demonstrations, {len(store.tokens):,} tokens"
    if made:
        say(f"Tokenised {what} in {time.monotonic() - began:.1f} s{place}.")
    else:
        say(f"{what}, already tokenised: read from {folder}.")
    return store


def require_fitting(template: PromptTemplate, problems: Sequence[Problem], limit: int) -> None:
    """Raise before tokenising large data if no demonstration in a sample fits.

    Raises:
        DataError: all demonstrations in the sample have more tokens than the limit.
    """
    if not (len(problems) > 2 * SAMPLED and _is_large(problems)):
        return
    long = 0
    for number in shuffle_indices(len(problems), 0, "fitting")[:SAMPLED]:
        check_signals("load")
        for row in _tokenize(template, [(0, problems[number])]):
            if len(row.prompt) + len(row.reply) <= limit:
                return
            long += 1
    if long >= ENOUGH:
        raise DataError(
            f"{long:,} demonstrations, sampled from those of {len(problems):,} problems, are all longer than "
            f"the model's window of {limit} tokens; the others are not tokenised. Use a model with a longer window, "
            "shorter demonstrations, or data.window, which cuts long ones."
        )


def build_key(template: PromptTemplate, problems: Sequence[Problem]) -> str:
    """Return a hash of everything that determines the token ids of the problems' demonstrations."""
    digest = hashlib.sha256(_describe_code(template).encode())
    digest.update(_describe_tokenizer(template.tokenizer).encode())
    digest.update(json.dumps([repr(template.leaf), template.stop, template.end]).encode())
    for problem in problems:
        fields = [problem.id, problem.question, problem.answer, problem.solution, dict(problem.meta)]
        digest.update(json.dumps(fields, default=repr).encode())
    # A user-defined prompt may depend on files that are unknown here.
    step = max(1, len(problems) // PROBED)
    digest.update(repr(list(_tokenize(template, enumerate(problems[::step])))).encode())
    return digest.hexdigest()[:32]


def _tokenize(template: PromptTemplate, problems: Iterable[tuple[int, Problem]]) -> Iterator[TokenRow]:
    """Yield the token ids of each problem's first demonstration, with the problem's index."""
    batch: list[tuple[int, bool, tuple[Prompt, str]]] = []
    characters = 0
    for number, problem in problems:
        text = next(iterate_demonstrations(template.leaf, problem), None)
        if text is not None:
            prompt, added = template.write(problem, text)
            batch.append((number, text == problem.meta.get("completion"), (prompt, added)))
            characters += len(prompt.text) + len(added)
        if characters >= BATCH_CHARACTERS:
            yield from _encode(template, batch)
            batch, characters = [], 0
    if batch:
        yield from _encode(template, batch)


def _encode(template: PromptTemplate, batch: Sequence[tuple[int, bool, tuple[Prompt, str]]]) -> Iterator[TokenRow]:
    encoded = template.encode([written for _, _, written in batch])
    for (number, verbatim, _), (prompt, reply) in zip(batch, encoded, strict=True):
        yield TokenRow(number, prompt, reply, verbatim)


@contextmanager
def parallel_tokenizer() -> Iterator[None]:
    """Let the tokenizer use one thread per core.

    Its threads are never used outside of this block, because a process forked later would wait for them forever.
    """
    with host.set_variable(PARALLEL, "true"):
        yield


def _is_large(problems: Sequence[Problem]) -> bool:
    """Return whether the demonstrations are large enough to cache their tokens."""
    return sum(map(_count_characters, problems)) >= CACHED_CHARACTERS


def _count_characters(problem: Problem) -> int:
    texts = (problem.question, problem.solution, problem.meta.get("completion"), problem.meta.get("rendered"))
    return sum(len(text) for text in texts if text)


def _describe_code(template: PromptTemplate) -> str:
    """Describe the code that renders demonstrations: that of qed, its libraries, and a user-defined prompt."""
    leaf, own = template.leaf, ""
    while isinstance(leaf, WrappedLeaf):
        leaf = leaf.leaf
    with suppress(OSError, TypeError):  # a prompt defined in a notebook has no file
        own = inspect.getsource(leaf if inspect.ismodule(leaf) else type(leaf))
    return json.dumps(
        [FORMAT, _hash_code(), {name: version(name) for name in LIBRARIES}, own, template.environment.reply_tags]
    )


@lru_cache
def _hash_code() -> str:
    digest = hashlib.sha256()
    for package in CODE:
        for file in sorted((Path(qed.__file__).parent / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _describe_tokenizer(tokenizer: Any) -> str:
    """Describe a tokenizer: the content of all its files, or the vocabulary of a slow tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        # These depend on the last call.
        content |= {"padding": None, "truncation": None}
    else:
        content = {"vocabulary": tokenizer.get_vocab()}
    special = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
    return json.dumps([type(tokenizer).__name__, content, special, tokenizer.chat_template], sort_keys=True)
