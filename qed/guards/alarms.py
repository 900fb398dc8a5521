"""Alarms: what goes wrong in a run without ending it, seen in its metrics and said once, in plain language.

Every condition is a function of the metrics so far. It answers with what is to be said, or with nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from qed.guards.history import WINDOW, History, Row

# Steps in a row in which the groups must be equal: with 16 groups one such step may be chance, three are not.
PATIENCE = 3
# Nats per token. A policy that is right nearly always may be as sure of itself; one that is not has stopped exploring.
# The quickstart ends at .05.
ENTROPY_FLOOR, ENTROPY_SHARE, MOSTLY_RIGHT = 0.02, 0.1, 0.9
# Longer answers are no mistake while they help: the alarm is for answers cut off in their stead.
LENGTH_FACTOR, CUT_OFF, HELPS = 2.0, 0.25, 0.02
# A KL of .1 nats per token is ten times what runs with a reference usually keep to.
SPIKE_FACTOR, KL_SPIKE = 10.0, 0.1
# A token that has become exp(5) = 150 times as likely or unlikely in one step; clipping cuts nearly everything then.
RATIO_SPIKE = 5.0
# Of the same weights, by two implementations in bfloat16, log-probs differ by about .01 and the KL is below .001.
MISMATCH_LOGP, MISMATCH_KL = 0.2, 0.05
# A rise of the reward that WINDOW steps on either side show clearly, while held-out accuracy stays where it was.
REWARD_RISE, HELD_OUT_RISE, SOLVED = 0.1, 0.01, 0.95
# Answers without a verdict earn nothing, which teaches the policy to avoid them: a few are noise, a tenth is a bias.
UNGRADED_NOW, UNGRADED_LATELY = 0.1, 0.02
FORMAT_BEFORE, FORMAT_AFTER, ANSWERS_RISE, ANSWERS_GOOD = 0.5, 0.9, 0.05, 0.5


@dataclass(frozen=True)
class Alarm:
    """A condition's name, and what is said of it."""

    name: str
    told: str


Condition = Callable[[History], str | None]


def _are_all(history: History, key: str, value: float) -> bool:
    found = history.recent(key, PATIENCE)
    return bool(found) and all(one == value for one in found)


def _equal(history: History) -> bool:
    return _are_all(history, "groups/zero_std", 1)


def all_truncated(history: History) -> str | None:
    """Every answer is cut off, and so all of a group earn the same."""
    if not (_equal(history) and _are_all(history, "length/truncated_frac", 1)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was cut off at sampling.max_tokens, and all answers to a problem "
        "earned the same, so there is nothing to learn from. Raise sampling.max_tokens, or teach the model to end its "
        "answers first (SFT)."
    )


def all_empty(history: History) -> str | None:
    """Every answer is its end token alone."""
    if not (_equal(history) and _are_all(history, "length/mean", 1)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was a single token, as of a model that ends at once. Does the "
        "prompt end in the middle of a turn, or does the tokenizer's chat template close it? qed debug-generations "
        "shows the prompt and the answers."
    )


def all_unreadable(history: History) -> str | None:
    """No answer has the form that the reward reads."""
    if all_truncated(history) or all_empty(history):
        return None
    if not (_equal(history) and _are_all(history, "format", 0) and _are_all(history, "accuracy", 0)):
        return None
    return (
        f"No answer of the last {PATIENCE} steps had the form that the reward reads, and all earned the same, so there "
        "is nothing to learn from. Teach the form first (SFT), or take a --prompt whose form this model knows."
    )


def all_wrong(history: History) -> str | None:
    """Every answer is wrong."""
    if all_truncated(history) or all_empty(history) or all_unreadable(history):
        return None
    if not (_equal(history) and _are_all(history, "accuracy", 0)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was wrong and earned the same, so there is nothing to learn from. "
        "Take easier problems, more answers a problem (sampling.group_size), or a longer phase of SFT; with written "
        "answers, qed luffy learns from those."
    )


