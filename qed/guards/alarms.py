"""Alarms: problems that a run's metrics reveal but that do not stop it, each reported once.

Every condition is a function of the metrics so far that returns the message of its alarm, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from qed.guards.history import WINDOW, History, Row

# Consecutive steps in which all groups have equal rewards: with 16 groups one such step may be chance, three are not.
PATIENCE = 3
# Nats per token. Low entropy is normal if nearly all answers are right; otherwise the policy has stopped exploring.
# The quickstart ends at .05.
ENTROPY_FLOOR, ENTROPY_SHARE, MOSTLY_RIGHT = 0.02, 0.1, 0.9
# Longer answers are fine while accuracy rises: the alarm is for answers that are truncated without being better.
LENGTH_FACTOR, CUT_OFF, HELPS = 2.0, 0.25, 0.02
# A KL of .1 nats per token is ten times the usual value of runs with a reference.
SPIKE_FACTOR, KL_SPIKE = 10.0, 0.1
# A token has become exp(5) = 150 times more or less likely in one step; nearly all updates are clipped then.
RATIO_SPIKE = 5.0
# With the same weights, two bfloat16 implementations differ by about .01 in log-probs and by less than .001 in KL.
MISMATCH_LOGP, MISMATCH_KL = 0.2, 0.05
# While a server has the learner's weights, its log-prob gap is only due to rounding, 0.001 to 0.02 nats.
GAP_NOW, GAP_FACTOR = 0.02, 3.0
# A rise of the mean reward between two windows of WINDOW steps, while held-out accuracy does not rise.
REWARD_RISE, HELD_OUT_RISE, SOLVED = 0.1, 0.01, 0.95
# While a format is being learned, some wrong answers earn more than right ones; a fifth of the pairs is harmful.
INVERTED = 0.2
# Answers without a verdict are left out of training: a few are noise, a tenth is a bias.
UNGRADED_NOW, UNGRADED_LATELY = 0.1, 0.02
FORMAT_BEFORE, FORMAT_AFTER, ANSWERS_RISE, ANSWERS_GOOD = 0.5, 0.9, 0.05, 0.5


@dataclass(frozen=True)
class Alarm:
    """The name of a condition, and the alarm message (`told`)."""

    name: str
    told: str


Condition = Callable[[History], str | None]


def _are_all(history: History, key: str, value: float) -> bool:
    """Return whether a metric had this value in each of the last PATIENCE steps."""
    values = history.recent(key, PATIENCE)
    return bool(values) and all(recent == value for recent in values)


def _has_no_signal(history: History) -> bool:
    """Return whether all groups of the last PATIENCE steps had equal rewards."""
    return _are_all(history, "groups/zero_std", 1)


def all_truncated(history: History) -> str | None:
    """Check whether every answer is truncated, so that all answers of a group have the same reward."""
    if not (_has_no_signal(history) and _are_all(history, "length/truncated_frac", 1)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was cut off at sampling.max_tokens, and all answers to a problem "
        "earned the same, so there is nothing to learn from. Raise sampling.max_tokens, or teach the model to end its "
        "answers first (SFT)."
    )


def all_empty(history: History) -> str | None:
    """Check whether every answer consists of the end token alone."""
    if not (_has_no_signal(history) and _are_all(history, "length/mean", 1)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was a single token: the model stops immediately. Does the prompt "
        "end in the middle of a turn, or does the tokenizer's chat template close it? qed debug-generations shows the "
        "prompt and the answers."
    )


def all_unreadable(history: History) -> str | None:
    """Check whether no answer has the format that the reward reads."""
    if all_truncated(history) or all_empty(history):
        return None
    if not (_has_no_signal(history) and _are_all(history, "format", 0) and _are_all(history, "accuracy", 0)):
        return None
    return (
        f"No answer of the last {PATIENCE} steps had the format that the reward reads, and all earned the same, so "
        "there is nothing to learn from. Teach the format first (SFT), or use a --prompt whose format this model knows."
    )


def all_wrong(history: History) -> str | None:
    """Check whether every answer is wrong."""
    if all_truncated(history) or all_empty(history) or all_unreadable(history):
        return None
    if not (_has_no_signal(history) and _are_all(history, "accuracy", 0)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was wrong and earned the same, so there is nothing to learn from. "
        "Use easier problems, more answers per problem (sampling.group_size), or a longer phase of SFT; if the data "
        "has written answers, qed luffy learns from them."
    )


def all_right(history: History) -> str | None:
    """Check whether every answer is right."""
    if not (_has_no_signal(history) and _are_all(history, "accuracy", 1)):
        return None
    return (
        f"Every answer of the last {PATIENCE} steps was right and earned the same: the problems are solved, and there "
        "is nothing left to learn from them. Use harder ones."
    )


def all_equal(history: History) -> str | None:
    """Check whether all answers to a problem have the same reward although some are right and some wrong."""
    right = history.recent("accuracy", PATIENCE)
    mixed = any(0 < share < 1 for share in right)
    if not (_has_no_signal(history) and _are_all(history, "train/live_rows", 0) and mixed):
        return None
    return (
        f"In the last {PATIENCE} steps all answers to a problem earned the same, and no step had a gradient, though "
        "some were right and some wrong. Does the reward tell them apart? A larger sampling.group_size finds more "
        "groups that hold both."
    )


def entropy_collapse(history: History) -> str | None:
    """Check whether the entropy has collapsed while many answers are wrong."""
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
    """Check whether answers grow until they are truncated, without becoming better."""
    length, truncated = history.means("length/mean"), history.means("length/truncated_frac")
    right = history.means("accuracy")
    if length is None or truncated is None or right is None:
        return None
    grown = length[1] > LENGTH_FACTOR * length[0] and truncated[1] >= max(CUT_OFF, truncated[0] + CUT_OFF / 2)
    if not grown or right[1] > right[0] + HELPS:
        return None
    return (
        f"Answers have grown from {length[0]:.0f} to {length[1]:.0f} tokens, {truncated[1]:.0%} are cut off, and no "
        "more are right than before. A reward for length (--reward auto,overlong), algorithm.average=constant, or a "
        "smaller learner.lr may help."
    )


def _find_spike(history: History, key: str, threshold: float) -> tuple[float, float] | None:
    """Return the last value of a metric and the median of earlier values, if the last one is a spike."""
    values = history.recent(key, WINDOW + 1)
    if not values:
        return None
    usual, now = median(values[:-1]), values[-1]
    return (now, usual) if now > threshold and now > SPIKE_FACTOR * usual else None


def kl_spike(history: History) -> str | None:
    """Check whether the KL to the reference or to the policy that sampled has jumped."""
    for key, other in (("kl/ref", "the reference"), ("kl/old", "the policy that sampled")):
        if spike := _find_spike(history, key, KL_SPIKE):
            return (
                f"The KL to {other} has jumped to {spike[0]:.3g} nats per token, from {spike[1]:.3g} in the steps "
                "before. A smaller learner.lr, a smaller learner.clip_norm or fewer learner.passes keep steps small."
            )
    return None


def ratio_spike(history: History) -> str | None:
    """Check whether the probability of a token has changed far too much within a step."""
    spike = _find_spike(history, "ratio/log_max", RATIO_SPIKE)
    if spike is None:
        return None
    return (
        f"Within one step the probability of a token has changed by a factor of exp({spike[0]:.1f}); "
        f"exp({spike[1]:.2g}) was usual. A smaller learner.lr, fewer learner.passes or "
        "algorithm.ratio_clamp keep updates small."
    )


def mismatch(history: History) -> str | None:
    """Check whether sampler and learner compute different probabilities."""
    logps, kl = history.recent("mismatch/logp", PATIENCE), history.recent("mismatch/kl", PATIENCE)
    if not ((logps and min(logps) > MISMATCH_LOGP) or (kl and min(kl) > MISMATCH_KL)):
        return None
    return (
        f"The sampler's and the learner's log-probs of the same tokens differ by {fmean(logps or [0]):.2g} nats on "
        f"average (KL {fmean(kl or [0]):.2g}) over the last {PATIENCE} steps, so the policy is trained on answers of "
        "another one. Use --sampling.sampler hf or model.precision=float32 to find out which is wrong, or "
        "algorithm.correction to correct for it; many learner.passes and a rollout.max_staleness raise this figure "
        "too."
    )


def growing_gap(history: History) -> str | None:
    """Check whether a sampler's log-probs drift away from the learner's."""
    gap = history.means("sampler/logp_gap_mean")
    if gap is None or gap[1] < GAP_NOW or gap[1] < GAP_FACTOR * gap[0]:
        return None
    return (
        f"The sampler's log-probs drift away from the learner's: by {gap[0]:.2g} nats per token in the first steps, by "
        f"{gap[1]:.2g} in the last ones (sampler/logp_gap_mean). Its weights or its precision no longer match the "
        "learner's. Restart the servers and resume; --sampling.sampler native shows whether they are the cause, and "
        "model.precision=float32 whether rounding is."
    )


def reward_hacking(history: History) -> str | None:
    """Check whether the reward rises in training while held-out accuracy does not."""
    reward, held_out = history.means("reward/mean"), history.list_held_out()
    if reward is None or len(held_out) < PATIENCE or reward[1] < reward[0] + REWARD_RISE:
        return None
    before, *_, second, last = held_out
    if before >= SOLVED or max(second, last) > before + HELD_OUT_RISE:
        return None
    return (
        f"The reward has risen from {reward[0]:.3f} to {reward[1]:.3f}, but held-out greedy accuracy went from "
        f"{before:.1%} to {last:.1%}: the policy may exploit the reward or memorize the training problems. Read the "
        "answers with the highest reward (rollouts/), and look for wrong ones that are rewarded."
    )


def wrong_earns_more(history: History) -> str | None:
    """Check whether wrong answers earn more than right ones to the same problem."""
    shares = history.recent("reward/inverted", WINDOW)
    if not shares or fmean(shares) < INVERTED:
        return None
    return (
        f"In {fmean(shares):.0%} of the pairs of a right and a wrong answer to the same problem, over the last "
        f"{WINDOW} steps, the wrong one earned more: the policy is taught to answer wrong. Compare such pairs in "
        "rollouts/; the option robust of a reward closes its known loopholes, and smaller weights for reward parts "
        "other than correctness (data.reward) help."
    )


def ungraded(history: History) -> str | None:
    """Check whether many answers cannot be graded."""
    share = _compute_share(history, "grading/timeouts", "grading/errors")
    if share is None:
        return None
    late, failed = (history.recent(key, 1)[0] for key in ("grading/timeouts", "grading/errors"))
    return (
        f"{share:.1%} of the answers could not be graded ({late:.0f} timed out and "
        f"{failed:.0f} failed in this step); they are excluded from training, right or wrong. See reason in rollouts/ "
        "and rewards.log; data.reward_seconds gives more time."
    )


def without_reward(history: History) -> str | None:
    """Check whether no reward function applies to many answers."""
    share = _compute_share(history, "grading/without_reward")
    if share is None:
        return None
    return (
        f"{share:.1%} of the answers have no reward: every reward function returned None or NaN for them. They are "
        "excluded from training and from their group's statistics; in rollouts/ their reward is null."
    )


def _compute_share(history: History, *keys: str) -> float | None:
    """Return the share of answers in these counts if it is large in this step or over the last WINDOW steps."""
    now, lately = history.shares_of_answers(*keys)
    return max(now, lately) if now >= UNGRADED_NOW or lately >= UNGRADED_LATELY else None


def format_only(history: History) -> str | None:
    """Check whether the policy has learned the format but not to answer correctly."""
    form, right = history.means("format"), history.means("accuracy")
    if form is None or right is None or form[0] >= FORMAT_BEFORE or form[1] < FORMAT_AFTER:
        return None
    if right[1] - right[0] >= ANSWERS_RISE or right[1] >= ANSWERS_GOOD:
        return None
    return (
        f"Answers in the right format went from {form[0]:.0%} to {form[1]:.0%}, but right ones only from "
        f"{right[0]:.0%} to {right[1]:.0%}: only the format is learned. Give the format a smaller weight in "
        "data.reward, or use problems that the model can sometimes solve."
    )


def blind_critic(history: History) -> str | None:
    """Check whether the critic's values explain nothing about the outcomes of answers."""
    explained = history.recent("critic/explained_variance", WINDOW)
    if not explained or max(explained) > 0:
        return None
    return (
        f"For {WINDOW} steps the critic's values have not predicted the outcomes (critic/explained_variance is "
        f"{fmean(explained):.2g} on average, and never above 0), so they only add noise to the advantages. Train "
        "the critic alone first (algorithm.critic.warmup_steps), give it another algorithm.critic.lr or more "
        "algorithm.critic.passes, or use an algorithm without a critic, such as qed grpo."
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
    growing_gap,
    reward_hacking,
    wrong_earns_more,
    ungraded,
    without_reward,
    format_only,
    blind_critic,
)


class Alarms:
    """Checks the conditions of a phase and reports each once."""

    def __init__(self) -> None:
        self.history = History()
        self.reported: set[str] = set()

    def check(self, row: Row) -> list[Alarm]:
        """Add a row of metrics, and return the alarms that are raised for the first time."""
        self.history.add(row)
        alarms = []
        for condition in CONDITIONS:
            if condition.__name__ not in self.reported and (message := condition(self.history)):
                self.reported.add(condition.__name__)
                alarms.append(Alarm(condition.__name__, message))
        return alarms
