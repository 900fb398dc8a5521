import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { h } from "../dom.js";
import { formatNumber, formatPercent, formatInterval } from "../format.js";
import { go, link } from "../router.js";
import { linkEvaluation } from "./evaluations.js";
import { countWords, formatBrackets, showFigures, showScale, showShare } from "./figures.js";
import { showNeighbours } from "./texts.js";
import { linkPlace } from "./where.js";

const FORMATS = { fmt1: "format kept", fmt0: "format broken" };
const EXTRACTIONS = { strict: "answer found strictly", flexible: "answer found anywhere", string: "equal as a string" };
const SHARES = { format: "format kept", truncated_frac: "cut off", no_answer_frac: "without an answer", reasoning_frac: "with thinking" };
const MEANS = {
  mean_turns: "turns of an answer", mean_tokens: "tokens of an answer", right_tokens: "tokens of a right answer", wrong_tokens: "tokens of a wrong answer",
  reasoning_chars: "characters of thinking",
};
const COUNTERS = { timeouts: "grader timeouts", errors: "grader errors", without_reward: "answers without a reward" };
const MOST_VALUES = 60;

/** Show all figures of one decoding of a task at a step. */
export async function renderEvaluation(context) {
  const [, run, , step, task, decoding] = context.parts;
  const where = { run, step: Number(step), task, decoding };
  const reply = await get("evaluation", where);
  const title = `Step ${step}, ${task}, ${decoding}`;
  const element = h("article", { class: "evaluation-view" },
    h("h1", {}, title), showMoves(where, reply), showHeadline(where, reply), showLoss(reply),
    showTiles(reply), showLinks(where, reply),
    h("div", { class: "panes" }, showClasses(reply), showVotes(reply)),
    showCross(where, reply), showKinds(where, reply), showAll(reply),
    copyButtons({ name: `evaluation-${task}-${decoding}-${step}`, json: () => reply, rows: () => listCopied(reply) }));
  return { title, element, keys: buildKeys(where, reply) };
}

function nameNeighbour(where, step) {
  return step == null ? null : { href: linkEvaluation(where.run, { ...where, step }), label: `step ${step}` };
}

function showMoves(where, { previous, next }) {
  return showNeighbours("Evaluations of this task", nameNeighbour(where, previous), nameNeighbour(where, next));
}

function showHeadline(where, { figures }) {
  const answers = figures.k > 1 ? `, ${figures.k} answers to each` : "";
  const accuracy = formatInterval({ value: figures.accuracy, lo: figures.ci_lo, hi: figures.ci_hi });
  return h("p", { class: "headline" }, `${accuracy} of ${countWords(figures.n, "problem")} of ${where.task} right${answers}.`);
}

function showLoss({ lost }) {
  if (!lost) return null;
  return h("p", { class: "trouble" }, `${formatNumber(lost.stored)} of ${countWords(lost.of, "answer")} are stored: their file is incomplete. Means other than the accuracy have no intervals here, and tables show only the stored answers.`);
}

function showTiles({ figures, bounds }) {
  const tile = (label, key, format, brackets) => figures[key] == null ? null
    : h("div", {}, h("dt", {}, label), h("dd", {}, h("b", {}, format(figures[key])), h("small", {}, bounds[key] ? formatBrackets(...bounds[key], brackets) : "")));
  const share = (value) => (100 * value).toFixed(1);
  return h("dl", { class: "tiles" },
    tile("in format", "format", formatPercent, share), tile("mean tokens", "mean_tokens", formatNumber, formatNumber),
    tile("truncated", "truncated_frac", formatPercent, share), tile("without an answer", "no_answer_frac", formatPercent, share),
    tile("mean reward", "reward", formatNumber, formatNumber));
}