def all_right(history: History) -> str | None:
    """Every answer is right."""
    if not (_equal(history) and _are_all(history, "accuracy", 1)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was right and earned the same: the problems are solved, and there "
        "is nothing left to learn from them. Take harder ones."
    )


def all_equal(history: History) -> str | None:
    """All answers to a problem earn the same, some right and some wrong."""
    right = history.recent("accuracy", PATIENCE)
    if not (_equal(history) and _are_all(history, "train/live_rows", 0) and any(0 < share < 1 for share in right)):
        return None
    return (
        f"In the last {PATIENCE} steps all answers to a problem earned the same, and no step had a gradient, though "
        "some were right and some wrong. Does the reward tell them apart? A larger sampling.group_size finds more "
        "groups that hold both."
    )


def entropy_collapse(history: History) -> str | None:
    """The policy has become sure of answers that are not right."""
    entropy, right = history.means("policy/entropy"), history.recent("accuracy", WINDOW)
    if entropy is None or not right or fmean(right) >= MOSTLY_RIGHT:
        return None
    before, now = entropy
    if now >= min(ENTROPY_FLOOR, ENTROPY_SHARE * before):
        return None
    return (
        f"The policy's entropy has fallen from {before:.3f} to {now:.4f} nats per token while {fmean(right):.0%} of "
        "the answers are right: it hardly explores any more. Set algorithm.entropy, raise algorithm.clip_high, or "
        "lower learner.lr."
    )


def length_runaway(history: History) -> str | None:
    """Answers grow until they are cut off, and are no better for it."""
    length, cut = history.means("length/mean"), history.means("length/truncated_frac")
    right = history.means("accuracy")
    if length is None or cut is None or right is None:
        return None
    grown = length[1] > LENGTH_FACTOR * length[0] and cut[1] >= max(CUT_OFF, cut[0] + CUT_OFF / 2)
    if not grown or right[1] > right[0] + HELPS:
        return None
    return (
        f"Answers have grown from {length[0]:.0f} to {length[1]:.0f} tokens, {cut[1]:.0%} are cut off, and no more are "
        "right than before. A reward for length (--reward auto,overlong), algorithm.average=constant, or a smaller "
        "learner.lr may help."
    )


def _spike(history: History, key: str, least: float) -> tuple[float, float] | None:
    """The last value of a measure and the usual one, where it stands out."""
    found = history.recent(key, WINDOW + 1)
    if not found:
        return None
    usual, now = median(found[:-1]), found[-1]
    return (now, usual) if now > least and now > SPIKE_FACTOR * usual else None


def kl_spike(history: History) -> str | None:
    """The policy leaves its reference, or the policy that sampled, at a bound."""
    for key, which in (("kl/ref", "the reference"), ("kl/old", "the policy that sampled")):
        if found := _spike(history, key, KL_SPIKE):
            return (
                f"The KL to {which} has jumped to {found[0]:.3g} nats per token, from {found[1]:.3g} in the steps "
                "before. A smaller learner.lr, a smaller learner.clip_norm or fewer learner.passes keep steps small."
            )
    return None


def ratio_spike(history: History) -> str | None:
    """Some token's probability changes out of all proportion within a step."""
    found = _spike(history, "ratio/log_max", RATIO_SPIKE)
    if found is None:
        return None
    return (
        f"Within one step the probability of a token has changed by a factor of exp({found[0]:.1f}); "
        f"exp({found[1]:.2g}) was usual. A smaller learner.lr, fewer learner.passes or "
        "algorithm.ratio_clamp keep updates small."
    )


