"""The texts of the page that describe the setup; the results come only from the summaries."""

from __future__ import annotations

INTRODUCTION = """
# The laboratory

Which way of learning from demonstrations or from a teacher is worth its compute? All methods run here on one loop,
with the same averages, problems, seeds and budget:

<!-- not run: about an hour on 4 cores -->
```bash
python benchmarks/laboratory.py                  # all methods and tasks; a study that was cut goes on
python benchmarks/laboratory.py --quick          # three seeds, one task, into runs/laboratory/quick
python benchmarks/laboratory.py --page           # this page again, from the committed summaries
```

![Held-out accuracy of each method on each task]({figure})

Each dot is a seed, each bar a mean with its 95 % interval over seeds; the dashed line is the start, the grey one
the best control.

**The setting.** A model of 0.6 M parameters (`new:tiny`) and three tasks made of the two-step word problems of
`arithmetic`. Each run has {budget} billion multiply–adds, counted by its own metrics (`perf/flops`): sampling, and
forward and backward passes of the policy, of teachers and of references. Training the start and the teacher, and
evaluations, are not counted. Pilot runs set the number of steps of each method, task and rate. The first final run
is within 5 % of the budget if whole steps allow it. A run more than 10 % off is repeated with another number of
steps, because on `withheld` the step at which a policy begins to answer at length depends on the seed. The tables
have what the final runs needed. An online step has {problems} problems with {answers} answers of at most {tokens}
tokens, an SFT step 32 demonstrations. The learning rate, one of {rates} with linear decay, is the best on 300
validation problems with one seed; {seeds} other seeds make the final runs. Everything else is each method's default.
*SFT → GRPO* is `qed pipeline` with a quarter of the compute for SFT. The longest final run took {longest} CPU
seconds.

**The measure** is the share of right answers sampled at temperature 1, {samples} for each of {test} held-out
problems. Differences are tested on the same problems with seeds and problems both as random
([evaluate.md](evaluate.md)), each guidance and distillation method against the best control (the one with the
highest held-out mean, which is strict), Holm-adjusted over the methods of a task. *The other task* is what the
start could do before; *entropy* is minus the mean log-prob of sampled tokens, in nats. The controls are SFT, GRPO,
SFT → GRPO, RL + SFT loss and LUFFY. Methods with a teacher know more than the others: a model that was trained on
3,488 further demonstrations. The teacher of OPSD is the policy itself with the demonstration in its prompt: a policy
that was never trained on such prompts, as here, need not know what to do with them.
"""

TASK_TEXTS = {
    "withheld": """
## `withheld`: a start that earns nothing

The start answers every question with "unknown", and solves about half of them if the question ends in a cue (the
other task). {shown} of {train} problems have a demonstration.
""",
    "little": """
## `little`: a start that earns a little

The start has seen few demonstrations with steps and mostly guesses. {shown} of {train} problems have a
demonstration. The other task is problems with one step, in other words, which the start can do.
""",
    "foreign": """
## `foreign`: demonstrations in another style, some of them wrong inside

The start, the problems and the other task of `little`. All {train} problems have a demonstration, written in a way
that the start has never seen, and {noise} of the demonstrations have a wrong intermediate step before the right
answer, so that checking the answer finds nothing. The teacher was trained on such demonstrations. GRPO reads none,
so its runs are those of `little`.
""",
}

PAPER = """
## What it says about arXiv 2604.23747

The paper ("SFT-then-RL outperforms mixed-policy methods") finds that published SFT baselines were weakened by two
bugs, one of gradient accumulation under offload and one of averaging over micro-batches, and that a correct SFT
followed by RL beats the mixed-policy methods. Neither bug can be here: losses are sums with weights computed over
the whole step, which laws test. SFT → GRPO against each method that mixes demonstrations into RL, Holm-adjusted
over them:
"""

LIMITS = """
## What is not established

- Anything about large models. The model is tiny, the problems are generated, and demonstrations differ from the
  model's answers less than a strong model's would.
- Other starts, problem sets and teachers: each task has one of each, and the intervals are over training seeds and
  held-out problems only.
- Other budgets, and other settings than the methods' defaults. One rate of four was chosen with one seed, so a
  method's best may lie between them.
- Which part of a method its difference comes from.
"""