function showLinks(where, { rows, previous, next }) {
  const against = (step, words) => step == null ? null
    : h("a", { href: link(["compare"], { a: where.run, b: where.run, step_a: Math.min(step, where.step), step_b: Math.max(step, where.step), task: `${where.task}/${where.decoding}` }) }, words);
  return h("p", { class: "actions" },
    rows ? h("a", { class: "action", href: linkPlace(where) }, "All problems and answers") : h("span", {}, "Its answers were not stored."),
    rows ? against(previous, `Compare with step ${previous}`) : null, rows ? against(next, `Compare with step ${next}`) : null);
}

function showClasses({ classes, bounds }) {
  if (Object.keys(classes).length === 0) return null;
  const cell = (name) => {
    const value = classes[name] ?? 0;
    return h("span", { class: "heat-cell", css: { "--much": `${Math.round(value * 45)}%` } }, showShare(value, ...(bounds[name] ?? [])));
  };
  const rows = Object.entries(FORMATS).map(([key, head]) => ({ head, cells: [cell(`${key}_ans1`), cell(`${key}_ans0`)] }));
  return h("section", { class: "classes" }, h("h2", {}, "Format and answer"),
    showFigures({ caption: "Share of all answers in each of four classes", heads: ["", "right", "wrong"], rows, kind: "heat-table c0" }));
}

function showVotes({ votes, figures }) {
  const sizes = [...new Set([...Object.keys(votes.pass ?? {}), ...Object.keys(votes.maj ?? {})])].map(Number).sort((a, b) => a - b);
  if (sizes.length < 2) return null;
  const show = (found, colour) => found ? h("span", { class: "with-scale" }, h("span", {}, showShare(found.value, found.ci_lo, found.ci_hi)), showScale(found.value, found.ci_lo, found.ci_hi, colour)) : "–";
  const rows = sizes.map((k) => ({ head: `k = ${k}`, cells: [show(votes.pass?.[k], 0), k > 1 ? show(votes.maj?.[k], 1) : "–"] }));
  return h("section", { class: "votes" }, h("h2", {}, "Several answers to a problem"),
    showFigures({ caption: "One of k right (pass@k), and the vote of k right (maj@k)", heads: ["", "pass@k", "maj@k"], rows }),
    showSpread(votes.problems ?? [], figures.n));
}

/** Show how many problems have how many right answers: only those in the middle have a training signal. */
function showSpread(problems, n) {
  if (problems.length === 0 || !n) return null;
  const most = Math.max(...problems.map((each) => each.problems));
  return [
    h("h3", {}, "Problems by right answers"),
    h("ul", { class: "spread" }, problems.slice(0, 70).map(({ right, n: count, problems: own }) => h("li", {},
      h("span", { class: "label" }, `${right} of ${count} right`),
      h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill c0", css: { width: `${(own / most) * 100}%` } })),
      h("span", { class: "count" }, countWords(own, "problem"))))),
  ];
}

function sortNames(names) {
  return [...names].sort((a, b) => String(a).localeCompare(String(b), "en", { numeric: true }));
}

function showCross(where, { cross, rows }) {
  if (!cross?.length) return null;
  const subjects = sortNames(new Set(cross.map((cell) => cell.subject)));
  const levels = sortNames(new Set(cross.map((cell) => cell.level)));
  const cell = (subject, level) => {
    const found = cross.find((each) => each.subject === subject && each.level === level);
    if (!found) return h("span", { class: "empty" }, "–");
    const shown = [h("b", {}, formatPercent(found.right)), h("small", {}, `of ${found.n}`)];
    const props = { class: "heat-cell", css: { "--much": `${Math.round(found.right * 45)}%` }, title: `${subject}, level ${level}: ${formatInterval({ value: found.right, lo: found.lo, hi: found.hi })} of ${countWords(found.n, "problem")}` };
    return rows ? h("a", { ...props, href: linkPlace(where, null, null, { subject, level }) }, shown) : h("span", props, shown);
  };
  const lines = subjects.slice(0, MOST_VALUES).map((subject) => ({ head: subject, cells: levels.map((level) => cell(subject, level)) }));
  return h("section", {}, h("h2", {}, "Subject by level"),
    h("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": "Subject by level" },
      showFigures({ caption: "Share right; a deeper colour is a higher share", heads: ["", ...levels.map(nameLevel)], rows: lines, kind: "heat-table c0" })));
}