def mismatch(history: History) -> str | None:
    """Sampler and learner do not compute the same probabilities."""
    logps, kl = history.recent("mismatch/logp", PATIENCE), history.recent("mismatch/kl", PATIENCE)
    if not ((logps and min(logps) > MISMATCH_LOGP) or (kl and min(kl) > MISMATCH_KL)):
        return None
    return (
        f"The sampler's and the learner's log-probs of the same tokens differ by {fmean(logps or [0]):.2g} nats in the "
        f"mean (KL {fmean(kl or [0]):.2g}) over the last {PATIENCE} steps, so the policy is trained on answers of "
        "another one. Take --sampling.sampler hf or model.precision=float32 to find out which is wrong, or "
        "algorithm.correction to correct for it; many learner.passes show in this figure too."
    )


def reward_hacking(history: History) -> str | None:
    """The reward rises in training, and held-out accuracy does not."""
    reward = history.means("reward/mean")
    if reward is None or len(history.held_out) < PATIENCE or reward[1] < reward[0] + REWARD_RISE:
        return None
    before, *_, second, last = history.held_out
    if before >= SOLVED or max(second, last) > before + HELD_OUT_RISE:
        return None
    return (
        f"The reward has risen from {reward[0]:.3f} to {reward[1]:.3f}, but held-out greedy accuracy went from "
        f"{before:.1%} to {last:.1%}: the policy may be learning to please the reward, or its training problems by "
        "heart. Read the answers that earn most (rollouts/), and look for what a wrong one is paid for."
    )


def ungraded(history: History) -> str | None:
    """Many answers get no verdict."""
    share = _share(history, "grading/timeouts", "grading/errors")
    if share is None:
        return None
    late, failed = (history.recent(key, 1)[0] for key in ("grading/timeouts", "grading/errors"))
    return (
        f"{share:.1%} of the answers could not be graded ({late:.0f} ran out of time and "
        f"{failed:.0f} failed in this step); they earn nothing, whatever they say. See reason in rollouts/ and "
        "rewards.log; data.reward_seconds gives more time."
    )


def without_reward(history: History) -> str | None:
    """No reward function applies to many answers."""
    share = _share(history, "grading/without_reward")
    if share is None:
        return None
    return (
        f"{share:.1%} of the answers have no reward: every reward function returned None or NaN for them. They train "
        "nothing and stay out of their group's statistics; in rollouts/ their reward is null."
    )


def _share(history: History, *keys: str) -> float | None:
    """The share of answers that these counts add up to, where it is large in this step or in the last WINDOW steps."""
    now, lately = history.shares_of_answers(*keys)
    return max(now, lately) if now >= UNGRADED_NOW or lately >= UNGRADED_LATELY else None


def format_only(history: History) -> str | None:
    """The form has been learned, and the answers have not."""
    form, right = history.means("format"), history.means("accuracy")
    if form is None or right is None or form[0] >= FORMAT_BEFORE or form[1] < FORMAT_AFTER:
        return None
    if right[1] - right[0] >= ANSWERS_RISE or right[1] >= ANSWERS_GOOD:
        return None
    return (
        f"Answers in the right form went from {form[0]:.0%} to {form[1]:.0%}, but right ones only from "
        f"{right[0]:.0%} to {right[1]:.0%}: what is learned is the form alone. Give the form a smaller weight in "
        "data.reward, or take problems that the model can sometimes solve."
    )


CONDITIONS: tuple[Condition, ...] = (
    all_truncated,
    all_empty,
    all_unreadable,
    all_wrong,
    all_right,
    all_equal,
    entropy_collapse,
    length_runaway,
    kl_spike,
    ratio_spike,
    mismatch,
    reward_hacking,
    ungraded,
    without_reward,
    format_only,
)


class Alarms:
    """The conditions of a phase, each told once."""

    def __init__(self) -> None:
        self.history = History()
        self.told: set[str] = set()

    def check(self, row: Row) -> list[Alarm]:
        """Take in a row of metrics, and say what is wrong by now and was not before."""
        self.history.add(row)
        found = []
        for condition in CONDITIONS:
            if condition.__name__ not in self.told and (told := condition(self.history)):
                self.told.add(condition.__name__)
                found.append(Alarm(condition.__name__, told))
        return found
