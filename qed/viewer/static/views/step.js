import { get, isStatic } from "../api.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatNumber, formatPercent } from "../format.js";
import { histogram } from "../histogram.js";
import { go, link } from "../router.js";
import { createTable } from "../table.js";
import { describeRow, listAnswerColumns, listCopied, listGroupColumns } from "./answer_rows.js";
import { createFilterBar } from "./filter_bar.js";
import { FILTERS, buildRows, filterRows, groupRows, isCut, readFilters, readRange, searchRows, sortRows, summarise, writeRange } from "./filters.js";
import { drawScatter } from "./scatter.js";
import { makeButton, showNeighbours } from "./texts.js";
import { buildParts, followQuery, linkPlace, nameWhere, readWhere } from "./where.js";

const TABLE_HEIGHT = 560;
const BAR = 25; // the fewest pixels of a bar that can be clicked
const TWO_CHARTS = 850; // the narrowest window, in pixels, with two charts side by side

/** Show the answers of a training step or of an evaluation: filters, search, histograms and the table. */
export async function renderStep(given) {
  const context = followQuery(given);
  const where = readWhere(context.parts);
  const table = await get("step", where, context.signal);
  const view = createView(context, where, table);
  const name = nameWhere(where);
  const bar = createFilterBar({
    rows: view.rows, filters: view.filters, canSearch: !isStatic(), onChange: (changes) => changeFilters(view, changes),
  });
  view.bar = bar;
  const { places } = view;
  const element = h("article", { class: "step-view" },
    h("h1", {}, name), h("p", { class: "facts" }, `${formatNumber(view.rows.length)} answers to ${formatNumber(table.groups.length)} problems`),
    table.lost ? h("p", { class: "trouble" }, `${formatNumber(table.lost)} more answers were written but are missing in the file, which is incomplete.`) : null,
    places.moves, places.tiles, bar.element, places.trouble,
    h("section", {}, h("h2", {}, "Rewards and lengths"), places.charts, places.scatter),
    h("section", { "aria-label": "Answers" }, places.modes, h("p", { class: "shown", role: "status" }, places.shown), places.table), places.copy);
  refresh(view);
  if (view.filters.q) search(view).then(() => refresh(view));
  return { title: name, element, keys: buildKeys(view), live: followSteps(view) };
}

function createView(context, where, table) {
  const place = (name) => h("div", { class: name });
  const scatter = h("details", { class: "scatter-fold" }, h("summary", {}, "Reward against length"), h("div", {}));
  const view = {
    context, where, table, rows: buildRows(table), filters: readFilters(context.query), found: null, hits: null,
    mode: context.query.mode === "groups" ? "groups" : "answers",
    sort: context.query.sort ? { key: context.query.sort, down: context.query.down === "1" } : null,
    places: {
      moves: place("moves"), tiles: h("dl", { class: "tiles" }), trouble: place("search-note"), charts: place("step-charts"), scatter,
      modes: place("modes"), shown: h("span", {}), table: place("table-place"), copy: place("copy-place"),
    },
  };
  scatter.open = context.query.plot === "1";
  scatter.addEventListener("toggle", () => {
    context.setQuery({ plot: scatter.open ? "1" : null });
    showScatter(view);
  });
  return view;
}

async function changeFilters(view, changes) {
  const before = ["q", "regex", "fields"].map((name) => view.filters[name]).join("\n");
  view.filters = { ...view.filters, ...changes };
  view.context.setQuery(Object.fromEntries(FILTERS.map((name) => [name, view.filters[name] || null])));
  if (before !== ["q", "regex", "fields"].map((name) => view.filters[name]).join("\n")) await search(view);
  refresh(view);
}

