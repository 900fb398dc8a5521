"""`qed evaluate --model openai:NAME`: text in, text out, over an endpoint that limits, drops, refuses and garbles."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from serving import Reply, serve

from qed.config.plugins import load_leaf
from qed.evaluation import run as evaluation_run
from qed.evaluation.endpoint import model as endpoint_model
from qed.evaluation.endpoint.finished import iterate_finished
from qed.evaluation.endpoint.prompts import EndpointPrompt, EndpointTemplate
from qed.evaluation.endpoint.replies import read_reply, read_usage
from qed.runs.run import read_lines

KEY = "key-of-nobody-0123456789"
Qed = Callable[..., Any]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_model, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"What is {a} + 2?", "answer": f"#### {a + 2}"} for a in range(12)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def solve(content: Any) -> str:
    asked = content["messages"][-1]["content"] if "messages" in content else content["prompt"]
    return str(int(asked.partition("What is ")[2].partition(" ")[0]) + 2)


def reply(text: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 2}}
    return {"choices": [{"message": {"content": text, **message}, "finish_reason": finish}], "usage": usage}


def right(path: str, content: Any, headers: dict[str, str]) -> Reply:
    return 200, reply(f"So \\boxed{{{solve(content)}}}.")


def ask(qed: Qed, url: str, problems: Path, out: Path, *more: Any, base: str = "/v1") -> Any:
    command = ("evaluate", "--model", "openai:m", "--url", f"{url}{base}", "--tasks", problems, "--prompt", "boxed")
    return qed(*command, "--greedy", "--out", out, "--json", *more)


def rows_of(out: Path) -> list[dict[str, Any]]:
    return read_lines(out / "eval/step_000000/sums.jsonl")


def test_an_endpoint_is_evaluated_like_every_other_model(qed: Qed, problems: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, Any, str]] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        seen.append((path, content, headers["Authorization"]))
        return right(path, content, headers)

    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o", "--extra", '{"seed": null, "user": "me"}')
    assert done.code == 0, done.err
    figures = done.result["tasks"]["sums"]
    assert (figures["accuracy"], figures["format"], figures["mean_tokens"], figures["truncated_frac"]) == (1, 1, 5, 0)
    assert figures["classes"]["fmt1_ans1"] == 1
    counts = {"requests": 12, "prompt": 120, "completion": 60, "reasoning": 24}
    missing = dict.fromkeys(("without_usage", "refused", "failed", "empty"), 0)
    assert figures["usage"] == {**counts, **missing}
    assert "12 answers cost 120 prompt tokens and 60 answer tokens (of these 24 reasoning)" in done.err
    path, content, key = seen[0]
    assert (path, key, len(seen)) == ("/v1/chat/completions", f"Bearer {KEY}", 12)
    system, user = content.pop("messages")
    assert (system["role"], user["role"]) == ("system", "user")
    assert "\\boxed{}" in system["content"]
    assert content == {"model": "m", "max_tokens": 2048, "temperature": 0.0, "user": "me"}
    row = rows_of(tmp_path / "o")[0]
    assert (row["n_tokens"], row["tokens"], row["stop_reason"], row["text"]) == (5, [], "stop", "So \\boxed{2}.")
    assert row["prompt"].startswith("system: ")
    assert figures["settings"]["endpoint"]["url"] == f"{url}/v1/chat/completions"
    for file in (tmp_path / "o").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()
    assert KEY not in done.out + done.err


def test_what_may_pass_is_asked_again(qed: Qed, problems: Path, tmp_path: Path) -> None:
    """Each prompt meets a rate limit, a failure of the server, and a reply that is cut, before it is answered."""
    lock, tries = threading.Lock(), dict[str, int]()

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        with lock:
            tries[solve(content)] = count = tries.get(solve(content), 0) + 1
        return {1: (429, {}), 2: (503, {}), 3: (200, b'{"choi')}.get(count) or right(path, content, headers)

    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o")
    assert done.code == 0, done.err
    assert done.result["tasks"]["sums"]["accuracy"] == 1
    assert set(tries.values()) == {4}


def test_failed_and_refused_answers_are_recorded_and_only_the_failed_are_asked_again(
    qed: Qed, problems: Path, tmp_path: Path
) -> None:
    overflow = {"error": {"message": "This model's maximum context length is 8 tokens", "code": "context_length"}}
    broken, asked = {"5"}, list[str]()

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append(solve(content))
        special: dict[str, Reply] = {"4": (400, overflow), "6": (200, reply(None, "content_filter"))}
        return (500, {}) if asked[-1] in broken else special.get(asked[-1]) or right(path, content, headers)

    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o", "--concurrency", 1)
        assert done.code == 0, done.err
        figures = done.result["tasks"]["sums"]
        assert (figures["accuracy"], figures["errors"]) == (9 / 12, 0), "the grader failed on none"
        assert "made it fail" not in done.out + done.err
        assert (figures["usage"]["refused"], figures["usage"]["failed"]) == (2, 1)
        assert "2 answers were refused and 1 failed; they count as wrong" in done.err
        told = {row["gold"]: (row["stop_reason"], row["tier"], row["reason"]) for row in rows_of(tmp_path / "o")}
        assert told["4"][:2] == ("refused", "error")
        assert "maximum context length is 8" in told["4"][2]
        assert told["5"][0] == "failed"
        assert "status 500: {} (5 attempts)" in told["5"][2]
        broken.clear()
        asked.clear()
        again = ask(qed, url, problems, tmp_path / "o", "--concurrency", 1)
        assert asked == ["5"], "refused prompts would be refused again"
        assert again.result["tasks"]["sums"]["accuracy"] == 10 / 12
        asked.clear()
        assert "nothing is sampled again" in ask(qed, url, problems, tmp_path / "o").err
        assert not asked


def test_an_interrupted_evaluation_keeps_every_answer(
    qed: Qed, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = list[str](), evaluation_run.assign_grades

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append(solve(content))
        return right(path, content, headers)

    def interrupted(groups: Any, grader: Any) -> None:
        real(groups, grader)
        if groups[0][0].problem.answer == "8":
            raise KeyboardInterrupt

    with serve(answer) as url:
        whole = ask(qed, url, problems, tmp_path / "whole")
        monkeypatch.setattr(evaluation_run, "assign_grades", interrupted)
        stopped = ask(qed, url, problems, tmp_path / "o", "--concurrency", 1)
        assert (stopped.code, "saved in" in stopped.err) == (130, True)
        (part,) = (tmp_path / "o/eval/step_000000").glob(".*.unfinished.jsonl")
        kept = {row["gold"] for row in read_lines(part)[1:]}
        assert kept
        monkeypatch.undo()
        asked.clear()
        done = ask(qed, url, problems, tmp_path / "o")
    assert done.code == 0, done.err
    assert not kept & set(asked)
    assert len(kept) + len(set(asked)) == 12, "a request of the interrupted evaluation may still arrive"
    assert rows_of(tmp_path / "o") == rows_of(tmp_path / "whole")
    assert done.result["tasks"] == whole.result["tasks"]


def test_shards_of_an_endpoint_join(qed: Qed, problems: Path, tmp_path: Path) -> None:
    with serve(right) as url:
        assert ask(qed, url, problems, tmp_path / "whole").code == 0
        for number in (1, 2):
            done = ask(qed, url, problems, tmp_path / "o", "--shard", f"{number}/2")
            assert done.code == 0, done.err
    assert qed("merge", tmp_path / "o").code == 0
    assert rows_of(tmp_path / "o") == rows_of(tmp_path / "whole")


def test_a_plain_prompt_is_one_message_or_is_continued(qed: Qed, problems: Path, tmp_path: Path) -> None:
    """The tag that the prompt opens belongs to the answer; the stop string that ended it is put back."""
    bodies: list[Any] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        bodies.append((path, content))
        if path.endswith("/chat/completions"):
            return 200, reply(f"<answer> {solve(content)} ", reasoning_content="I add.")
        text = f"I add. </think> <answer> {solve(content)} "
        return 200, {"choices": [{"text": text, "finish_reason": "stop", "stop_reason": "</answer>"}]}

    with serve(answer) as url:
        for api in ("chat", "completions"):
            done = ask(qed, url, problems, tmp_path / api, "--prompt", "r1_zero", "--api", api)
            assert done.code == 0, done.err
            figures = done.result["tasks"]["sums"]
            assert (figures["accuracy"], figures["reasoning_frac"]) == (1, 1), api
            assert figures["usage"]["without_usage"] == (0 if api == "chat" else 12)
    assert rows_of(tmp_path / "chat")[0]["text"] == "<think>I add.</think> <answer> 2 </answer>"
    row = rows_of(tmp_path / "completions")[0]
    assert (row["text"], row["n_tokens"]) == ("<think>I add. </think> <answer> 2 </answer>", None)
    (_, chat), (path, text) = bodies[0], bodies[-1]
    assert [each["role"] for each in chat["messages"]] == ["user"]
    assert chat["messages"][0]["content"].endswith("Assistant:")
    assert path == "/v1/completions"
    assert text["prompt"].endswith("Assistant: <think>")
    assert text["stop"] == chat["stop"] == ["</answer>"]


def test_a_query_stays_at_the_end_of_the_address(qed: Qed, problems: Path, tmp_path: Path) -> None:
    seen: set[str] = set()

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        seen.add(path)
        return right(path, content, headers)

    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o", base="/v1/?api-version=1")
    assert done.code == 0, done.err
    assert seen == {"/v1/chat/completions?api-version=1"}


@pytest.mark.parametrize("extra", ["{}", '{"max_tokens": 99}', '{"max_tokens": null}'])
def test_a_model_that_names_its_limit_otherwise(qed: Qed, problems: Path, tmp_path: Path, extra: str) -> None:
    refusal = {"error": {"message": "Use 'max_completion_tokens' instead.", "param": "max_tokens"}}

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        limits.add(content.get("max_completion_tokens"))
        return (400, refusal) if "max_tokens" in content else right(path, content, headers)

    limits: set[Any] = set()
    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o", "--extra", extra)
    assert done.code == 0, done.err
    assert done.result["tasks"]["sums"]["accuracy"] == 1
    assert limits - {None} == {None if "null" in extra else 99 if "99" in extra else 2048} - {None}


def test_a_thought_that_is_apart_may_contain_a_stop_string() -> None:
    template = EndpointTemplate(load_leaf("prompts", "boxed"), "chat", ("Question:",))
    told = {"content": "It is 4. Question: next", "reasoning_content": "The Question: what is 2 + 2?"}
    answer = read_reply({"choices": [{"message": told, "finish_reason": "stop"}]}, EndpointPrompt(), template)
    assert answer.text == "<think>The Question: what is 2 + 2?</think> It is 4. Question:"


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 8}, "cost": 0.5}, {"cached": 8, "cost": 0.5}),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, {"reasoning": 3}),
        ({"reasoning_tokens": 3}, {"reasoning": 3}),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, {}),
        ({"prompt_tokens_details": [8], "completion_tokens_details": "3", "cost": -1}, {}),
    ],
)
def test_an_endpoint_tells_its_tokens_in_its_own_way(told: dict[str, Any], read: dict[str, float]) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, **told}
    assert read_usage(usage) == {"prompt": 10, "completion": 5, **read}
    assert read_usage(told) == read
    assert read_usage(None) == read_usage([10, 5]) == {}


def test_many_requests_are_awaited_in_linear_time() -> None:
    futures: list[Future[int]] = [Future() for _ in range(20_000)]
    start, found = time.process_time(), list[int]()
    futures[0].set_result(0)
    for future in iterate_finished(futures, "endpoint"):
        found.append(future.result())
        if len(found) < len(futures):
            futures[len(found)].set_result(len(found))
    assert found == list(range(20_000))
    assert time.process_time() - start < 20


WRONG: dict[str, tuple[Reply, str]] = {
    "key": ((401, {"error": {"message": f"Incorrect key {KEY}"}}), "refuses the key in OPENAI_API_KEY (status 401"),
    "model": ((404, {"error": {"message": "no model m"}}), "has no model 'm'"),
    "page": ((200, b"<!doctype html><title>Hello</title>"), "the reply is a web page (status 200)"),
    "lost page": ((404, b"<html>not found</html>"), "the reply is a web page (status 404)"),
    "json": ((200, {"hello": 1}), "not that of an OpenAI-compatible endpoint"),
    "elsewhere": ((302, {}), "redirects elsewhere"),
    "quota": ((429, {"error": {"message": "x", "code": "insufficient_quota"}}), "has no credit left"),
    "parameter": (
        (400, {"error": {"message": "no", "code": "unsupported_value", "param": "temperature"}}),
        "--extra '{\"temperature\": null}'",
    ),
    "overflow": ((400, {"error": {"message": "context is 8 tokens"}}), "none of the last 8 requests: context is 8"),
    "down": ((503, {}), "status 503: {} (5 attempts)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_for_all_is_said_in_a_sentence(qed: Qed, problems: Path, tmp_path: Path, name: str) -> None:
    wrong, words = WRONG[name]
    with serve(lambda *_: wrong) as url:
        done = ask(qed, url, problems, tmp_path / "o", "--concurrency", 4)
    assert done.code == 3, done.err
    assert words in done.err
    assert "Traceback" not in done.err
    assert KEY not in done.err


@pytest.mark.parametrize("odd", [(200, b"<html>busy</html>"), (200, {"choices": []})])
def test_an_odd_reply_of_an_endpoint_that_has_answered_is_asked_again(
    qed: Qed, problems: Path, tmp_path: Path, odd: Reply
) -> None:
    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append(path)
        return odd if len(asked) == 2 else right(path, content, headers)

    asked: list[str] = []
    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o", "--concurrency", 1)
    assert done.code == 0, done.err
    assert done.result["tasks"]["sums"]["accuracy"] == 1


def test_mistakes_of_the_command_line(qed: Qed, problems: Path, tmp_path: Path) -> None:
    addresses = (("localhost", "not an address"), ("http://u:p@h/v1", "must not contain a user or password"))
    for address, words in addresses:
        done = ask(qed, address, problems, tmp_path / "o")
        assert (done.code, words in done.err) == (2, True), done.err
    wrong: list[tuple[tuple[Any, ...], str]] = [
        (("--url", "http://127.0.0.1:9"), "--url is given twice"),
        (("--precision", "float32"), "--precision has no effect"),
        (("--extra", "[1]"), "must be a JSON object"),
        (("--api", "completions"), "--api completions takes text"),
        (("--concurrency", 0), "--concurrency must be at least 1"),
    ]
    for more, words in wrong:
        done = ask(qed, "http://127.0.0.1:9", problems, tmp_path / "o", *more)
        assert (done.code, words in done.err) == (2, True), done.err
    nobody = ask(qed, "http://127.0.0.1:9", problems, tmp_path / "o", "--concurrency", 4)
    assert (nobody.code, "127.0.0.1:9" in nobody.err, "refused" in nobody.err) == (3, True, True), nobody.err
    assert "needs one --url" in qed("evaluate", "--model", "openai:m", "--tasks", problems).err
    assert "is for an endpoint" in qed("evaluate", "--model", "new:tiny", "--tasks", problems, "--api", "chat").err


def test_prompts_of_a_file_are_answered(qed: Qed, tmp_path: Path) -> None:
    """`qed generate`: what failed is left out and asked again by the same command; a larger --n adds answers."""
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("What is 1 + 2?\nWhat is 5 + 2?\n")
    broken, asked = {"7"}, list[str]()

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        result = solve(content)
        asked.append(result)
        return (400, {"error": {"message": "too long"}}) if result in broken else right(path, content, headers)

    with serve(answer) as url:
        command = ("generate", "openai:m", prompts, "--url", url, "--out", out)
        done = qed(*command)
        assert done.code == 0, done.err
        assert "Left out 1 refused by the endpoint (too long)." in done.out
        assert [(row["row"], row["completion"], row["n_tokens"]) for row in read_lines(out)] == [
            (1, "So \\boxed{3}.", 5)
        ]
        broken.clear()
        asked.clear()
        assert qed(*command).code == 0
        assert asked == ["7"]
        assert qed(*command, "--n", 2).code == 0
        assert sorted(asked) == ["3", "7", "7"]
        assert len({(row["row"], row["sample"]) for row in read_lines(out)}) == 4


def test_one_answer_among_refusals_is_an_answer(qed: Qed, problems: Path, tmp_path: Path) -> None:
    """It comes last."""
    refused = threading.Semaphore(0)

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        if solve(content) == "4":
            assert all(refused.acquire(timeout=20) for _ in range(11))
            return right(path, content, headers)
        refused.release()
        return 400, {"error": {"message": "too long"}}

    with serve(answer) as url:
        done = ask(qed, url, problems, tmp_path / "o")
    assert done.code == 0, done.err
    assert done.result["tasks"]["sums"]["usage"]["refused"] == 11
