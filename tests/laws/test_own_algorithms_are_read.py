"""What an algorithm of one's own says is what runs; a part of it that nothing would read is refused by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from qed.algorithms.base import Algorithm, StepContext
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.config.plugins import load_algorithm
from qed.config.sampling_settings import SamplingSettings
from qed.config.settings import ModelSettings
from qed.config.user_code import list_files
from qed.errors import UsageError
from qed.models.initial_weights import seed_initial_weights
from qed.models.load import build_model, load_model
from qed.rollout.collector import RolloutCollector
from qed.rollout.stages import Stream, assign_advantages
from qed.training.batch import collate
from qed.types import Grade, Group, Problem, Rollout

Load = Callable[[str], type[Algorithm]]
HEAD = "from dataclasses import dataclass\nfrom qed.algorithms.grpo import Grpo\n"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads an algorithm from the lines of a file."""

    def write_and_load(body: str) -> type[Algorithm]:
        file = tmp_path / "mine.py"
        file.write_text(HEAD + body, encoding="utf-8")
        return load_algorithm(str(file))

    return write_and_load


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("class Mine(Grpo):\n    group_size: int = 3\n", "@dataclass"),
        ("@dataclass(frozen=True)\nclass Mine(Grpo):\n    advantage = 0.5\n", "algorithm.advantage"),
        ("@dataclass(frozen=True)\nclass Mine(Grpo):\n    def surrogate(self): return 0.5\n", "algorithm.surrogate"),
        (
            "@dataclass(frozen=True)\nclass Mine(Grpo):\n    def weight(self, groups): return 1\n",
            "Did you mean weights?",
        ),
        (
            "@dataclass(frozen=True)\nclass Mine(Grpo):\n    def advantage_(self, r): return r\n",
            "Did you mean advantage",
        ),
    ],
)
def test_a_part_that_nothing_reads_is_refused(load: Load, body: str, said: str) -> None:
    with pytest.raises(UsageError, match="mine") as error:
        load(body)
    assert said in str(error.value)


@pytest.mark.parametrize("body", ["kl: float = 0.5", "kl = 0.5", "def kl(self): return 0.5"])
def test_a_name_that_hides_a_setting_of_a_part_is_refused(load: Load, body: str) -> None:
    kind = load(f"@dataclass(frozen=True)\nclass Mine(Grpo):\n    {body}\n")
    with pytest.raises(UsageError, match=r"Mine has kl, which would hide algorithm\.regularizer\.kl"):
        kind()


@pytest.mark.parametrize(
    "body",
    [
        "    extra: int = 2\n",
        "    def advantages(self, rewards):\n        return self.weight(rewards)\n    def weight(self, x): return x\n",
        "    def _weight(self, groups): return 1\n    def something_else(self): return 1\n",
        "    NAME = 'mine'\n    @property\n    def double(self): return 2 * self.kl\n",
    ],
)
def test_what_is_read_or_clearly_ones_own_is_accepted(load: Load, body: str) -> None:
    assert load("@dataclass(frozen=True)\nclass Mine(Grpo):\n" + body).__name__ == "Mine"


def test_methods_that_a_decorator_adds_are_accepted(load: Load) -> None:
    """From Python 3.13 on, a dataclass has a method `__replace__`, a function of another name and with a `/`."""
    body = (
        "def later(kind):\n    def _replace(self, /, **changes): return self\n    kind.__replace__ = _replace\n"
        "    return kind\nMore = later(Grpo)\n@later\n@dataclass(frozen=True)\nclass Mine(More): pass\n"
    )
    assert load(body).__name__ == "Mine"


class Own(PolicyGradient):
    def advantages(self, rewards: Tensor) -> Tensor:
        return 2 * rewards


@pytest.mark.parametrize(
    "settings", [{"std_over": "batch"}, {"estimator": "returns"}, {"estimator": "opo"}, {"estimator": "gpg"}]
)
def test_advantages_that_would_not_be_called_are_refused(settings: dict[str, Any]) -> None:
    PolicyGradient(**settings)
    with pytest.raises(UsageError, match=r"Own has its own method advantages, which algorithm\.(std_over|estimator)="):
        Own(**settings)


@pytest.mark.parametrize("settings", [{}, {"estimator": "none"}, {"estimator": "leave_one_out"}])
def test_advantages_of_ones_own_are_called_with_the_others(settings: dict[str, Any]) -> None:
    group = [answer("a", reward) for reward in (0.0, 1.0)]
    assign_advantages([group], Own(**settings))
    assert [one.advantage for one in group] == [0.0, 2.0]


def test_a_setting_that_a_method_of_ones_own_may_read_is_not_said_to_have_no_effect() -> None:
    settings: dict[str, Any] = {"estimator": "none"}
    assert "advantage.normalize_std" in PolicyGradient(**settings).unread
    assert "advantage.normalize_std" not in Own(**settings).unread
    assert Own(**settings).unread.keys() < PolicyGradient(**settings).unread.keys()


