import { h } from "../dom.js";
import { formatNumber, formatPercent } from "../format.js";
import { isCut, isFlat, nameRate, readRate } from "./filters.js";
import { describeSource, formatSigned, readAdvantage, showFlag, showStop, showVerdict } from "./texts.js";
import { linkPlace } from "./where.js";

/** List the columns of the table of answers: those for which this step has values. */
export function listAnswerColumns(table, where, found) {
  const columns = [
    { key: "problem", label: "problem", about: "number and question", value: (row) => row.group, show: showQuestion },
    {
      key: "answer", label: "#", about: "number of the answer within its problem", numeric: true,
      value: (row) => row.answer, show: (row) => String(row.answer + 1),
    },
    {
      key: "rate", label: "group", about: "right answers to the problem, with a link to all of its answers",
      value: (row) => readRate(row.about), show: (row) => showGroup(row, where),
    },
    found && { key: "found", label: "found", value: (row) => found.get(row.key)?.before, show: (row) => showHit(found.get(row.key)) },
    ...listGradeColumns(table), ...listPartColumns(table), ...listOriginColumns(table),
  ];
  return columns.filter(Boolean);
}

function listGradeColumns(table) {
  const has = (name) => hasValues(table.rows[name]);
  return [
    has("correct") && { key: "correct", label: "verdict", value: (row) => toNumber(row.correct), show: (row) => showVerdict(row.correct, true) },
    has("reward") && makeNumber("reward", "reward"),
    has("advantage") && {
      key: "advantage", label: "advantage", about: "the mean if each token has its own", numeric: true,
      value: readAdvantage, show: (row) => formatSigned(readAdvantage(row)),
    },
    has("n_tokens") && makeNumber("n_tokens", "tokens"),
    has("stop_reason") && { key: "stop", label: "ended", value: (row) => row.stop_reason, show: showStop },
    has("extracted") && { key: "extracted", label: "extracted", value: (row) => row.extracted, show: (row) => showShort(row.extracted) },
    { key: "gold", label: "gold", value: (row) => row.about.gold, show: (row) => showShort(row.about.gold) },
    has("format_ok") && { key: "format", label: "format", value: (row) => toNumber(row.format_ok), show: (row) => showFlag(row.format_ok) },
  ];
}

function listPartColumns(table) {
  return Object.keys(table.parts ?? {}).map((name) => ({
    key: `part.${name}`, label: `reward: ${name}`, about: `what ${name} adds to the reward, before its weight`, numeric: true,
    value: (row) => row.parts[name], show: (row) => formatNumber(row.parts[name]),
  }));
}

function listOriginColumns(table) {
  const has = (name) => hasValues(table.rows[name]);
  const varies = (name) => table.rows[name]?.some((value) => value != null && value !== 0);
  return [
    has("source") && {
      key: "source", label: "source", value: (row) => row.source,
      show: (row) => h("span", { title: describeSource(row.source) }, row.source ?? "–"),
    },
    varies("given") && makeNumber("given", "given", "tokens of a demonstration that the answer starts with"),
    has("version") && makeNumber("version", "version", "step of the weights that sampled it"),
    varies("staleness") && makeNumber("staleness", "behind", "steps between the weights that sampled it and the update"),
    has("repetition") && makeNumber("repetition", "repeats", "share of its 8-grams that occurred earlier in it"),
    has("rare") && makeNumber("rare", "rare", "share of sampled tokens with a probability below 1 %"),
    has("has_stats") && {
      key: "signals", label: "signals", about: "whether the learner's figures for each token are recorded",
      value: (row) => Number(Boolean(row.has_stats)), show: (row) => (row.has_stats ? "yes" : "–"),
    },
  ];
}

function makeNumber(key, label, about) {
  return { key, label, about, numeric: true, value: (row) => row[key], show: (row) => formatNumber(row[key]) };
}

