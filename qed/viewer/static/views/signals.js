/** The meaning of each token signal, its centre, and which of its ends is highlighted. */
export const SIGNALS = {
  logp: { label: "log-prob", about: "log-prob under the sampler; a low one is surprising", end: "low" },
  entropy: { label: "entropy", about: "entropy of the policy's distribution before the step's update; high means undecided", end: "high" },
  ratio: { label: "ratio", about: "probability after the step's updates over the probability before; 1 means unchanged", centre: 1 },
  kl_ref: { label: "KL to reference", about: "estimated KL divergence of the policy from the reference at this token", end: "high" },
  mismatch: { label: "mismatch", about: "log-prob under the learner minus that under the sampler; 0 means agreement" },
  advantage: { label: "advantage", about: "how much better than expected this token is, as the update counts it" },
  value: { label: "value", about: "the reward that the critic expects for the answer, before this token", end: "low" },
  mask: { label: "mask", about: "which tokens the policy sampled and which the loss counts" },
};

/** Levels on each side of the colour scale. */
export const LEVELS = 4;

/** Return the display name of a signal. */
export function nameSignal(name) {
  return SIGNALS[name]?.label ?? name;
}

/** Whether the loss counts a token; true if no mask is recorded. */
export function isTrained(masks, index) {
  return masks?.loss?.[index] == null || masks.loss[index] === 1;
}

/** Whether the policy sampled a token; true if no mask is recorded. */
export function isSampled(masks, index) {
  return masks?.sampled?.[index] == null || masks.sampled[index] === 1;
}

/**
 * Build the colour scale of a signal from the server's quantiles: symmetric around its centre if it is signed.
 *
 * Returns {low, high, centre, signed, flip}; `flip` says that low values get the strong colour.
 */
export function buildScale(name, scale) {
  const about = SIGNALS[name] ?? {};
  const { low = 0, high = 1 } = scale ?? {};
  const signed = scale?.signed ?? about.end === undefined;
  if (!signed) return { low, high, signed, flip: about.end === "low" };
  const centre = about.centre ?? 0;
  const reach = Math.max(Math.abs(low - centre), Math.abs(high - centre)) || 1;
  return { low: centre - reach, high: centre + reach, centre, signed, flip: false };
}

/** Place a value on a scale: −LEVELS…LEVELS if it is signed, else 0…2·LEVELS; null without a value. */
export function findLevel(value, scale) {
  if (value == null) return null;
  if (scale.signed) return clamp(Math.round(((value - scale.centre) / (scale.high - scale.centre)) * LEVELS), LEVELS);
  const share = scale.high > scale.low ? (value - scale.low) / (scale.high - scale.low) : 0;
  return Math.max(0, clamp(Math.round((scale.flip ? 1 - share : share) * 2 * LEVELS), 2 * LEVELS));
}

/** Whether a value is beyond the ends of its scale. */
export function isBeyond(value, scale) {
  return value != null && (value < scale.low || value > scale.high);
}

/** List the classes of a token's colour. */
export function listClasses(value, scale) {
  const level = findLevel(value, scale);
  if (level === null) return "";
  return nameLevel(level, scale) + (isBeyond(value, scale) ? " beyond" : "");
}

/** List the steps of the legend from the low end to the high end: {classes, value}. */
export function listSteps(scale) {
  const count = 2 * LEVELS;
  return Array.from({ length: count + 1 }, (_, at) => {
    const level = scale.signed ? at - LEVELS : scale.flip ? count - at : at;
    return { classes: nameLevel(level, scale), value: scale.low + ((scale.high - scale.low) * at) / count };
  });
}

function nameLevel(level, scale) {
  const sign = scale.signed ? (level < 0 ? "n" : "p") : "s";
  return `heat ${sign}${Math.abs(level)}`;
}

/**
 * Order the positions of a signal from the most extreme on, without masked tokens and gaps.
 *
 * Signed signals are ordered by their distance from the centre, others by the highlighted end.
 */
export function rankExtremes(values, scale, masks) {
  const measure = (value) => {
    if (!scale.signed) return scale.flip ? -value : value;
    return Math.abs(scale.centre === 1 && value > 0 ? Math.log(value) : value - scale.centre);
  };
  return values
    .map((value, index) => ({ value, index }))
    .filter(({ value, index }) => value != null && isTrained(masks, index))
    .sort((a, b) => measure(b.value) - measure(a.value) || a.index - b.index)
    .map(({ index }) => index);
}

/** Set masked positions to null, so that their placeholders do not flatten the chart. */
export function hideMasked(values, masks) {
  return values.map((value, index) => (isTrained(masks, index) ? value : null));
}

/** Say what the masks contain for a token. */
export function describeMask(masks, index) {
  if (!isSampled(masks, index)) return isTrained(masks, index) ? "not sampled, in the loss" : "not sampled, not in the loss";
  return isTrained(masks, index) ? "sampled, in the loss" : "sampled, not in the loss";
}

function clamp(value, most) {
  return Math.max(-most, Math.min(most, value));
}
