"""`qed doctor --fit` and `--tune` on a real model: what is proposed fits when it is run, and can be trained with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import yaml

from qed.doctor.fit import MARGIN
from qed.doctor.rows import Work
from qed.doctor.trial import Lengths, TrialRequest, resolve_trial_settings, run_trial
from qed.errors import UsageError

LENGTHS = ["--lengths", "40,60"]
MODEL = ["--model", "new:tiny", "--sampling.max_tokens", "60"]


def test_what_is_proposed_stays_under_the_limit(qed: Callable[..., Any]) -> None:
    """A limit under which about 40 rows fit, and those rows then computed by themselves."""
    done = qed("doctor", "--fit", "new:tiny", *LENGTHS, "--json")
    assert done.code == 0, done.err
    told = done.result
    # Keys and values of every token, once: 2 layers x 2 x 2 heads of 32 x 4 bytes.
    assert told["sampler"]["row_mib"] * 2**20 > 100 * 2 * 2 * 2 * 32 * 4 * 0.9
    assert told["learner"]["row_mib"] > told["sampler"]["row_mib"]
    assert told["settings"]["learner.tokens_per_microbatch"] == min(told["learner"]["rows"], 16 * 8) * 99
    rows = 40
    limit = (told["learner"]["base_gib"] * 2**10 + rows * told["learner"]["row_mib"]) / (1 - MARGIN) * 2**20
    found = run_trial(TrialRequest(tuple(MODEL), 40, 60, rows)).peaks
    for (peak,) in found.values():
        assert peak.bytes is not None
        assert peak.bytes <= limit


def test_every_answer_has_the_length_that_was_asked_for() -> None:
    work = Work(resolve_trial_settings(MODEL), Lengths(10, 12))
    answers = [answer for group in work.answer(9) for answer in group]
    assert [len(answer.tokens) for answer in answers] == [12] * 9
    before = work.policy.model.get_input_embeddings().weight.clone()
    work.update(4, 2)
    assert not torch.equal(before, work.policy.model.get_input_embeddings().weight)
    with pytest.raises(UsageError, match="do not fit the window"):
        Work(resolve_trial_settings(MODEL), Lengths(500, 13))


@pytest.mark.slow
@pytest.mark.faults
def test_what_is_fastest_is_printed_as_settings(qed: Callable[..., Any]) -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    done = qed("doctor", "--tune", "new:tiny", "--lengths", "8,4", "--group", 2)
    assert done.code == 0, done.err
    told = yaml.safe_load(done.out)
    assert set(told) == {"run.threads", "run.matmul_precision"}
    assert told["run.matmul_precision"] in ("highest", "high", "medium")
    assert told["run.threads"] >= 1
    assert "proposed" in done.out
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
