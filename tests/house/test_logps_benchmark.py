"""The benchmark of log-probs compares ways that compute the same, and ends with one line of JSON."""

from __future__ import annotations

import json
import sys

import logps as benchmark
import pytest
import torch


def test_the_ways_agree() -> None:
    torch.manual_seed(0)
    hidden, weight, labels = torch.randn(40, 8), torch.randn(300, 8), torch.randint(0, 300, (40,))
    for one, other in zip(
        *(benchmark.WAYS[name](hidden, weight, labels) for name in ("qed", "whole logits")), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_process_of_one_way_ends_with_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["logps.py", "--way", "whole logits", "--tokens", "500", "--vocabulary", "20000", "--width", "8"]
    monkeypatch.setattr(sys, "argv", arguments)
    threads = torch.get_num_threads()
    benchmark.main()
    torch.set_num_threads(threads)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() == {"extra_mib", "wall", "cpu", "logps", "entropy", "d_hidden", "d_weight"}
    assert figures["d_weight"] > 0