/** Ask the server which answers contain the text; a static copy searches what it has. */
async function search(view) {
  const { filters, places, where } = view;
  const { q, regex, fields } = filters;
  view.found = null;
  replace(places.trouble);
  if (!q) return;
  if (isStatic()) return void noteHits(view, { hits: searchRows(view.rows, q), complete: true, local: true });
  replace(places.trouble, h("p", { class: "note", role: "status" }, "Searching …"));
  try {
    const reply = await get("search", { ...where, q, ...(regex ? { regex: 1 } : {}), fields: fields || "text" }, view.context.signal);
    if (view.filters.q === q && view.filters.regex === regex && view.filters.fields === fields) noteHits(view, reply);
  } catch (error) {
    if (view.filters.q === q && error.name !== "AbortError") replace(places.trouble, showFailure(error));
  }
}

function showFailure(error) {
  return h("p", { class: "trouble", role: "alert" }, `The search failed: ${error.message}`);
}

function noteHits(view, { hits, n, complete, local }) {
  view.found = new Map();
  for (const hit of hits) {
    const rows = hit.answer == null ? view.rows.filter((row) => row.group === hit.group) : [{ key: `${hit.group}/${hit.answer}` }];
    for (const row of rows) if (!view.found.has(row.key)) view.found.set(row.key, hit);
  }
  const note = [
    `${formatNumber(n ?? hits.length)} hits, in ${formatNumber(view.found.size)} answers.`,
    complete ? null : `Not all hits are shown: the search ended at its time limit or at ${formatNumber(hits.length)} hits. Narrow it to see all.`,
    local ? "This copy searches questions, gold and extracted answers; `qed view` also searches whole texts." : null,
  ].filter(Boolean);
  replace(view.places.trouble, note.map((text) => h("p", { class: "note" }, text)));
}

function refresh(view) {
  view.shown = filterRows(view.rows, view.filters, view.found);
  view.bar.update(view.filters);
  showMoves(view);
  showTiles(view);
  showCharts(view);
  showScatter(view);
  showTable(view);
  replace(view.places.copy, copyButtons({
    name: "the answers",
    json: () => toObjects(listCopied(view.table, sortShown(view, view.shown))),
    rows: () => listCopied(view.table, sortShown(view, view.shown)),
  }));
}

