import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { h, renderPieces, replace } from "../dom.js";
import { formatNumber, formatPercent } from "../format.js";
import { markText, revealMark } from "../marks.js";
import { go } from "../router.js";
import { renderTokens } from "./answer_tokens.js";
import { createGrading } from "./grading.js";
import {
  describeSource, formatSigned, makeButton, nameProblem, readAdvantage, showAnswer, showFlag, showNeighbours, showProblem, showRaw, showStop, showVerdict,
  toggleThoughts,
} from "./texts.js";
import { buildParts, followQuery, linkPlace, nameWhere, readPlace, readWhere } from "./where.js";

const TABS = { rendered: "Rendered", tokens: "Tokens", raw: "Raw" };
const KEPT = ["tab", "signal", "ids", "found"];

/** Show one answer: its figures, how it was graded, and its text as rendered, as tokens, or raw. */
export async function renderAnswer(given) {
  const context = followQuery(given);
  const where = readWhere(context.parts);
  const { group, answer } = readPlace(context.parts);
  const data = await get("answer", { ...where, group, answer }, context.signal);
  const view = { context, where, data, tabs: null };
  const grading = createGrading(where, data);
  view.tabs = createTabs(view);
  const name = `Answer ${answer + 1} of ${data.n_answers}`;
  const element = h("article", { class: "answer-view" },
    h("h1", {}, name),
    h("p", { class: "facts" }, `${nameWhere(where)} · `,
      h("a", { href: linkPlace(where, group) }, `problem ${data.group.place + 1}, all answers side by side`), " · ", nameProblem(where, data.group)),
    showMoves(view),
    showProblem({ ...data.group, gold_pieces: data.gold_pieces, question_pieces: data.group.question_pieces }),
    h("section", { class: "answer-facts" }, h("h2", {}, "Figures"), showFigures(data.answer), grading.element),
    showTurns(data),
    h("section", { class: "answer-text" }, h("h2", {}, data.answer.turns.length ? "Answer after all turns" : "Answer"), view.tabs.element));
  return {
    title: `${name} · ${nameWhere(where)}`, problem: data.group.place + 1, element, keys: buildKeys(view, grading), dispose: () => view.tabs.dispose(),
  };
}

function keepQuery(query) {
  return Object.fromEntries(KEPT.filter((name) => query[name]).map((name) => [name, query[name]]));
}

function findNeighbour(view, way) {
  const wanted = view.data.answer.answer + way;
  return wanted >= 0 && wanted < view.data.n_answers ? wanted : null;
}

function showMoves(view) {
  const { where, data, context } = view;
  const side = (way) => {
    const number = findNeighbour(view, way);
    return number === null ? null : {
      href: linkPlace(where, data.group.group, number, keepQuery(context.query)), label: `answer ${number + 1}`,
    };
  };
  return showNeighbours("Answers of the problem", side(-1), side(1));
}

function buildKeys(view, grading) {
  const move = (way) => {
    const number = findNeighbour(view, way);
    if (number !== null) go(buildParts(view.where, view.data.group.group, number), keepQuery(view.context.query));
  };
  const [previous, next] = [-1, 1].map((way) => ({
    about: `${way < 0 ? "previous" : "next"} answer of the problem`, run: () => move(way),
  }));
  return {
    "[": previous, "]": next, ArrowLeft: previous, ArrowRight: next,
    ...Object.fromEntries(Object.entries(TABS).map(([tab, label], at) => [
      String(at + 1), { about: `show the answer: ${label.toLowerCase()}`, run: () => view.tabs.show(tab) },
    ])),
    n: { about: "next extreme token", run: () => view.tabs.jump(1) },
    p: { about: "previous extreme token", run: () => view.tabs.jump(-1) },
    s: { about: "next token signal", run: () => view.tabs.cycle() },
    e: { about: "the grader's steps", run: () => grading.reveal() },
    o: { about: "open or close all thinking", run: () => toggleThoughts(view.tabs.element) },
  };
}

