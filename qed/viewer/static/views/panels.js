/* The charts of a run: the curated ones, with several lines each, then one for each other metric. */

const PANELS = [
  ["Reward", ["reward/mean"]],
  ["Reward model and the grader's verdict", ["reward/model/mean", "accuracy"], { needs: "reward/model/mean" }],
  ["Right answers in training", ["accuracy"], { percent: true }],
  ["Answers in format", ["format"], { percent: true }],
  ["Answer length in tokens", ["length/mean", "length/right_mean", "length/wrong_mean"]],
  ["Truncated answers", ["length/truncated_frac"], { percent: true }],
  ["Groups without signal", ["groups/zero_std", "groups/all_right", "groups/all_wrong"], { percent: true }],
  ["Pass rates of the curriculum", ["curriculum/pass_rate", "curriculum/spread", "curriculum/tried"], { percent: true }],
  ["Entropy of the policy, nats per token", ["policy/entropy"]],
  ["Loss", ["train/loss"]],
  ["KL divergence, nats per token", ["kl/ref", "kl/old"]],
  ["Sampler–learner mismatch, nats per token", ["mismatch/kl"]],
  ["Clipped tokens", ["clip/low", "clip/high"], { percent: true }],
  ["Critic: values and returns", ["critic/values", "critic/returns"]],
  ["Critic: explained variance of the returns", ["critic/explained_variance"]],
  ["Gradient norm, before clipping", ["optim/grad_norm"]],
  ["Learning rate", ["optim/lr"]],
  ["Time of a step, seconds", ["time/step", "time/sample", "time/grade", "time/score", "time/update", "time/sync", "time/wait"]],
  ["Tokens per second", ["perf/tokens_per_s"]],
];
const REWARD = /^reward\/(.+)\/mean$/;

/**
 * List the charts of metrics: `{title, names, percent}`. With `pattern`, a regular expression, one for each metric that
 * matches; an invalid one matches as a text.
 */
export function listPanels(values, pattern) {
  const known = Object.keys(values).filter((name) => values[name].some((value) => Number.isFinite(value)));
  if (pattern) return known.filter(buildMatcher(pattern)).sort().map((name) => ({ title: name, names: [name] }));
  const panels = PANELS.map(([title, names, more]) => ({ title, names: names.filter((name) => known.includes(name)), ...more }));
  const parts = known.filter((name) => REWARD.test(name));
  if (parts.length) panels.splice(1, 0, { title: "Parts of the reward", names: parts.slice(0, 8) });
  return panels.filter((panel) => panel.names.length && (!panel.needs || known.includes(panel.needs)));
}

/** Build a function that says whether a name matches a regular expression, or contains it as a text if it is invalid. */
export function buildMatcher(pattern) {
  try {
    const expression = new RegExp(pattern, "i");
    return (name) => expression.test(name);
  } catch {
    return (name) => name.toLowerCase().includes(pattern.toLowerCase());
  }
}

/**
 * Smooth a line: an exponential moving average without a bias at its beginning; `weight` 0 leaves it unchanged. It restarts
 * where `phases`, the phase of each point, changes.
 */
export function smooth(points, weight, phases) {
  if (!weight) return points;
  let sum = 0;
  let norm = 0;
  return points.map(([x, y], at) => {
    if (at && phases[at] !== phases[at - 1]) sum = norm = 0;
    if (!Number.isFinite(y)) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return [x, sum / norm];
  });
}