function nameLevel(level) {
  return /^\d/.test(String(level)) ? `level ${level}` : String(level);
}

function showKinds(where, { by, rows }) {
  const tables = Object.entries(by ?? {}).filter(([, values]) => Object.keys(values).length > 1).map(([kind, values]) => {
    const lines = sortNames(Object.keys(values)).slice(0, MOST_VALUES).map((name) => {
      const { accuracy, ci_lo: lo, ci_hi: hi, n } = values[name];
      const label = kind === "level" ? nameLevel(name) : name;
      const filter = { [kind === "source" ? "data" : kind]: name };
      return {
        head: rows ? h("a", { href: linkPlace(where, null, null, filter) }, label) : label,
        cells: [h("span", { class: "with-scale" }, h("span", {}, showShare(accuracy, lo, hi)), showScale(accuracy, lo, hi)), formatNumber(n)],
      };
    });
    return h("div", {}, showFigures({ caption: `By ${kind}: share right`, heads: ["", "right", "n"], rows: lines }));
  });
  return tables.length ? h("section", {}, h("h2", {}, "By subject, level and source"), h("div", { class: "panes" }, tables)) : null;
}

function listFigures({ figures, bounds }) {
  const rows = [["problems × answers", `${formatNumber(figures.n)} × ${formatNumber(figures.k ?? 1)}`, "", null]];
  const add = (label, value, ends, format = formatNumber) => {
    if (value == null) return;
    const percent = format === formatPercent;
    rows.push([label, format(value), ends ? formatBrackets(...ends, percent ? undefined : format) : "", value]);
  };
  add("right", figures.accuracy, [figures.ci_lo, figures.ci_hi], formatPercent);
  for (const [name, label] of Object.entries(EXTRACTIONS)) {
    const found = figures.accuracy_by?.[name];
    if (found) add(label, found.value, [found.ci_lo, found.ci_hi], formatPercent);
  }
  for (const [name, label] of Object.entries(SHARES)) add(label, figures[name], bounds[name], formatPercent);
  add("reward", figures.reward, bounds.reward);
  for (const [part, value] of Object.entries(figures.parts ?? {})) add(`reward: ${part}`, value, bounds[`reward/${part}`]);
  for (const [name, label] of Object.entries(MEANS)) add(label, figures[name], bounds[name]);
  for (const [name, label] of Object.entries(COUNTERS)) if (figures[name]) add(label, figures[name]);
  if (figures.temperature != null) add("temperature", figures.temperature);
  if (figures.judged_by) rows.push(["graded as", String(figures.judged_by), "", null]);
  return rows;
}

function showAll(reply) {
  const rows = listFigures(reply).map(([head, value, brackets]) => ({ head, cells: [[value, brackets ? [" ", h("small", { class: "inline" }, brackets)] : null]] }));
  return h("section", {}, h("h2", {}, "Figures"),
    showFigures({ caption: "Every figure with its 95 % interval", heads: ["", "value"], rows, kind: "figures plain" }),
    h("p", { class: "note" }, reply.figures.k > 1
      ? "Intervals are over problems: answers to one problem are not independent."
      : "Intervals of shares are Wilson's; those of means are Student's over problems."));
}

function listCopied(reply) {
  return { columns: ["figure", "value", "interval"], rows: listFigures(reply).map(([name, value, brackets, number]) => [name, number ?? value, brackets]) };
}

function buildKeys(where, { previous, next, rows }) {
  const leave = (step) => step != null && go(["run", where.run, "evaluation", String(step), where.task, where.decoding]);
  return {
    ArrowLeft: { about: "evaluation before", run: () => leave(previous) },
    ArrowRight: { about: "evaluation after", run: () => leave(next) },
    ...(rows ? { Enter: { about: "all problems and answers", run: () => go(["run", where.run, "eval", String(where.step), where.task, where.decoding]) } } : {}),
  };
}
