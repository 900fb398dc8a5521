import { h, replace } from "../dom.js";
import { VERDICTS, countChoices, countFilters, isCut, isFlat, readFilters, readRange, writeRange } from "./filters.js";
import { makeButton, makeSelect } from "./texts.js";

const CHOICES = [
  { name: "source", label: "Source", read: (row) => row.source },
  { name: "subject", label: "Subject", read: (row) => row.about.subject },
  { name: "level", label: "Level", read: (row) => row.about.level },
  { name: "data", label: "Data", read: (row) => row.about.data_source },
  { name: "version", label: "Version", read: (row) => row.version },
  { name: "staleness", label: "Steps behind", read: (row) => row.staleness },
];
const FIELDS = [["text", "answers"], ["question", "questions"], ["prompt", "prompts"], ["text,prompt,question", "all texts"]];

/**
 * Build the filters of a step's table. Choices that all rows share are left out.
 *
 * `onChange(changes)` gets what changed, by the names in the URL. Returns {element, update(filters), focus()}.
 */
export function createFilterBar({ rows, filters, onChange, canSearch }) {
  const search = createSearch(filters, onChange, canSearch);
  const fields = h("div", { class: "filter-fields" });
  const summary = h("summary", {});
  const fold = h("details", { class: "filter-fold" }, summary, fields);
  fold.open = window.matchMedia("(min-width: 761px)").matches || countFilters(filters) > 0;
  const update = (current) => {
    const focused = fields.contains(document.activeElement) ? document.activeElement.dataset.filter : null;
    replace(fields, listFields(rows, current, onChange), showReset(current, onChange, search));
    summary.textContent = countFilters(current) ? `Filters (${countFilters(current)} set)` : "Filters";
    if (focused) fields.querySelector(`[data-filter="${focused}"]`)?.focus();
  };
  update(filters);
  const element = h("form", { class: "filters", "aria-label": "Filters of the answers", on: { submit: (event) => event.preventDefault() } },
    search.element, fold);
  return { element, update, focus: () => search.input.focus() };
}

function createSearch(filters, onChange, canSearch) {
  const input = h("input", {
    type: "search", name: "q", value: filters.q, placeholder: canSearch ? "words or a regular expression" : "words of questions",
    "data-search": "", autocomplete: "off", spellcheck: "false",
  });
  const regex = h("input", { type: "checkbox", name: "regex" });
  regex.checked = filters.regex === "1";
  const state = { fields: filters.fields || "text" };
  const send = () => onChange({
    q: input.value, regex: input.value && regex.checked ? "1" : "", fields: input.value && state.fields !== "text" ? state.fields : "",
  });
  input.addEventListener("change", send);
  input.addEventListener("search", () => input.value === "" && send());
  regex.addEventListener("change", () => input.value && send());
  const inServer = canSearch ? [
    makeSelect("in", FIELDS, state.fields, (value) => {
      state.fields = value;
      if (input.value) send();
    }),
    h("label", { class: "check" }, regex, " regular expression"),
  ] : null;
  const element = h("div", { class: "search-row", role: "search" },
    h("label", { class: "choice search" }, h("span", {}, "Search"), input), inServer,
    makeButton("Search", send, { class: "small" }));
  return { element, input, clear: () => (input.value = "") };
}

function listFields(rows, filters, onChange) {
  const any = ["", "any"];
  const select = (name, label, choices) => {
    const field = makeSelect(label, [any, ...choices], filters[name], (value) => onChange({ [name]: value }));
    field.querySelector("select").dataset.filter = name;
    return field;
  };
  const has = (test) => rows.some(test);
  const choices = CHOICES.map(({ name, label, read }) => ({ name, label, counts: countChoices(rows, read) }))
    .filter(({ name, counts }) => counts.length > 1 || filters[name] !== "")
    .map(({ name, label, counts }) => select(name, label, counts.map(([value, count]) => [String(value), `${value} (${count})`])));
  return [
    select("verdict", "Verdict", Object.entries(VERDICTS).map(([name, { label, keep }]) => [name, `${label} (${rows.filter(keep).length})`])),
    showRange("reward", "Reward", filters, onChange),
    showRange("tokens", "Tokens", filters, onChange),
    has(isCut) || filters.cut ? select("cut", "Cut off", [["1", `yes (${rows.filter(isCut).length})`], ["0", "no"]]) : null,
    has((row) => row.about.n > 1) ? select("signal", "Problems", [["none", `without signal (${countFlat(rows)})`], ["some", "with signal"]]) : null,
    ...choices,
  ];
}

function countFlat(rows) {
  return new Set(rows.filter((row) => isFlat(row.about)).map((row) => row.group)).size;
}

function showRange(name, label, filters, onChange) {
  const range = readRange(filters[name]) ?? [-Infinity, Infinity];
  const inputs = range.map((end, at) => h("input", {
    type: "number", step: "any", value: Number.isFinite(end) ? String(end) : "", placeholder: at ? "to" : "from",
    "aria-label": `${label} ${at ? "at most" : "at least"}`, dataset: { filter: `${name}-${at}` },
    on: { change: () => onChange({ [name]: writeRange(inputs.map(({ value }, end) => readEnd(value, end))) }) },
  }));
  return h("div", { class: "choice range", role: "group", "aria-label": label }, h("span", {}, label), h("span", {}, inputs[0], "–", inputs[1]));
}

function readEnd(text, end) {
  const value = text === "" ? NaN : Number(text);
  return Number.isNaN(value) ? [-Infinity, Infinity][end] : value;
}

function showReset(filters, onChange, search) {
  if (countFilters(filters) === 0 && filters.q === "") return null;
  return makeButton("Clear all filters", () => {
    search.clear();
    onChange(readFilters({}));
  }, { class: "small reset", "data-filter": "reset" });
}
