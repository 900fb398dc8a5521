import { get } from "../api.js";
import { lineChart, sharedCursor } from "../chart.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatDuration, formatNumber, formatPercent } from "../format.js";
import { go } from "../router.js";
import { listPanels, smooth } from "./panels.js";

const MARKED = new Set(["alarm", "failed", "interrupted", "resumed", "out_of_memory", "not_finite", "hung", "evaluation_missed", "server_restarted", "servers_lost"]);
const MOST_CHARTS = 200;

/** Show the curves of a run: charts with a shared cursor and zoom, and each stage's share of the time. */
export async function renderCurves(context, run) {
  const data = await get("metrics", { run: run.card.key }, context.signal);
  const view = {
    context, run, data, cursor: sharedCursor(), charts: [], zoom: readZoom(context.query.zoom), pattern: context.query.m ?? "",
    weight: Number(context.query.smooth ?? defaultWeight(data)), log: context.query.log === "1", observer: null,
    loaded: data.steps.length, // each stands for `stride` steps; later rows are single steps
  };
  view.place = h("div", { class: "charts" });
  view.reset = h("button", { type: "button", on: { click: () => setZoom(view, null) } }, "Whole run");
  view.count = h("span", { class: "facts", role: "status" });
  view.times = h("div", {}, buildTimes(view));
  const element = h("section", { class: "curves" }, buildBar(view), describeDamage(data.damaged), view.place,
    copyButtons({ name: "the metrics", json: () => view.data, rows: () => listRows(view) }), view.times);
  draw(view);
  const drawAll = () => view.charts.forEach((entry) => printChart(view, entry));
  window.addEventListener("beforeprint", drawAll);
  return {
    element,
    dispose: () => {
      window.removeEventListener("beforeprint", drawAll);
      view.observer?.disconnect();
    },
    keys: { "0": { about: "Show the whole run in the charts", run: () => setZoom(view, null) } },
    live: {
      after: data.steps[data.steps.length - 1],
      metrics: ({ rows }) => append(view, rows),
      events: ({ events }) => {
        run.events.push(...events);
        updateCharts(view);
      },
    },
  };
}

function describeDamage(lines) {
  if (!lines) return null;
  return h("p", { class: "trouble" }, `${lines === 1 ? "A line" : `${formatNumber(lines)} lines`} of metrics.jsonl cannot be read, and ${lines === 1 ? "is" : "are"} not in the curves.`);
}

function buildBar(view) {
  const search = h("input", {
    type: "search", placeholder: "regular expression", "aria-label": "Metrics by regular expression", value: view.pattern,
    on: { input: (event) => change(view, { pattern: event.target.value }) },
  });
  const showAll = () => {
    search.value = ".";
    change(view, { pattern: "." });
  };
  const slider = h("input", {
    type: "range", min: "0", max: "0.99", step: "0.01", value: String(view.weight), "aria-label": "Smoothing",
    on: { input: (event) => change(view, { weight: Number(event.target.value) }) },
  });
  const log = h("input", { type: "checkbox", checked: view.log, on: { change: (event) => change(view, { log: event.target.checked }) } });
  return h("div", { class: "bar" }, h("label", {}, "Metrics ", search),
    h("button", { type: "button", on: { click: showAll } }, "All metrics"), h("label", {}, "Smoothing ", slider), h("label", {}, log, " Log scale"), view.reset, view.count);
}

function change(view, changes) {
  Object.assign(view, changes);
  view.context.setQuery({ m: view.pattern, smooth: String(view.weight), log: view.log ? "1" : null });
  if ("pattern" in changes) draw(view);
  else updateCharts(view);
}

function setZoom(view, zoom) {
  view.zoom = zoom;
  view.context.setQuery({ zoom: zoom ? zoom.map((one) => Math.round(one)).join("-") : null });
  updateCharts(view);
}

