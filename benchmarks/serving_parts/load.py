"""Load test of `qed serve`: many clients at once, some of which cancel or read slowly. Is an answer lost?

    python benchmarks/serving_parts/load.py --model MODEL
    python benchmarks/serving_parts/load.py --url http://127.0.0.1:8000

Every request has its own seed. A sample of them is repeated when the server is idle, and must return the same
tokens. The memory of the server and of its engine is read before and after. The last line is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qed.guards.parents import die_with_parent

CLIENTS, REQUESTS = 64, 2_000
CANCELLED, SLOW, STREAMED = 0.1, 0.05, 0.4  # shares of the requests
REPEATED = 20  # requests to repeat at the end
SECONDS = 300.0  # timeout of a request
READY_SECONDS = 600.0  # for loading the server's model
PAUSE = 0.02  # seconds that a slow reader sleeps after each line
WARM_UP = 128  # requests before memory is measured
WORDS = ("one", "two", "three", "1", "2", "+", "-", "=", "what", "is", "€", "👍")


@dataclass(frozen=True)
class Request:
    """A request, and how its client behaves: `whole`, `stream`, `slow` or `cancel`."""

    body: Mapping[str, Any]
    kind: str


@dataclass
class Outcome:
    """The outcomes of the requests: counts by kind, errors, the tokens of answers and the seconds of each."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def build_requests(count: int, most_tokens: int, seed: int) -> list[Request]:
    """Build random requests; equal seeds build equal requests."""
    draw = random.Random(seed)
    requests = []
    for number in range(count):
        chance = draw.random()
        kind = "cancel" if chance < CANCELLED else "slow" if chance < CANCELLED + SLOW else "whole"
        if kind == "whole" and draw.random() < STREAMED:
            kind = "stream"
        body = {
            "prompt": " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 40))),
            "max_tokens": draw.randint(1, most_tokens),
            "temperature": draw.choice([0.0, 0.7, 1.0]),
            "top_p": draw.choice([1.0, 0.9]),
            "seed": seed + number,
            "stream": kind != "whole",
        }
        if draw.random() < 0.1:
            body |= {"n": 1, "logprobs": 2}
        requests.append(Request(body, kind))
    return requests