function showFigures(answer) {
  const facts = [
    ["verdict", showVerdict(answer.correct)],
    ["reward", answer.reward == null ? "–" : formatNumber(answer.reward)],
    ...Object.entries(answer.parts ?? {}).map(([name, value]) => [`reward: ${name}`, value == null ? "–" : formatNumber(value)]),
    ["advantage", formatSigned(readAdvantage(answer))],
    ["in format", showFlag(answer.format_ok)],
    ["tokens", answer.n_tokens == null ? "–" : formatNumber(answer.n_tokens)],
    ["ended", showStop(answer)],
    ["source", h("span", { title: describeSource(answer.source) }, answer.source ?? "–")],
    ["weights", answer.version == null ? null : `version ${answer.version}${answer.staleness ? `, ${answer.staleness} behind` : ""}`],
    ["given tokens", answer.given ? formatNumber(answer.given) : null],
    ["repeated 8-grams", answer.repetition == null ? null : formatPercent(answer.repetition)],
    ["rare tokens", answer.rare == null ? null : formatPercent(answer.rare)],
  ];
  return h("dl", { class: "fact-list" },
    facts.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Show the turns that an environment answered: what the policy wrote, and the reply, which is never trained on. */
function showTurns(data) {
  const turns = data.answer.turns;
  if (data.blocks.some((block) => block.text !== null)) return showBlocks(data.blocks, turns);
  if (!turns.length) return null;
  return h("section", { class: "answer-turns" }, h("h2", {}, "Turns"),
    turns.map((turn, number) => h("div", { class: "turn" },
      h("h3", {}, `Turn ${number + 1}${turn.reward ? `, reward ${formatNumber(turn.reward)}` : ""}`),
      showRaw(`turn ${number + 1}`, turn.text),
      h("h4", {}, "Reply of the environment"),
      showRaw(`reply ${number + 1}`, turn.reply))));
}

const AUTHORS = { policy: "The policy", given: "Given to the policy", environment: "The environment, never trained on" };

/** Show an answer divided by the masks of its tokens: who wrote what, with the reward of each turn that was answered. */
function showBlocks(blocks, turns) {
  let replies = 0;
  return h("section", { class: "answer-turns" }, h("h2", {}, "Turns"), blocks.map((block, number) => {
    const reward = block.author === "environment" ? turns[replies++]?.reward : 0;
    const facts = [AUTHORS[block.author], `${block.count.toLocaleString("en")} tokens`, reward ? `reward of the turn ${formatNumber(reward)}` : ""];
    return h("div", { class: `turn ${block.author}` },
      h("h3", {}, facts.filter(Boolean).join(" · ")), showRaw(`part ${number + 1}`, block.text));
  }));
}

function createTabs(view) {
  const { context } = view;
  const panel = h("div", { role: "tabpanel", id: "answer-panel", "aria-labelledby": "answer-tab", tabindex: "-1" });
  const bar = h("div", { role: "tablist", class: "tabs", "aria-label": "How to show the answer" });
  const shown = { tab: null, tokens: null };
  const found = h("div", { class: "found" });
  const show = (tab, focus = false) => {
    shown.tokens?.stop();
    shown.tab = tab;
    shown.tokens = tab === "tokens" ? renderTokens(view.data, context) : null;
    replace(panel, shown.tokens ? shown.tokens.element : SHOWN[tab](view.data));
    if (context.query.found) replace(found, shown.tokens ? null : showFound(panel, context.query.found));
    replace(bar, Object.entries(TABS).map(([name, label]) => makeTab(name, label, tab, show)));
    panel.setAttribute("aria-labelledby", `answer-tab-${tab}`);
    if (focus) bar.querySelector("[aria-selected=true]").focus();
    context.setQuery({ tab: tab === "rendered" ? null : tab });
  };
  bar.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    const names = Object.keys(TABS);
    show(names[(names.indexOf(shown.tab) + way + names.length) % names.length], true);
  });
  show(context.query.tab in TABS ? context.query.tab : "rendered");
  const withTokens = (act) => {
    if (shown.tab !== "tokens") show("tokens");
    act(shown.tokens);
  };
  return {
    element: h("div", {}, bar, found, panel), show,
    jump: (way) => withTokens((tokens) => tokens.jump(way)), cycle: () => withTokens((tokens) => tokens.cycle()),
    dispose: () => shown.tokens?.stop(),
  };
}

/** Mark what a search found, and jump from one place to the next. */
function showFound(panel, text) {
  const marks = markText(panel, text);
  let at = -1;
  const next = () => {
    at = (at + 1) % marks.length;
    revealMark(marks[at]);
  };
  const count = marks.length ? `Found in ${formatNumber(marks.length)} ${marks.length === 1 ? "place" : "places"}: ` : "Not in what is shown here; Raw shows every character: ";
  return h("p", { class: "note" }, count, h("mark", {}, text), " ", marks.length ? makeButton("Next place", next, { class: "small" }) : null);
}

function makeTab(name, label, current, show) {
  return h("button", {
    type: "button", role: "tab", id: `answer-tab-${name}`, "aria-controls": "answer-panel",
    "aria-selected": String(name === current), tabindex: name === current ? "0" : "-1", on: { click: () => show(name, true) },
  }, label);
}

const SHOWN = {
  rendered: (data) => [
    showAnswer(data.answer),
    h("details", { class: "prompt" }, h("summary", {}, "prompt"), h("div", { class: "text" }, renderPieces(data.prompt_pieces ?? []))),
  ],
  raw: (data) => [
    h("h3", {}, "Prompt"), showRaw("Prompt", data.prompt),
    h("h3", {}, "Answer"), showRaw("Answer", data.answer.text),
    h("p", { class: "note" }, "Control and other invisible characters are drawn as symbols."),
    copyButtons({
      name: "the answer",
      json: () => ({ ...data.answer, prompt: data.prompt, tokens: data.tokens }),
      rows: () => ({ columns: ["prompt", "text", "extracted", "gold"], rows: [[data.prompt, data.answer.text, data.answer.extracted, data.group.gold]] }),
    }),
  ],
};