function draw(view) {
  view.observer?.disconnect();
  const panels = listPanels(view.data.values, view.pattern);
  const shown = [...(view.pattern ? [] : listEvaluationPanels(view)), ...panels].slice(0, MOST_CHARTS);
  view.charts = [];
  // A chart is drawn once it comes near the visible part of the page, and redrawn only there.
  view.observer = new IntersectionObserver((entries) => entries.forEach((one) => seePlace(view, one)), { rootMargin: "400px" });
  const places = shown.map((panel) => {
    const place = h("div", { class: "chart-place" });
    view.charts.push({ panel, place, chart: null, isSeen: false, isOld: false });
    view.observer.observe(place);
    return place;
  });
  replace(view.place, places.length ? places : h("p", { class: "empty" }, view.pattern ? "No metric matches." : "The run has no metrics."));
  replace(view.count, view.pattern ? `${formatNumber(panels.length)} metrics` : "");
  view.reset.disabled = view.zoom === null;
}

function seePlace(view, { target, isIntersecting }) {
  const entry = view.charts.find((one) => one.place === target);
  if (!entry) return;
  entry.isSeen = isIntersecting;
  if (!isIntersecting) return;
  if (!entry.chart) fillPlace(view, entry);
  else if (entry.isOld) updateChart(view, entry);
}

function fillPlace(view, entry) {
  entry.chart = lineChart({
    title: entry.panel.title, percent: entry.panel.percent, cursor: view.cursor, phases: listPhases(view), events: listMarks(view),
    zoom: view.zoom, log: view.log && !entry.panel.percent, series: buildSeries(view, entry.panel),
    onZoom: (zoom) => setZoom(view, zoom), onPick: (step) => openStep(view, step, entry.panel),
  });
  replace(entry.place, entry.chart.element);
}

/** Draw a chart at once, visible or not: a printout shows all of them. */
function printChart(view, entry) {
  if (!entry.chart) fillPlace(view, entry);
  updateChart(view, entry);
}

function updateCharts(view) {
  view.reset.disabled = view.zoom === null;
  for (const entry of view.charts) {
    entry.isOld = true;
    if (entry.chart && entry.isSeen) updateChart(view, entry);
  }
}

function updateChart(view, entry) {
  const { chart, panel } = entry;
  entry.isOld = false;
  chart.update({ zoom: view.zoom, log: view.log && !panel.percent, series: buildSeries(view, panel), phases: listPhases(view), events: listMarks(view) });
}

function buildSeries(view, panel) {
  if (panel.evaluations) return panel.evaluations;
  const { steps, values } = view.data;
  return panel.names.flatMap((name, colour) => {
    const points = steps.map((step, at) => [step, values[name]?.[at] ?? null]);
    const label = panel.names.length > 1 ? name : panel.title;
    const line = { label, points: smooth(points, view.weight, view.data.phase), colour };
    return view.weight ? [{ label, points, colour, faint: true }, line] : [line];
  });
}

function listEvaluationPanels(view) {
  const tasks = new Map();
  for (const [name, rows] of Object.entries(view.data.evaluations)) {
    const [, task, decoding] = /^eval\/(.+)\/([^/]+)$/.exec(name) ?? [null, name, ""];
    tasks.set(task, [...(tasks.get(task) ?? []), { decoding, rows }]);
  }
  return [...tasks].map(([task, decodings]) => ({
    title: `Accuracy on ${task}, 95 % intervals`, task, names: [], percent: true,
    evaluations: decodings.map(({ decoding, rows }, colour) => ({
      label: decoding, colour, marks: true, points: rows.map(([step, value]) => [step, value]), band: rows.map(([step, , low, high]) => [step, low, high]),
    })),
  }));
}

function listPhases(view) {
  return view.run.phases.length > 1 ? view.run.phases.map(({ begin, label }) => ({ begin, label })) : [];
}

function listMarks(view) {
  return view.run.events.filter((event) => MARKED.has(event.event) && Number.isFinite(event.step))
    .map((event) => ({ x: event.step, label: `step ${event.step}: ${event.message ?? event.name ?? event.event}` }));
}

/** Open the answers of a step, or an evaluation if training saved none. */
function openStep(view, step, { task, evaluations }) {
  const { steps } = view.run;
  if (!steps.length && evaluations) go(["run", view.run.card.key, "evaluation", String(step), task, evaluations[0].label]);
  else openNearest(view.run, step);
}

