"""Counters and times of the web server as Prometheus text, under vLLM's names where vLLM has them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from qed.serving.messages import EngineStats

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of times by upper bound, for the bounds in `SECONDS`."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(SECONDS) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a time."""
        self.counts[bisect_left(SECONDS, value)] += 1
        self.sum += value

    def format(self, name: str, label: str) -> Iterator[str]:
        """Yield the lines of the histogram."""
        total = 0
        for bound, count in zip((*SECONDS, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{label},le="{bound}"}} {total}'
        yield f"{name}_sum{{{label}}} {self.sum}"
        yield f"{name}_count{{{label}}} {total}"


class AnswerTimer:
    """The times of one answer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._begun = metrics, time.perf_counter()
        self._last = 0.0
        self.finish_reason: str | None = None

    def count(self, tokens: int, finish_reason: str | None) -> None:
        """Count new tokens."""
        now = time.perf_counter()
        if tokens and self._last:
            for _ in range(tokens):
                self._metrics.between_tokens.add((now - self._last) / tokens)
        elif tokens:
            self._metrics.first_token.add(now - self._begun)
        self._last = now if tokens else self._last
        self._metrics.generated_tokens += tokens
        self.finish_reason = finish_reason

    def end(self) -> None:
        """Count the answer."""
        self._metrics.finished[self.finish_reason or "abort"] += 1
        self._metrics.whole_answer.add(time.perf_counter() - self._begun)


class Metrics:
    """Counts of the web server since its start; they are kept when the engine restarts."""

    def __init__(self) -> None:
        self.first_token, self.between_tokens, self.whole_answer = Histogram(), Histogram(), Histogram()
        self.finished: Counter[str] = Counter()
        self.replies: Counter[int] = Counter()  # by status
        self.prompt_tokens = self.generated_tokens = self.open_answers = self.restarts = 0

    @contextmanager
    def time_answer(self, prompt_tokens: int) -> Iterator[AnswerTimer]:
        """Count an answer while the block runs, and yield its timer."""
        self.open_answers += 1
        self.prompt_tokens += prompt_tokens
        timer = AnswerTimer(self)
        try:
            yield timer
        finally:
            self.open_answers -= 1
            timer.end()

    def format(self, model: str, stats: EngineStats | None) -> str:
        """Return the text of `/metrics`; without stats the engine is down."""
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        label = f'model_name="{escaped}"'
        gauges: dict[str, float] = {"engine_up": float(stats is not None), "open_answers": self.open_answers}
        counters: dict[str, float] = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generated_tokens,
            "engine_restarts_total": self.restarts,
        }
        if stats is not None:
            gauges |= {
                "num_requests_running": stats.running,
                "num_requests_waiting": stats.waiting,
                "weight_version": stats.version,
                "paused": float(stats.paused),
            }
            counters |= {
                "engine_prompt_tokens_total": stats.prompt_tokens,
                "engine_generation_tokens_total": stats.generated_tokens,
                "engine_steps_total": stats.steps,
            }
        lines = [line for name, value in gauges.items() for line in _format_one(name, "gauge", {label: value})]
        lines += [line for name, value in counters.items() for line in _format_one(name, "counter", {label: value})]
        finished = {f'{label},finished_reason="{reason}"': count for reason, count in self.finished.items()}
        lines += _format_one("request_success_total", "counter", finished)
        replies = {f'{label},status="{status}"': count for status, count in self.replies.items()}
        lines += _format_one("http_replies_total", "counter", replies)
        for name, histogram in (
            ("time_to_first_token_seconds", self.first_token),
            ("inter_token_latency_seconds", self.between_tokens),
            ("e2e_request_latency_seconds", self.whole_answer),
        ):
            lines += [f"# TYPE qed:{name} histogram", *histogram.format(f"qed:{name}", label)]
        return "\n".join(lines) + "\n"


def _format_one(name: str, kind: str, values: Mapping[str, float]) -> list[str]:
    return [f"# TYPE qed:{name} {kind}", *(f"qed:{name}{{{label}}} {value}" for label, value in values.items())]