@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("kind", [tuple, list])
def test_as_many_advantages_as_tokens(kind: Any, count: int) -> None:
    class Credited(Algorithm):
        def credit(self, groups: Any) -> Any:
            return [[kind([1.0] * count) for _ in group] for group in groups]

    with pytest.raises(UsageError, match=f"Credited.credit returned {count} advantages for an answer of 3 tokens"):
        assign_advantages([[answer("a", 1.0)]], Credited())


@pytest.mark.parametrize("base", [Algorithm, PolicyGradient])
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda rewards: rewards[:-1], r"a tensor of shape \[1\] for 2 rewards"),
        (lambda rewards: rewards[None], r"a tensor of shape \[1, 2\] for 2 rewards"),
        (lambda rewards: rewards.tolist(), "list for 2 rewards"),
        (lambda rewards: None, "NoneType for 2 rewards"),
    ],
)
def test_advantages_that_are_no_tensor_of_a_group_are_refused(base: Any, returned: Any, told: str) -> None:
    class Mine(base):  # type: ignore[misc]
        def advantages(self, rewards: Tensor) -> Any:
            return returned(rewards)

    with pytest.raises(UsageError, match=rf"Mine\.advantages returned {told}"):
        assign_advantages([[answer("a", 0.0), answer("a", 1.0)]], Mine())


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        *((wrong, "must return a list for each of the 1 groups") for wrong in (3, None, [], [[1.0]], [1.0, 2.0])),
        ([[1.0, 2.0], [1.0, 2.0]], "must return a list for each of the 1 groups"),
        (torch.tensor(1.0), "must return a list for each of the 1 groups"),
        ([torch.tensor(1.0)], "must return a list for each of the 1 groups"),
        *(([[wrong, 1.0]], "returned .*, which is not an advantage") for wrong in (None, "x", {}, (1.0, None, 2.0))),
    ],
)
def test_credit_that_is_no_number_for_each_rollout_is_refused(returned: Any, told: str) -> None:
    class Credited(Algorithm):
        def credit(self, groups: Any) -> Any:
            return returned

    with pytest.raises(UsageError, match=rf"Credited\.credit {told}"):
        assign_advantages([[answer("a", 0.0), answer("a", 1.0)]], Credited())


@pytest.mark.parametrize("base", [Algorithm, PolicyGradient])
def test_arrays_and_iterators_are_read(base: Any) -> None:
    class Mine(base):  # type: ignore[misc]
        def advantages(self, rewards: Tensor) -> Any:
            return rewards.numpy() * 3

        def credit(self, groups: Any) -> Any:
            return iter(super().credit(groups))

    group = [answer("a", 0.0), answer("a", 1.0)]
    assign_advantages([group], Mine())
    assert [one.advantage for one in group] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("returned", "read"),
    [
        ([[torch.tensor(0.5), np.float32(2)]], [0.5, 2.0]),
        (torch.tensor([[0.5, 2.0]]), [0.5, 2.0]),
        ([[torch.tensor([1.0, 2.0, 3.0]), np.array([4, 5, 6])]], [(1.0, 2.0, 3.0), (4.0, 5.0, 6.0)]),
        ([[[1.0, 2.0, 3.0], 0]], [(1.0, 2.0, 3.0), 0.0]),
    ],
)
def test_credit_of_tensors_and_arrays_becomes_plain_numbers(returned: Any, read: list[Any]) -> None:
    class Credited(Algorithm):
        def credit(self, groups: Any) -> Any:
            return returned

    group = [answer("a", 0.0), answer("a", 1.0)]
    assign_advantages([group], Credited())
    assert [one.advantage for one in group] == read
    assert json.loads(json.dumps([one.advantage for one in group])) == json.loads(json.dumps(read))
    collate(group)


@pytest.mark.parametrize("kind", [torch.ones, np.ones])
def test_a_tensor_or_array_has_an_advantage_for_each_token(kind: Any) -> None:
    class Credited(Algorithm):
        def credit(self, groups: Any) -> Any:
            return [[kind(2) for _ in group] for group in groups]

    with pytest.raises(UsageError, match="returned 2 advantages for an answer of 3 tokens"):
        assign_advantages([[answer("a", 1.0)]], Credited())


@pytest.mark.parametrize("base", [Algorithm, PolicyGradient])
def test_advantages_of_ones_own_are_not_called_for_a_group_without_rewards(base: Any) -> None:
    class Mine(base):  # type: ignore[misc]
        def advantages(self, rewards: Tensor) -> Tensor:
            return rewards - rewards.max()

    failed = [answer("a", 0.0), answer("a", 0.0)]
    for one in failed:
        one.grade = Grade(0.0, False, True, None, tier="timeout")
    group = [answer("b", 0.0), answer("b", 1.0)]
    assign_advantages([failed, group], Mine())
    assert [one.advantage for one in (*failed, *group)] == [0.0, 0.0, -1.0, 0.0]


