import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatPercent, formatPoints } from "../format.js";
import { link } from "../router.js";
import { askOn, countWords, showShort } from "./figures.js";
import { createSortedTable } from "./sorted_table.js";
import { makeSelect } from "./texts.js";

const KINDS = {
  all: ["all problems", () => true],
  never: ["never right", (row) => row.first_right == null],
  gained: ["better than at first", (row) => row.last_rate > row.first_rate],
  dropped: ["worse than at first", (row) => row.last_rate < row.first_rate],
  gone: ["right once, wrong at last", (row) => row.first_right != null && row.last_rate === 0],
  trained: ["in training", (row) => row.n_training > 0],
  evaluated: ["in evaluations", (row) => row.n_evaluations > 0],
};

/** Show every problem of a run with its pass rate, first and last. */
export async function renderProblems(context) {
  const run = context.parts[1];
  const view = createView(context, run);
  const use = (reply) => {
    view.reply = reply;
    showRows(view);
  };
  use(await get("problems", { run }));
  if (view.reply.complete === false) readOn(view, use);
  const element = h("article", { class: "problems-view" },
    h("h1", {}, "Problems"), view.places.facts, view.places.tools, view.places.trouble, view.table.element, view.places.copy);
  return { title: `Problems of ${run}`, element, keys: buildKeys(view) };
}

function createView(context, run) {
  const view = {
    context, run, reply: { problems: [] }, shown: [],
    places: {
      facts: h("p", { class: "facts", role: "status" }), tools: h("div", { class: "tools" }), trouble: h("div", {}), copy: h("div", {}),
    },
  };
  view.search = h("input", {
    type: "search", value: context.query.q ?? "", placeholder: "words of the question, or an id",
    on: { input: () => change(view, { q: view.search.value }) },
  });
  const kinds = Object.entries(KINDS).map(([key, [label]]) => [key, label]);
  replace(view.places.tools,
    h("label", { class: "choice search" }, h("span", {}, "Search"), view.search),
    makeSelect("Show", kinds, context.query.show ?? "all", (show) => change(view, { show: show === "all" ? null : show })));
  view.table = createSortedTable(context, {
    caption: "Problems and their share of right answers", columns: listColumns(), rows: [], height: 640,
    sort: { key: "seen", down: true },
    link: (row) => link(["run", run, "problem", row.id]),
  });
  return view;
}

function change(view, changes) {
  const cleaned = Object.fromEntries(Object.entries(changes).map(([name, value]) => [name, value || null]));
  Object.assign(view.context.query, cleaned);
  view.context.setQuery(cleaned);
  showRows(view);
}

async function readOn(view, use) {
  try {
    await askOn(() => get("problems", { run: view.run }), use, view.context.signal);
  } catch (error) {
    replace(view.places.trouble, h("p", { class: "trouble", role: "alert" }, `The steps could not all be read: ${error.message}`));
  }
}

function showRows(view) {
  const { query } = view.context;
  const all = view.reply.problems;
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const has = ({ id, question }) => words.every((word) => `${id} ${question}`.toLowerCase().includes(word));
  const fits = KINDS[query.show]?.[1] ?? KINDS.all[1];
  view.shown = all.filter((row) => fits(row) && has(row));
  view.table.setRows(view.shown);
  replace(view.places.facts, describeCounts(view, all.length));
  replace(view.places.copy, copyButtons({
    name: "problems", json: () => view.shown,
    rows: () => {
      const columns = ["id", "question", "n_training", "n_evaluations", "first_rate", "last_rate", "first_right"];
      return { columns, rows: view.shown.map((row) => columns.map((name) => row[name] ?? "")) };
    },
  }));
}

function describeCounts({ reply, shown }, count) {
  const total = reply.n ?? count;
  const facts = [
    shown.length < count ? `${shown.length.toLocaleString("en")} of ${countWords(count, "problem")}` : countWords(count, "problem"),
    total > count ? `those seen most often, of ${countWords(total, "problem")} in all` : null,
    reply.complete === false ? "still reading the steps …" : null,
  ];
  return facts.filter(Boolean).join(" · ");
}

function listColumns() {
  const change = (row) => (row.first_rate == null || row.last_rate == null ? null : row.last_rate - row.first_rate);
  return [
    { key: "question", label: "question", value: (row) => row.question, show: (row) => showShort(row.question || row.id) },
    { key: "id", label: "id", wide: true, value: (row) => row.id, show: (row) => h("span", { class: "short", title: row.id }, row.id) },
    {
      key: "seen", label: "seen", about: "How often its answers were saved, in training steps and evaluations", numeric: true,
      value: (row) => row.n_training + row.n_evaluations,
    },
    { key: "training", label: "in training", about: "Training steps with answers to it", numeric: true, value: (row) => row.n_training },
    { key: "first", label: "first", about: "Share of right answers when it was first seen", numeric: true, value: (row) => row.first_rate, show: (row) => formatPercent(row.first_rate) },
    { key: "last", label: "last", about: "Share of right answers when it was last seen", numeric: true, value: (row) => row.last_rate, show: (row) => formatPercent(row.last_rate) },
    { key: "change", label: "change", about: "Change in percentage points", numeric: true, value: change, show: (row) => (change(row) == null ? "–" : formatPoints(change(row))) },
    {
      key: "right", label: "first right at step", about: "First step with a right answer", numeric: true,
      value: (row) => row.first_right, show: (row) => (row.first_right == null ? "never" : String(row.first_right)),
    },
  ];
}

function buildKeys(view) {
  return {
    j: { about: "next problem", run: () => view.table.move(1) },
    k: { about: "previous problem", run: () => view.table.move(-1) },
    Enter: { about: "open the problem", run: () => view.table.open() },
    "/": { about: "search", run: () => view.search.focus() },
  };
}