/** Open the step with saved answers that is nearest to a number. */
export function openNearest(run, step) {
  if (!run.steps.length || Number.isNaN(step)) return;
  const sorted = [...run.steps].sort((a, b) => Math.abs(a - step) - Math.abs(b - step));
  go(["run", run.card.key, "step", String(sorted[0])]);
}

/** List the metrics that the charts show, a row for each step. */
function listRows({ data, charts }) {
  const names = [...new Set(charts.flatMap(({ panel }) => panel.names))];
  const rows = data.steps.map((step, at) => [step, data.phases[data.phase[at]], ...names.map((name) => data.values[name][at])]);
  return { columns: ["step", "phase", ...names], rows };
}

/**
 * Append rows of a live run. A new evaluation, phase or metric reloads everything, and so does a known step: the run was
 * resumed from an earlier step, and what it recorded after that is void.
 */
function append(view, rows) {
  const { data } = view;
  const isNew = (row) => Object.keys(row).some((name) => name.startsWith("eval/") || (typeof row[name] === "number" && name !== "step" && !(name in data.values)))
    || (row.phase !== undefined && row.phase !== data.phases[data.phase[data.phase.length - 1]]);
  const last = data.steps[data.steps.length - 1] ?? -1;
  if (!rows.every(({ step }, at) => Number.isInteger(step) && step > (rows[at - 1]?.step ?? last)) || rows.some(isNew)) {
    reload(view).catch(() => {}); // the next rows try again
    return;
  }
  for (const row of rows) {
    data.steps.push(row.step);
    data.phase.push(data.phase[data.phase.length - 1]);
    for (const [name, column] of Object.entries(data.values)) column.push(Number.isFinite(row[name]) ? row[name] : null);
  }
  followRun(view);
}

async function reload(view) {
  const [data, run] = await Promise.all(["metrics", "run"].map((name) => get(name, { run: view.run.card.key }, view.context.signal)));
  const count = Object.keys(view.data.values).length + Object.keys(view.data.evaluations).length;
  view.data = data;
  view.loaded = data.steps.length;
  view.run.phases = run.phases;
  if (Object.keys(data.values).length + Object.keys(data.evaluations).length !== count) draw(view);
  for (const entry of view.charts.filter(({ panel }) => panel.evaluations)) {
    entry.panel = listEvaluationPanels(view).find(({ title }) => title === entry.panel.title) ?? entry.panel;
  }
  followRun(view);
}

function followRun(view) {
  updateCharts(view);
  replace(view.times, buildTimes(view));
}

/** Show how steps and evaluations spend their time: a bar of the stages, and a table of their seconds. */
function buildTimes(view) {
  const ofSteps = Object.entries(view.data.values)
    .filter(([name]) => name.startsWith("time/") && name !== "time/step")
    .map(([name, values]) => [name.slice(5), values.reduce((sum, value, at) => sum + (value ?? 0) * (at < view.loaded ? view.data.stride : 1), 0)]);
  const stages = [...ofSteps, ["evaluate", view.data.evaluating]]
    .filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]);
  const total = stages.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return null;
  return h("section", { class: "times" }, h("h2", {}, "Time by stage"),
    h("div", { class: "stacked", role: "img", "aria-label": stages.map(([name, seconds]) => `${name} ${formatPercent(seconds / total)}`).join(", ") },
      stages.map(([name, seconds], at) => h("span", { class: `part c${at % 8}`, title: `${name}: ${formatDuration(seconds)}`, css: { width: `${(100 * seconds) / total}%` } }))),
    h("table", { class: "figures" }, h("caption", { class: "unseen" }, "Seconds by stage"),
      h("thead", {}, h("tr", {}, ["stage", "time", "share"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, stages.map(([name, seconds], at) => h("tr", {},
        h("th", { scope: "row" }, h("span", { class: `square c${at % 8}`, "aria-hidden": "true" }), name),
        h("td", {}, formatDuration(seconds)), h("td", {}, formatPercent(seconds / total)))))));
}

function readZoom(text) {
  const [low, high] = (text ?? "").split("-").map(Number);
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
}

/** Choose how much to smooth: nothing in a short run, more in a long one. */
function defaultWeight(data) {
  return data.steps.length > 300 ? 0.9 : data.steps.length > 60 ? 0.7 : 0;
}