# What an algorithm plans


def answer(name: str, reward: float) -> Rollout:
    rollout = Rollout(Problem(name, "?", "1"), (5,), (2, 2, 2), (-1.0,) * 3, "", "stop")
    rollout.grade = Grade(reward, reward > 0, True, None)
    return rollout


def build_collector(monkeypatch: pytest.MonkeyPatch, said: list[str], wanted: int = 2) -> RolloutCollector:
    problems = [Problem(f"p{number}", "?", "1") for number in range(6)]
    nothing: Any = None
    collector = RolloutCollector(
        Stream(problems, 0, "problems"), nothing, nothing, nothing, SamplingSettings(problems_per_step=wanted), nothing
    )
    collector.say = said.append

    def sample(self: Any, algorithm: Algorithm, context: StepContext, *_: Any) -> list[Group]:
        return [
            [answer(request.problem.id, 1.0)]
            for request in algorithm.plan(self._next_problems(wanted, set()), 1, context)
        ]

    monkeypatch.setattr(RolloutCollector, "_sample_round", sample)
    return collector


def test_every_request_of_a_plan_is_trained_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests to each problem: no answer waits for a later step, where the weights are no longer its own."""

    class Twice(Algorithm):
        def plan(self, problems: Any, group_size: int, context: StepContext) -> Any:
            return [*super().plan(problems, group_size, context)] * 2

    collector = build_collector(monkeypatch, [])
    for step in range(1, 5):
        collected = collector.collect(Twice(), StepContext(step, 9, 0))
        assert len(collected.groups) == 4
        assert not collector.surplus


def test_a_step_that_samples_on_and_on_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(Algorithm):
        def enough(self, groups: Any, wanted: int, rounds: int) -> bool:
            return rounds >= 25

    said: list[str] = []
    collector = build_collector(monkeypatch, said)
    collected = collector.collect(Never(), StepContext(3, 9, 0))
    assert len(collected.groups) == 2
    assert said == ["Step 3 has sampled 10 rounds, 20 groups, of which 20 are kept: Never.enough asks for more."]


# Files and seeds


def test_the_files_that_a_file_imports_from_its_folder(tmp_path: Path) -> None:
    texts = {
        "mine.py": "import json, helper\nfrom parts import one\nfrom . import near\n",
        "helper.py": "import mine, gone\n",
        "parts/__init__.py": "",
        "parts/one.py": "from ..near import x\nfrom .two import y\n",
        "parts/two.py": "this is no Python",
        "near.py": "x = 1\n",
        "other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = list_files(str(tmp_path / "mine.py"))
    assert found[0] == tmp_path / "mine.py"
    assert {file.resolve() for file in found} == {(tmp_path / name).resolve() for name in texts if name != "other.py"}
    assert list_files(str(tmp_path / "gone.py")) == []


def test_a_module_by_its_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dotted_one.py").write_text("import dotted_two\n", encoding="utf-8")
    (tmp_path / "dotted_two.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert [file.name for file in list_files("dotted_one")] == ["dotted_one.py", "dotted_two.py"]
    assert [file.name for file in list_files("yaml")] == ["__init__.py"]
    assert list_files("no_such_module_of_mine") == []


def test_threads_that_draw_initial_weights_do_not_share_their_draws() -> None:
    def draw(seed: int) -> list[Tensor]:
        with seed_initial_weights(seed, "weights"):
            return [torch.randn(50) for _ in range(50)]

    expected, found = [draw(seed) for seed in range(4)], dict[int, list[Tensor]]()
    before = torch.random.get_rng_state()
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: draw(seed)})) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, own in enumerate(expected):
        assert all(map(torch.equal, own, found[seed]))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_initial_weights_leave_the_generators_of_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that seeds torch and then trains goes on with the random numbers that it would have had."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    with seed_initial_weights(0, "weights"):
        torch.randn(1)
    assert seeded == []


def test_threads_that_load_models_take_turns(tmp_path: Path) -> None:
    """Loading replaces methods of transformers' classes for all threads; two at a time would leave them replaced."""
    for part in build_model("new:tiny", ["1 + 1 = 2"], 0):
        part.save_pretrained(tmp_path)
    tie, failed = PreTrainedModel.tie_weights, list[Exception]()

    def load() -> None:
        try:
            for _ in range(5):
                load_model(ModelSettings(name=str(tmp_path), device="cpu"))
        except Exception as error:  # noqa: BLE001 -- of a thread; asserted below
            failed.append(error)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert PreTrainedModel.tie_weights is tie
