import { lineChart, sharedCursor } from "../chart.js";
import { h, replace } from "../dom.js";
import { countWords } from "./figures.js";
import { groupSeeds, mergeCurves, smoothCurve } from "./seeds.js";
import { makeSelect } from "./texts.js";

const USUAL = "^(eval/|reward/mean$|length/mean$|policy/entropy$|train/loss$|kl/ref$)";
const MOST_CHARTS = 24;
const MOST_CURVES = 8; // as many colours as there are
const WINDOWS = [["0", "none"], ["5", "5 steps"], ["21", "21 steps"], ["101", "101 steps"]];

/**
 * Overlay the curves of several runs; runs that differ only in their seed become a mean with a band.
 *
 * Returns {element, show(runs)}: `runs` are `{key, settings, metrics}`. The state (`metric`, `smooth`, `seeds`) is in the URL.
 */
export function createCurves(context) {
  const { query } = context;
  const state = { context, runs: [], metric: query.metric ?? USUAL, smooth: query.smooth ?? "0", seeds: query.seeds !== "0" };
  const places = { charts: h("div", { class: "charts" }), note: h("div", {}), trouble: h("div", {}) };
  Object.assign(state, { places });
  const change = (changes, kept) => {
    Object.assign(state, changes);
    context.setQuery(kept);
    draw(state);
  };
  const field = h("input", {
    type: "search", value: state.metric, spellcheck: "false", autocapitalize: "off",
    on: { change: () => change({ metric: field.value || USUAL }, { metric: field.value && field.value !== USUAL ? field.value : null }) },
  });
  const box = h("input", {
    type: "checkbox", ...(state.seeds ? { checked: "" } : {}), on: { change: () => change({ seeds: box.checked }, { seeds: box.checked ? null : "0" }) },
  });
  const element = h("section", { class: "overlaid" }, h("h2", {}, "Curves"),
    h("div", { class: "tools" },
      h("label", { class: "choice search" }, h("span", {}, "Metrics (regular expression)"), field),
      makeSelect("Smoothing", WINDOWS, state.smooth, (smooth) => change({ smooth }, { smooth: smooth === "0" ? null : smooth })),
      h("label", { class: "check" }, box, "group runs that differ only in their seed")),
    places.trouble, places.charts, places.note);
  return {
    element,
    show: (runs) => {
      state.runs = runs;
      draw(state);
    },
  };
}

function draw(state) {
  const { places, runs } = state;
  const pattern = readPattern(state.metric);
  replace(places.trouble, pattern ? null : h("p", { class: "trouble", role: "alert" }, `'${state.metric}' is not a valid regular expression.`));
  if (!pattern) return;
  const names = listNames(runs).filter((name) => pattern.test(name));
  const groups = groupSeeds(runs, { alone: !state.seeds });
  const cursor = sharedCursor();
  const charts = names.slice(0, MOST_CHARTS).map((name) => drawMetric(state, name, groups.slice(0, MOST_CURVES), cursor)).filter(Boolean);
  replace(places.charts, charts);
  replace(places.note, charts.length ? h("p", { class: "note" }, describeCharts(groups, names)) : runs.length ? h("p", { class: "note" }, "No metric of these runs has this name.") : null);
}

function readPattern(text) {
  try {
    return new RegExp(text, "u");
  } catch {
    return null;
  }
}

function listNames(runs) {
  const names = new Set(runs.flatMap(({ metrics }) => [...Object.keys(metrics.evaluations ?? {}), ...Object.keys(metrics.values ?? {})]));
  return [...names].sort((a, b) => Number(b.startsWith("eval/")) - Number(a.startsWith("eval/")) || (a < b ? -1 : 1));
}

function drawMetric(state, name, groups, cursor) {
  const isEvaluation = name.startsWith("eval/");
  const series = groups.flatMap((group, colour) => {
    const members = state.runs.filter(({ key, metrics }) => group.members.includes(key) && (metrics.values?.[name] || metrics.evaluations?.[name]));
    if (members.length === 0) return [];
    const own = { label: group.label, colour, marks: isEvaluation };
    if (group.members.length === 1) return [{ ...own, ...readCurve(members[0].metrics, name, state.smooth) }];
    const { points, band } = mergeCurves(members.map(({ metrics }) => readCurve(metrics, name, state.smooth).points));
    return [{ ...own, points, band }];
  });
  if (!series.some(({ points }) => points.some(([, y]) => y != null))) return null;
  return lineChart({ title: name.replace(/^eval\//, "").replaceAll("/", isEvaluation ? ", " : "/"), series, percent: isEvaluation, cursor }).element;
}

function readCurve(metrics, name, smooth) {
  const evaluated = metrics.evaluations?.[name];
  if (evaluated) {
    const band = evaluated.filter(([, , lo, hi]) => lo != null && hi != null).map(([x, , lo, hi]) => [x, lo, hi]);
    return { points: evaluated.map(([x, y]) => [x, y]), band };
  }
  const points = metrics.steps.map((step, at) => [step, metrics.values[name][at]]).filter(([, y]) => y != null);
  return { points: smoothCurve(points, Number(smooth) || 0) };
}

function describeCharts(groups, names) {
  const shared = groups.filter(({ members }) => members.length > 1);
  return [
    shared.length ? "Lines of several seeds are means; their bands reach from the lowest to the highest seed. " : "",
    groups.some(({ members }) => members.length === 1) ? "Bands of a single run's evaluations are 95 % intervals. " : "",
    ...shared.map(({ label, members, seeds }) => `${label}: ${members.map((key, at) => (seeds[at] == null ? key : `${key} (seed ${seeds[at]})`)).join(", ")}. `),
    groups.length > MOST_CURVES ? `Only the first ${MOST_CURVES} of ${countWords(groups.length, "curve")} are drawn. ` : "",
    names.length > MOST_CHARTS ? `The first ${MOST_CHARTS} of ${countWords(names.length, "metric")} are drawn: narrow the expression to see others.` : "",
  ].join("");
}