class Load:
    """Requests that several clients send at once, each over its own connection.

    Args:
        url: address of the server.
        requests: requests in order.
    """

    def __init__(self, url: str, requests: list[Request]) -> None:
        self.url, self.outcome = url, Outcome()
        self._lock, self._left = threading.Lock(), iter(enumerate(requests))

    def run(self, clients: int) -> Outcome:
        """Send all requests from this many clients, and return their outcomes."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.outcome

    def _work(self) -> None:
        connection = connect(self.url)
        while (found := self._take()) is not None:
            number, request = found
            began = time.perf_counter()
            tokens, error = None, ""
            try:
                tokens = send(connection, request, random.Random(number))
            except (OSError, http.client.HTTPException, ValueError, KeyError) as failure:
                error = f"{request.kind}: {type(failure).__name__}: {failure}"
            if tokens is None:
                connection.close()
                connection = connect(self.url)
            self._note(number, request.kind, time.perf_counter() - began, tokens, error)
        connection.close()

    def _take(self) -> tuple[int, Request] | None:
        with self._lock:
            return next(self._left, None)

    def _note(self, number: int, kind: str, seconds: float, tokens: list[int] | None, error: str) -> None:
        with self._lock:
            self.outcome.counts[kind] += 1
            self.outcome.seconds.append(seconds)
            if tokens is not None:
                self.outcome.answers[number] = tokens
            if error:
                self.outcome.errors.append(error)


def connect(url: str) -> http.client.HTTPConnection:
    """Return a connection to the server at an address."""
    place = urlsplit(url)
    return http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)


def send(connection: http.client.HTTPConnection, request: Request, draw: random.Random) -> list[int] | None:
    """Send a request and return the tokens of its answer; None if the client cancelled it.

    Raises:
        ValueError: the reply is an error, or incomplete.
    """
    connection.request("POST", "/v1/completions", json.dumps(request.body).encode())
    if request.kind == "cancel" and draw.random() < 0.5:
        return None  # before the reply
    reply = connection.getresponse()
    if reply.status != 200:
        raise ValueError(f"status {reply.status}: {reply.read()[:200]!r}")
    if request.kind == "whole":
        (choice,) = json.loads(reply.read())["choices"]
        return check(choice["token_ids"], choice["finish_reason"], request)
    return read_stream(reply, request)


def read_stream(reply: http.client.HTTPResponse, request: Request) -> list[int] | None:
    """Return the tokens of a stream; None if the client cancels after the first."""
    tokens: list[int] = []
    reason = None
    for line in reply:
        if request.kind == "slow":
            time.sleep(PAUSE)
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            tokens += choice["token_ids"]
            reason = choice["finish_reason"]
            if request.kind == "cancel":
                return None
        elif line.startswith(b"data: [DONE]"):
            reply.read()
            return check(tokens, reason, request)
    raise ValueError("the stream has no end")


def check(tokens: list[int], reason: str | None, request: Request) -> list[int]:
    """Return the tokens of an answer.

    Raises:
        ValueError: the answer does not end as its finish reason says.
    """
    if reason not in ("stop", "length") or (reason == "length" and len(tokens) != request.body["max_tokens"]):
        raise ValueError(f"an answer of {len(tokens)} tokens has the finish reason {reason}")
    return tokens


def read_memory(process: int) -> float | None:
    """Return the resident memory of a process in MB; None if the system does not provide it."""
    try:
        lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), None)


def read_json(url: str, path: str) -> Any:
    """Return the JSON at a path of a server."""
    with closing(connect(url)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def count_open(url: str) -> float:
    """Return the number of answers that the server has not finished."""
    with closing(connect(url)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    names = ("qed:open_answers{", "qed:num_requests_running{", "qed:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


@contextmanager
def serve(model: str, *options: str) -> Iterator[dict[str, Any]]:
    """Serve a model in a separate process within the context; yield its url, model and pid."""
    command = [sys.executable, "-m", "qed", "serve", model, "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent(os.getpid()))
    killer = threading.Timer(READY_SECONDS, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        killer.cancel()
        if not line:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield json.loads(line)
    finally:
        killer.cancel()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure_load(url: str, pid: int, requests: int, clients: int, most_tokens: int) -> dict[str, Any]:
    """Run the load test, and return its figures; `pid` is the server's process id, 0 if it is on another machine."""
    described = read_json(url, "/v1/models")["data"][0]
    processes = {"server": pid, "engine": described.get("qed", {}).get("process", 0)}
    Load(url, build_requests(WARM_UP, most_tokens, seed=1_000_000)).run(clients)
    before = {name: read_memory(number) for name, number in processes.items() if number}
    asked = build_requests(requests, most_tokens, seed=1)
    began = time.perf_counter()
    outcome = Load(url, asked).run(clients)
    seconds = time.perf_counter() - began
    deadline = time.monotonic() + SECONDS
    while count_open(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    after = {name: read_memory(number) for name, number in processes.items() if number}
    chosen = sorted(outcome.answers)[:: max(1, len(outcome.answers) // REPEATED)]
    with closing(connect(url)) as connection:
        differing = sum(
            send(connection, Request({**asked[number].body, "stream": False}, "whole"), random.Random(0))
            != outcome.answers[number]
            for number in chosen
        )
    finished = sorted(outcome.seconds)
    tokens = sum(map(len, outcome.answers.values()))
    return {
        "requests": len(asked),
        "clients": clients,
        "by_kind": dict(outcome.counts),
        "lost": len(asked) - outcome.counts["cancel"] - len(outcome.answers) + _count_kept(outcome, asked),
        "errors": outcome.errors[:5],
        "still_open": count_open(url),
        "asked_again": len(chosen),
        "differing": differing,
        "seconds": round(seconds, 1),
        "answer_tokens_per_second": round(tokens / seconds),
        "request_seconds": {"median": finished[len(finished) // 2], "p99": finished[int(len(finished) * 0.99)]},
        "memory_mb_before": before,
        "memory_mb_after": after,
    }


def _count_kept(outcome: Outcome, asked: list[Request]) -> int:
    """Count complete answers to clients that would have cancelled later."""
    return sum(asked[number].kind == "cancel" for number in outcome.answers)


def main() -> None:
    """Run the load test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--model", help="serve this model")
    place.add_argument("--url", help="address of a running server")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--max-tokens", type=int, default=64)
    args, options = parser.parse_known_args()
    arguments = args.requests, args.clients, args.max_tokens
    if args.url:
        result = measure_load(args.url, 0, *arguments)
    else:
        with serve(args.model, *options) as server:
            result = measure_load(server["url"], server["pid"], *arguments)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