/** List the columns of the table of problems. */
export function listGroupColumns(table) {
  const has = (name) => hasValues(table.groups.map((group) => group[name]));
  const text = (name, label) => has(name) && {
    key: name, label, value: (row) => row.about[name], show: (row) => showShort(row.about[name]),
  };
  const figure = (name, label) => has(name) && {
    key: name, label, numeric: true, value: (row) => row.about[name], show: (row) => formatNumber(row.about[name]),
  };
  const columns = [
    { key: "problem", label: "problem", value: (row) => row.group, show: showQuestion },
    text("gold", "gold"),
    { key: "rate", label: "right", numeric: true, about: "share of all its answers that could be graded", value: (row) => row.rate, show: showRate },
    figure("reward_mean", "mean reward"), figure("reward_min", "least"), figure("reward_max", "most"),
    {
      key: "flat", label: "signal", about: "none if all its rewards are equal", value: (row) => Number(!row.flat),
      show: (row) => (row.about.n > 1 ? (row.flat ? "none" : "yes") : "–"),
    },
    {
      key: "tokens", label: "mean tokens", about: "of the answers shown", numeric: true, value: (row) => row.tokens,
      show: (row) => formatNumber(row.tokens),
    },
    { key: "cut", label: "cut off", numeric: true, value: (row) => row.cut, show: (row) => String(row.cut) },
    {
      key: "shown", label: "answers shown", numeric: true, value: (row) => row.shown,
      show: (row) => `${row.shown} of ${row.about.n ?? row.shown}`,
    },
    text("subject", "subject"), text("level", "level"), text("data_source", "data"),
  ];
  return columns.filter(Boolean);
}

/** List what a copy of the table contains: every recorded column of the rows that are shown. */
export function listCopied(table, rows) {
  const own = Object.keys(table.rows).filter((name) => name !== "group");
  const about = ["id", "question", "gold", "subject", "level", "data_source"]
    .filter((name) => hasValues(table.groups.map((group) => group[name])));
  const parts = Object.keys(table.parts ?? {});
  const read = (row) => [
    row.group, ...about.map((name) => row.about[name]), ...own.map((name) => row[name]), ...parts.map((name) => row.parts[name]),
  ];
  return { columns: ["group", ...about, ...own, ...parts.map((name) => `parts.${name}`)], rows: rows.map(read) };
}

/** Describe an answer in a few words, for the points of a chart. */
export function describeRow(row) {
  const facts = [
    `problem ${row.about.place + 1}, answer ${row.answer + 1}`, row.correct == null ? null : row.correct ? "right" : "wrong",
    row.reward == null ? null : `reward ${formatNumber(row.reward)}`, `${row.n_tokens ?? "?"} tokens`, isCut(row) ? "cut off" : null,
    isFlat(row.about) ? "no signal" : null,
  ];
  return facts.filter(Boolean).join(", ");
}

function hasValues(values) {
  return Boolean(values?.some((value) => value != null));
}

function toNumber(flag) {
  return flag == null ? null : Number(flag);
}

function showQuestion(row) {
  return h("span", { class: "question-cell", title: row.about.question ?? "" },
    h("span", { class: "group-number" }, String(row.about.place + 1)), ` ${row.about.question ?? row.about.id ?? ""}`);
}

function showGroup(row, where) {
  const label = row.about.n == null ? "all" : nameRate(row.about);
  return h("a", { href: linkPlace(where, row.group), "aria-label": `${readRate(row.about) == null ? label : `${label} right`}, all answers of problem ${row.about.place + 1}` }, label);
}

function showHit(hit) {
  if (!hit) return "";
  return h("span", { class: "hit" }, hit.before.slice(-40).trimStart(), h("mark", {}, hit.match), hit.after.slice(0, 60));
}

function showShort(value) {
  return value == null || value === "" ? "–" : h("span", { class: "short", title: String(value) }, String(value));
}

function showRate(row) {
  if (row.rate == null) return "–";
  return h("span", { class: "rate" }, `${nameRate(row.about)} `, h("small", {}, formatPercent(row.rate)));
}
