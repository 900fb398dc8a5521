import { get } from "../api.js";
import { lineChart } from "../chart.js";
import { copyButtons } from "../copy.js";
import { h } from "../dom.js";
import { formatNumber, formatPercent } from "../format.js";
import { go, link } from "../router.js";
import { countWords, showScale, showShare } from "./figures.js";
import { createSortedTable } from "./sorted_table.js";
import { makeSelect } from "./texts.js";

const COLOURS = { greedy: 0, sampled: 1 };

/** Show every evaluation of a run: accuracies with intervals over the steps, and as a table. */
export async function renderEvaluations(context) {
  const run = context.parts[1];
  const [{ evaluations }, about] = await Promise.all([get("evaluations", { run }), get("run", { run })]);
  const rows = evaluations.map((each) => ({ ...each, key: `${each.task}/${each.decoding}` }));
  const table = buildTable(context, run, rows);
  const element = h("article", { class: "evaluations-view" },
    h("h1", {}, "Evaluations"),
    h("p", { class: "facts" }, describeAll(rows)),
    rows.length ? [...drawCharts(run, rows, about.phases ?? []),
      h("section", {}, h("h2", {}, "All evaluations"), table.tools, table.element, showNote(), showCopies(run, rows))]
      : h("p", {}, "This run has no evaluation yet."));
  return { title: `Evaluations of ${run}`, element, keys: table.keys };
}

/** Link to the page of an evaluation. */
export function linkEvaluation(run, { step, task, decoding }) {
  return link(["run", run, "evaluation", String(step), task, decoding]);
}

function describeAll(rows) {
  const tasks = new Set(rows.map((row) => row.task));
  const steps = new Set(rows.map((row) => row.step));
  return `${countWords(rows.length, "evaluation")} · ${countWords(steps.size, "step")} · ${countWords(tasks.size, "task")}`;
}

function drawCharts(run, rows, phases) {
  const tasks = [...new Set(rows.map((row) => row.task))];
  const charts = tasks.map((task) => drawTask(run, rows.filter((row) => row.task === task), phases)).filter(Boolean);
  return charts.length ? [h("section", {}, h("h2", {}, "Accuracy by step"), h("div", { class: "charts" }, charts))] : [];
}

function drawTask(run, rows, phases) {
  if (new Set(rows.map((row) => row.step)).size < 2) return null;
  const decodings = [...new Set(rows.map((row) => row.decoding))];
  const series = decodings.map((decoding, at) => {
    const own = rows.filter((row) => row.decoding === decoding).sort((a, b) => a.step - b.step);
    return {
      label: decoding, colour: COLOURS[decoding] ?? (at + 2) % 8, marks: true,
      points: own.map(({ step, figures }) => [step, figures.accuracy]),
      band: own.filter(({ figures }) => figures.ci_lo != null).map(({ step, figures }) => [step, figures.ci_lo, figures.ci_hi]),
    };
  });
  const onPick = (x) => {
    const near = [...rows].sort((a, b) => Math.abs(a.step - x) - Math.abs(b.step - x))[0];
    go(["run", run, "evaluation", String(near.step), near.task, near.decoding]);
  };
  const marked = phases.map(({ begin, label, name }) => ({ begin, label: label ?? name }));
  return lineChart({ title: rows[0].task, series, percent: true, phases: marked, onPick }).element;
}

function buildTable(context, run, rows) {
  const names = [...new Set(rows.map((row) => row.key))];
  let chosen = context.query.series ?? "";
  const pick = () => rows.filter((row) => !chosen || row.key === chosen);
  const table = createSortedTable(context, {
    caption: "Accuracy of each evaluation with its 95 % interval", columns: listColumns(), rows: pick(),
    sort: { key: "step", down: true },
    link: (row) => linkEvaluation(run, row),
  });
  const change = (value) => {
    chosen = value;
    context.setQuery({ series: value || null });
    table.setRows(pick());
  };
  const choices = [["", "all tasks and decodings"], ...names.map((name) => [name, name.replace("/", ", ")])];
  return {
    element: table.element,
    tools: names.length > 1 ? h("div", { class: "tools" }, makeSelect("Show", choices, chosen, change)) : null,
    keys: {
      j: { about: "next evaluation", run: () => table.move(1) },
      k: { about: "previous evaluation", run: () => table.move(-1) },
      Enter: { about: "open the evaluation", run: () => table.open() },
    },
  };
}

function listColumns() {
  const figure = (key, label, about, format) => ({
    key, label, about, numeric: true, value: (row) => row.figures[key] ?? null,
    show: (row) => (row.figures[key] == null ? "–" : format(row.figures[key])),
  });
  return [
    { key: "step", label: "step", value: (row) => row.step, show: (row) => h("span", { class: "nowrap" }, `step ${row.step}`) },
    { key: "task", label: "task", value: (row) => row.task },
    { key: "decoding", label: "decoding", value: (row) => row.decoding },
    {
      key: "accuracy", label: "accuracy", about: "Share of right answers with its 95 % interval", numeric: true,
      value: (row) => row.figures.accuracy, show: ({ figures }) => h("span", {}, showShare(figures.accuracy, figures.ci_lo, figures.ci_hi)),
    },
    {
      key: "scale", label: "0 to 100 %", about: "The accuracy and its interval on a scale", value: (row) => row.figures.accuracy,
      show: ({ figures, decoding }) => showScale(figures.accuracy, figures.ci_lo, figures.ci_hi, COLOURS[decoding] ?? 2),
    },
    figure("format", "in format", "Share of answers that follow the format", formatPercent),
    figure("mean_tokens", "mean tokens", "Mean length of an answer in tokens", formatNumber),
    figure("truncated_frac", "truncated", "Share of answers cut off at the token limit", formatPercent),
    figure("n", "n", "Number of problems", formatNumber),
    figure("k", "answers each", "Answers to each problem", formatNumber),
  ];
}

function showNote() {
  return h("p", { class: "note" }, "Brackets are 95 % intervals over problems: Wilson's where each problem is answered once, else from the ",
    "spread of the problems' means. They do not cover the randomness of a training run.");
}

function showCopies(run, rows) {
  const columns = ["step", "task", "decoding", "accuracy", "ci_lo", "ci_hi", "format", "mean_tokens", "truncated_frac", "n", "k"];
  return copyButtons({
    name: `evaluations-${run}`, json: () => rows,
    rows: () => ({ columns, rows: rows.map((row) => columns.map((name) => row[name] ?? row.figures[name] ?? "")) }),
  });
}
