"""GRPO as a loop of one's own: collect answers, credit them, update the policy.

It ends with the same weights, bit for bit, as `qed grpo` with the same settings, where a step is a single update.
"""

import qed
from qed.algorithms.base import StepContext
from qed.data.splits import load_problems
from qed.models.load import pick_device
from qed.models.threads import set_threads
from qed.rollout.collector import RolloutCollector
from qed.rollout.grader import load_grader
from qed.rollout.policy import load_policy
from qed.rollout.stages import Stream, assign_advantages
from qed.training.learner import Learner


def train(settings):
    """Return the model after `learner.steps` steps."""
    set_threads(settings.run.threads, settings.run.matmul_precision)
    problems = load_problems(settings.data, settings.evaluation, settings.run.seed).problems
    policy = load_policy(settings, problems, pick_device(settings.model.device), None)
    sampler, algorithm, seed, length = (
        policy.sampler,
        settings.algorithm,
        settings.run.seed,
        settings.sampling.max_tokens,
    )
    temperature = settings.sampling.temperature
    learner = Learner(policy.model, algorithm, settings.learner, temperature=temperature, length=length)
    grader, stream = load_grader(settings.data, length), Stream(problems, seed, "problems 0")
    score = learner.compute_mean_scores
    collector = RolloutCollector(stream, sampler, policy.template, grader, settings.sampling, score)
    for step in range(1, settings.learner.steps + 1):
        collected = collector.collect(algorithm, StepContext(step, settings.learner.steps, seed))  # sample and grade
        assign_advantages(collected.groups, algorithm)  # credit
        rows = algorithm.rows(collected.groups)
        learner.score(rows, old=False)  # log-probs of the reference model, if the algorithm has one
        stats = learner.update(rows, step - 1)
        sampler.load(policy.model, version=step)
        reward = sum(rollout.reward for rollout in rows) / len(rows)
        print(f"step {step}: reward {reward:.3f}, loss {stats['train/loss']:.4f}")
    return policy.model


if __name__ == "__main__":
    start = qed.train("sft", "arithmetic-sft", steps=100, out="runs/start")
    train(qed.load_settings("arithmetic-rl", method="grpo", model=start.model, steps=20)).save_pretrained("runs/own")