function toObjects({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
}

function showTiles(view) {
  const [all, shown] = [summarise(view.rows), summarise(view.shown)];
  const isPart = view.shown.length < view.rows.length;
  const tile = (label, value, format, whole) => value == null && whole == null ? null
    : h("div", {}, h("dt", {}, label), h("dd", {}, h("b", {}, value == null ? "–" : format(value)), isPart ? h("small", {}, `all: ${format(whole)}`) : null));
  replace(view.places.tiles,
    tile("answers", shown.n, formatNumber, all.n), tile("right", shown.right, formatPercent, all.right),
    tile("in format", shown.format, formatPercent, all.format), tile("mean reward", shown.reward, formatNumber, all.reward),
    tile("mean tokens", shown.tokens, formatNumber, all.tokens), tile("cut off", shown.cut, formatPercent, all.cut),
    all.groups < all.n ? tile("problems without signal", shown.flat, formatNumber, all.flat) : null);
}

/** Draw both histograms; each ignores its own filter, so that another of its bars can be selected. */
function showCharts(view) {
  const { charts } = view.places;
  const draw = (name, title, read) => {
    const rows = filterRows(view.rows, { ...view.filters, [name]: "" }, view.found).filter((row) => read(row) != null);
    return rows.length === 0 ? null : histogram({
      title, values: rows.map(read), bins: countBins(), selected: readRange(view.filters[name]), format: formatNumber,
      marked: rows.map(isCut), markLabel: "cut off", onPick: (range) => changeFilters(view, { [name]: writeRange(range) }),
    }).element;
  };
  replace(charts, draw("reward", "Rewards", (row) => row.reward), draw("tokens", "Lengths in tokens", (row) => row.n_tokens));
}

/** How many bars fit next to each other, each wide enough for a finger. */
function countBins() {
  const width = window.innerWidth < TWO_CHARTS ? window.innerWidth - 48 : (window.innerWidth - 90) / 2;
  return Math.max(6, Math.min(24, Math.floor(width / BAR)));
}

function showScatter(view) {
  const { scatter } = view.places;
  if (!scatter.open) return;
  const onPick = (row) => go(buildParts(view.where, row.group, row.answer));
  replace(scatter.lastElementChild, drawScatter({ rows: view.shown, describe: describeRow, onPick }));
}

function sortShown(view, rows) {
  const column = listColumns(view).find(({ key }) => key === view.sort?.key);
  return column ? sortRows(rows, column.value, view.sort.down) : rows;
}

function listColumns(view) {
  return view.mode === "groups" ? listGroupColumns(view.table) : listAnswerColumns(view.table, view.where, view.found);
}

function showTable(view) {
  const { context, where, places } = view;
  const rows = view.mode === "groups" ? groupRows(view.shown) : view.shown;
  const address = (row) => (view.mode === "groups" ? [where, row.group] : [where, row.group, row.answer]);
  // An answer that a search found shows the hit.
  const query = (row) => (view.mode === "answers" && view.found?.get(row.key)?.match ? { found: view.found.get(row.key).match } : {});
  view.list = createTable({
    caption: view.mode === "groups" ? "Problems of the step" : "Answers of the step",
    columns: listColumns(view), rows: sortShown(view, rows), sort: view.sort ?? { key: "", down: false }, height: TABLE_HEIGHT,
    link: (row) => link(buildParts(...address(row)), query(row)), onOpen: (row) => go(buildParts(...address(row)), query(row)),
    onSort: (sort) => {
      view.sort = sort;
      context.setQuery({ sort: sort.key || null, down: sort.down ? "1" : null });
      view.list.setRows(sortShown(view, rows));
    },
  });
  replace(places.table, view.list.element);
  replace(places.shown, describeShown(view, rows));
  replace(places.modes, [["answers", "Answers"], ["groups", "Problems"]].map(([mode, label]) =>
    makeButton(label, () => switchMode(view, mode), { "aria-pressed": String(view.mode === mode) })));
}

function describeShown(view, rows) {
  const all = view.mode === "groups" ? view.table.groups.length : view.rows.length;
  const name = view.mode === "groups" ? "problems" : "answers";
  return rows.length === all ? `All ${formatNumber(all)} ${name}` : `${formatNumber(rows.length)} of ${formatNumber(all)} ${name}`;
}

function switchMode(view, mode) {
  view.mode = mode;
  view.sort = null;
  view.context.setQuery({ mode: mode === "groups" ? mode : null, sort: null, down: null });
  showTable(view);
  view.places.modes.querySelector("[aria-pressed=true]").focus();
}

function keepQuery(view) {
  const names = [...FILTERS, "mode", "sort", "down", "plot"];
  return Object.fromEntries(names.map((name) => [name, view.context.query[name]]).filter(([, value]) => value));
}

function showMoves(view) {
  const side = (step) => (step == null ? null : { href: linkPlace({ ...view.where, step }, null, null, keepQuery(view)), label: `step ${step}` });
  replace(view.places.moves, showNeighbours("Steps with answers", side(view.table.previous), side(view.table.next)));
}

/** Link the next step as soon as a live run has saved it; only the last training step has to wait for one. */
function followSteps(view) {
  if (view.where.task || view.table.next != null) return null;
  return {
    steps: ({ steps }) => {
      view.table.next = steps.find((step) => step > view.where.step) ?? null;
      showMoves(view);
    },
  };
}

function buildKeys(view) {
  const leave = (step) => step != null && go(buildParts({ ...view.where, step }), keepQuery(view));
  return {
    j: { about: "next row", run: () => view.list.move(1) },
    k: { about: "previous row", run: () => view.list.move(-1) },
    Enter: { about: "open the row", run: () => view.list.open() },
    ArrowLeft: { about: "previous step with answers", run: () => leave(view.table.previous) },
    ArrowRight: { about: "next step with answers", run: () => leave(view.table.next) },
    "/": { about: "search the answers", run: () => view.bar.focus() },
    g: { about: "answers or problems", run: () => switchMode(view, view.mode === "groups" ? "answers" : "groups") },
  };
}
