/** Settings of a run's name and location; two runs that differ only in them are still the same training. */
const NAMING = new Set(["run.seed", "run.out", "run.name", "run.group", "run.tags", "run.project", "run.entity", "run.trackers", "run.threads"]);

/**
 * Group runs that differ only in their seed.
 *
 * `runs` are `{key, settings: [{key, value}]}`; returns `[{label, members: [key], seeds}]` in the order of the runs. A run
 * without settings forms its own group, because its training is unknown.
 */
export function groupSeeds(runs, { alone = false } = {}) {
  const groups = new Map();
  for (const { key, settings } of runs) {
    const kept = (settings ?? []).filter((setting) => !NAMING.has(setting.key)).map((setting) => [setting.key, setting.value]);
    const name = alone || kept.length === 0 ? `run ${key}` : JSON.stringify(kept.sort(([a], [b]) => (a < b ? -1 : 1)));
    if (!groups.has(name)) groups.set(name, { label: key, members: [], seeds: [] });
    const group = groups.get(name);
    group.members.push(key);
    group.seeds.push((settings ?? []).find((setting) => setting.key === "run.seed")?.value ?? null);
  }
  for (const group of groups.values()) {
    if (group.members.length > 1) group.label = `${group.members[0]} and ${group.members.length - 1} more ${group.members.length === 2 ? "seed" : "seeds"}`;
  }
  return [...groups.values()];
}

/**
 * Merge curves into their mean with a band from the lowest to the highest.
 *
 * `curves` are lists of [x, y]; returns `{points, band}`. A point is the mean of the curves that have a value there.
 */
export function mergeCurves(curves) {
  const values = new Map();
  for (const curve of curves) {
    for (const [x, y] of curve) {
      if (y == null) continue;
      if (!values.has(x)) values.set(x, []);
      values.get(x).push(y);
    }
  }
  const places = [...values.keys()].sort((a, b) => a - b);
  const points = places.map((x) => [x, values.get(x).reduce((sum, y) => sum + y, 0) / values.get(x).length]);
  const band = places.map((x) => [x, Math.min(...values.get(x)), Math.max(...values.get(x))]);
  return { points, band };
}

/** Replace each value by the mean of the `window` values around it; at the ends the window is cut. */
export function smoothCurve(points, window) {
  if (window < 2) return points;
  const known = points.filter(([, y]) => y != null);
  const sums = [0];
  for (const [, y] of known) sums.push(sums.at(-1) + y);
  const half = Math.floor(window / 2);
  return known.map(([x], at) => {
    const [low, high] = [Math.max(0, at - half), Math.min(known.length, at + half + 1)];
    return [x, (sums[high] - sums[low]) / (high - low)];
  });
}

/** List the settings that are not the same in all runs: `[{key, values}]`, null if a run lacks one. */
export function listDifferences(runs) {
  const maps = runs.map(({ settings }) => new Map((settings ?? []).map(({ key, value }) => [key, value])));
  const keys = new Set(maps.flatMap((map) => [...map.keys()]));
  return [...keys]
    .map((key) => ({ key, values: maps.map((map) => map.get(key) ?? null) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}
