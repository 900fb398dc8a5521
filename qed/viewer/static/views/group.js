import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatNumber } from "../format.js";
import { go } from "../router.js";
import { createDifference } from "./difference.js";
import { isFlat, nameRate, readRate, sortRows } from "./filters.js";
import {
  describeSource, isWritten, makeButton, makeSelect, nameProblem, readAdvantage, showAnswer, showBar, showNeighbours, showProblem, showStop, showVerdict,
  toggleThoughts,
} from "./texts.js";
import { buildParts, followQuery, linkPlace, nameWhere, readPlace, readWhere } from "./where.js";

const ORDERS = {
  answer: { label: "as written", read: (row) => row.answer, down: false },
  reward: { label: "best first", read: (row) => row.reward, down: true },
  worst: { label: "worst first", read: (row) => row.reward, down: false },
  tokens: { label: "longest first", read: (row) => row.n_tokens, down: true },
};

/** Show all answers of one problem side by side, and the difference of any two texts. */
export async function renderGroup(given) {
  const context = followQuery(given);
  const where = readWhere(context.parts);
  const { group: number } = readPlace(context.parts);
  const data = await get("group", { ...where, group: number }, context.signal);
  const { group, answers } = data;
  const view = { context, where, data, cards: new Map(), at: -1 };
  const difference = createDifference({ context, data });
  const columns = h("div", { class: "columns" });
  const order = (name) => {
    const { read, down } = ORDERS[name] ?? ORDERS.answer;
    view.order = sortRows(answers, read, down);
    replace(columns, view.order.map((answer) => showCard(view, answer, difference)));
  };
  order(context.query.order);
  const picker = makeSelect("Order", Object.entries(ORDERS).map(([name, { label }]) => [name, label]), context.query.order ?? "answer", (name) => {
    context.setQuery({ order: name === "answer" ? null : name });
    order(name);
  });
  const name = `Problem ${group.place + 1}`;
  const element = h("article", { class: "group-view" },
    h("h1", {}, name),
    h("p", { class: "facts" }, h("a", { href: linkPlace(where) }, nameWhere(where)), " · ", nameProblem(where, group), ...describeGroup(group)),
    showMoves(view),
    showProblem(group, { prompt: group.prompt, demonstration: answers.find(isWritten)?.pieces }),
    h("div", { class: "group-tools" }, picker, makeButton("Open or close all thinking", () => toggleThoughts(columns), { class: "small" })),
    difference.element,
    h("section", {}, h("h2", {}, `${answers.length} ${answers.length === 1 ? "answer" : "answers"}`),
      data.left_out ? h("p", { class: "note" }, `${formatNumber(data.left_out)} more answers of this problem are only in the table of the step.`) : null, columns),
    copyButtons({ name: "the group", json: () => data, rows: () => listRows(data) }));
  return { title: `${name} · ${nameWhere(where)}`, problem: group.place + 1, element, keys: buildKeys(view, columns) };
}

function describeGroup(group) {
  const facts = [
    group.subject ?? null, group.level == null ? null : `level ${group.level}`, group.data_source ?? null,
    group.n == null ? null : readRate(group) == null ? nameRate(group) : `${nameRate(group)} right`,
    group.n > group.n_graded && group.n_graded ? `${group.n - group.n_graded} not graded` : null,
    group.reward_mean == null ? null : `mean reward ${formatNumber(group.reward_mean)}`,
    isFlat(group) ? "all rewards are equal: no signal" : null,
  ];
  return facts.filter((fact) => fact !== null).map((fact) => ` · ${fact}`);
}

function keepQuery(query) {
  return query.order ? { order: query.order } : {};
}

function showMoves({ where, data, context }) {
  const side = (group, way) => (group == null ? null
    : { href: linkPlace(where, group, null, keepQuery(context.query)), label: `problem ${data.group.place + 1 + way}` });
  return showNeighbours("Problems of the step", side(data.previous, -1), side(data.next, 1));
}

function showCard(view, answer, difference) {
  const { where, data } = view;
  const rewards = data.answers.map((row) => row.reward).filter((value) => value != null);
  const reach = Math.max(...data.answers.map((row) => Math.abs(readAdvantage(row) ?? 0)), 1e-9);
  const kind = answer.correct == null ? "" : answer.correct ? "right" : "wrong";
  const head = h("h3", {},
    h("a", { href: linkPlace(where, answer.group, answer.answer) }, `Answer ${answer.answer + 1}`), " ", showVerdict(answer.correct));
  const card = h("article", { class: `column answer ${kind}`, tabindex: "-1", "aria-label": `Answer ${answer.answer + 1}` },
    head,
    showBar("reward", answer.reward, [Math.min(...rewards, 0), Math.max(...rewards, 0)], kind),
    data.answers.some((row) => readAdvantage(row) !== null) ? showBar("advantage", readAdvantage(answer), [-reach, reach], "signed") : null,
    h("p", { class: "facts" }, ...listFacts(answer)),
    h("p", { class: "facts" }, "extracted ", h("code", {}, answer.extracted ?? "nothing"), answer.reason ? ` · ${answer.reason}` : ""),
    h("div", { class: "column-text", tabindex: "0", role: "region", "aria-label": `Text of answer ${answer.answer + 1}` }, showAnswer(answer)),
    difference.showButtons(answer.answer));
  view.cards.set(answer.answer, card);
  card.addEventListener("focusin", () => (view.at = view.order.indexOf(answer)));
  return card;
}

function listFacts(answer) {
  const facts = [
    `${answer.n_tokens == null ? "–" : formatNumber(answer.n_tokens)} tokens`, showStop(answer),
    h("span", { title: describeSource(answer.source) }, answer.source ?? "source not recorded"),
    answer.format_ok === false ? "not in format" : null,
    answer.version == null ? null : `version ${answer.version}${answer.staleness ? ` (${answer.staleness} behind)` : ""}`,
    answer.given ? `${answer.given} tokens given` : null,
  ];
  return facts.filter((fact) => fact !== null).flatMap((fact, at) => (at ? [" · ", fact] : [fact]));
}

function buildKeys(view, columns) {
  const { where, data, context } = view;
  const leave = (group) => group != null && go(buildParts(where, group), keepQuery(context.query));
  const focus = (way) => {
    view.at = Math.max(0, Math.min(view.order.length - 1, view.at + way));
    const card = view.cards.get(view.order[view.at]?.answer);
    card?.focus({ preventScroll: true });
    card?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const next = { about: "next answer", run: () => focus(1) };
  const previous = { about: "previous answer", run: () => focus(-1) };
  return {
    "]": next, "[": previous, j: next, k: previous,
    Enter: { about: "open the answer", run: () => view.at >= 0 && go(buildParts(where, data.group.group, view.order[view.at].answer)) },
    ArrowLeft: { about: "previous problem", run: () => leave(data.previous) },
    ArrowRight: { about: "next problem", run: () => leave(data.next) },
    o: { about: "open or close all thinking", run: () => toggleThoughts(columns) },
  };
}

function listRows({ group, answers }) {
  const parts = [...new Set(answers.flatMap((answer) => Object.keys(answer.parts ?? {})))];
  const columns = ["answer", "reward", ...parts, "advantage", "correct", "format_ok", "n_tokens", "stop_reason", "source", "version", "extracted", "text"];
  const rows = answers.map((answer) => columns.map((name) => {
    if (name === "advantage") return readAdvantage(answer);
    return (parts.includes(name) ? answer.parts?.[name] : answer[name]) ?? "";
  }));
  return { columns: ["problem", ...columns], rows: rows.map((row) => [group.id, ...row]) };
}
