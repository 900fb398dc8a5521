import { clean, h, replace } from "../dom.js";
import { formatNumber } from "../format.js";
import { SIGNALS, buildScale, describeMask, isSampled, isTrained, listClasses, listSteps, nameSignal } from "./signals.js";

const FIRST_CHUNK = 1200;
const NEXT_CHUNK = 2500;
const EMPTY = "◌";
const MOST_TEXT = 40;
const MASKS = [
  ["trained", "sampled, in the loss"], ["untrained", "sampled, not in the loss"],
  ["trained given", "not sampled, in the loss"], ["untrained given", "not sampled, not in the loss"],
];

/**
 * Show the tokens of an answer as one text whose colours are a signal.
 *
 * `data` is the reply of `answer`; `onSelect(index)` and `onHover(index|null)` report the token under the cursor.
 * Returns {element, select(index), setSignal(name), selected(), stop()}. Long answers are built in chunks between frames until
 * `stop`; one listener of each kind serves all tokens.
 */
export function createTokens({ data, signal, onSelect, onHover }) {
  const count = data.tokens.length;
  const spans = [];
  const list = h("div", {
    class: "tokens", role: "listbox", tabindex: "0", "aria-label": "Tokens of the answer; arrow keys move from token to token",
  });
  const state = { signal, chosen: -1, scale: null, stopped: false };

  const build = (until) => {
    const added = [];
    for (let index = spans.length; index < Math.min(until, count); index += 1) {
      const span = buildToken(data, index);
      span.className = colourToken(data, state, index);
      spans.push(span);
      added.push(span);
    }
    list.append(...added);
    if (spans.length < count) requestAnimationFrame(() => state.stopped || build(spans.length + NEXT_CHUNK));
  };
  const setSignal = (name) => {
    state.signal = name;
    state.scale = name in data.signals ? buildScale(name, data.scales?.[name]) : null;
    spans.forEach((span, index) => {
      span.className = colourToken(data, state, index);
    });
  };
  const select = (index, { focus = false } = {}) => {
    if (count === 0) return;
    const wanted = Math.max(0, Math.min(count - 1, index));
    if (wanted >= spans.length) build(wanted + 1);
    const old = spans[state.chosen];
    if (old) for (const name of ["aria-selected", "aria-label"]) old.removeAttribute(name);
    state.chosen = wanted;
    const span = spans[wanted];
    if (old) old.className = colourToken(data, state, Number(old.dataset.index));
    span.className = colourToken(data, state, wanted);
    span.setAttribute("aria-selected", "true");
    span.setAttribute("aria-label", describeToken(data, wanted));
    list.setAttribute("aria-activedescendant", span.id);
    if (focus) list.focus({ preventScroll: true });
    scrollWithin(list, span);
    onSelect(wanted);
  };
  const find = (event) => {
    const span = event.target.closest?.(".tok");
    return span ? Number(span.dataset.index) : null;
  };
  list.addEventListener("pointerover", (event) => onHover(find(event)));
  list.addEventListener("pointerleave", () => onHover(null));
  list.addEventListener("click", (event) => {
    const index = find(event);
    if (index !== null) select(index);
  });
  list.addEventListener("focus", () => state.chosen < 0 && select(0));
  list.addEventListener("keydown", (event) => {
    const target = readMove(event, spans, state.chosen, count);
    if (target === null) return;
    event.preventDefault();
    event.stopPropagation();
    select(target);
  });

  setSignal(signal);
  build(FIRST_CHUNK);
  return { element: list, select, setSignal, selected: () => state.chosen, stop: () => (state.stopped = true) };
}

function buildToken(data, index) {
  const text = data.pieces ? data.pieces[index] : String(data.tokens[index]);
  return h("span", {
    id: `token-${index}`, role: "option", dataset: { index: String(index), id: String(data.tokens[index]) },
  }, showToken(text));
}

/** Show the text of a token: line ends are marked, and a token without text is a dotted circle. */
export function showToken(text) {
  return text === "" ? EMPTY : text.replace(/\r?\n/g, "↵\n");
}

function colourToken(data, state, index) {
  const chosen = index === state.chosen ? " chosen" : "";
  if (state.signal === "mask") {
    const sampled = isSampled(data.masks, index) ? "" : " given";
    return `tok mask ${isTrained(data.masks, index) ? "trained" : "untrained"}${sampled}${chosen}`;
  }
  if (!isTrained(data.masks, index)) return `tok masked${chosen}`;
  if (!state.scale) return `tok${chosen}`;
  return `tok ${listClasses(data.signals[state.signal][index], state.scale)}${chosen}`;
}

function readMove(event, spans, chosen, count) {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -100, PageDown: 100, Home: -count, End: count };
  if (event.key in steps) return chosen + steps[event.key];
  if (event.key === "ArrowUp" || event.key === "ArrowDown") return findLine(spans, chosen, event.key === "ArrowDown" ? 1 : -1);
  return null;
}

/** Find the token above or below: the one nearest to the chosen one's left edge in the neighbouring line. */
function findLine(spans, chosen, way) {
  const here = spans[chosen]?.getClientRects()[0];
  if (!here) return 0;
  let best = chosen;
  let line = null;
  for (let index = chosen + way; index >= 0 && index < spans.length; index += way) {
    const box = spans[index].getClientRects()[0];
    if (!box || Math.abs(box.top - here.top) < here.height / 2) continue;
    if (line === null) line = box.top;
    if (Math.abs(box.top - line) > here.height / 2) break;
    const nearer = (at) => Math.abs(spans[at].getClientRects()[0].left - here.left);
    if (best === chosen || nearer(index) < nearer(best)) best = index;
  }
  return best;
}

function scrollWithin(list, span) {
  const box = span.getBoundingClientRect();
  const frame = list.getBoundingClientRect();
  if (box.top < frame.top || box.bottom > frame.bottom) {
    list.scrollTop += box.top - frame.top - (frame.height - box.height) / 2;
  }
}

/** Describe a token with all of its figures, in one line. */
export function describeToken(data, index) {
  const text = data.pieces ? JSON.stringify(clean(data.pieces[index])) : "";
  const figures = listFigures(data, index).map(([name, value]) => `${nameSignal(name)} ${value}`);
  return [`token ${index + 1} of ${data.tokens.length}`, `id ${data.tokens[index]}`, text, ...figures].filter(Boolean).join(", ");
}

function listFigures(data, index) {
  const names = Object.keys(data.signals);
  const figures = names.map((name) => [name, formatExact(data.signals[name][index])]);
  return [...figures, ["mask", describeMask(data.masks, index)]];
}

function formatExact(value) {
  if (value == null) return "–";
  return Math.abs(value) >= 1e-4 || value === 0 ? String(Number(value.toFixed(6))) : value.toExponential(3);
}

/** Fill the read-out: position, id and text of a token, the raw value of each signal, and the likeliest alternatives. */
export function showReadout(readout, data, index, signal) {
  if (index === null || index < 0 || index >= data.tokens.length) {
    replace(readout, h("p", { class: "note" }, "Point at a token, or move with the arrow keys, to read its figures."));
    return;
  }
  const head = h("p", { class: "token-name" },
    `token ${index + 1} of ${data.tokens.length}, id ${data.tokens[index]}`, data.pieces ? h("code", {}, showToken(data.pieces[index])) : null);
  const figures = listFigures(data, index).map(([name, value]) =>
    h("div", { class: name === signal ? "current" : "" }, h("dt", { title: SIGNALS[name]?.about ?? "" }, nameSignal(name)), h("dd", {}, value)));
  replace(readout, head, h("dl", { class: "token-figures" }, figures), showAlternatives(data, index));
}

function showAlternatives(data, index) {
  const list = data.top?.[index];
  if (!list?.length) return null;
  const chosen = data.tokens[index];
  const rows = list.map(({ id, text, logp }) =>
    h("tr", { class: id === chosen ? "chosen" : "" },
      h("th", { scope: "row" }, h("code", {}, showToken(text ?? String(id)).slice(0, MOST_TEXT)), id === chosen ? " (sampled)" : ""),
      h("td", {}, String(id)), h("td", {}, formatExact(logp)), h("td", {}, `${formatNumber(100 * Math.exp(logp))} %`)));
  const outside = list.some(({ id }) => id === chosen) ? "" : " The sampled token is not among them.";
  return h("table", { class: "alternatives" },
    h("caption", {}, `The ${list.length} likeliest tokens here.${outside}`),
    h("thead", {}, h("tr", {}, ["token", "id", "log-prob", "share"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows));
}

/** Build the legend of a signal: a swatch and a number for each step of the scale, and what masked tokens look like. */
export function showLegend(data, signal) {
  if (signal === "mask") {
    return h("ul", { class: "heat-legend" }, MASKS.map(([kind, label]) => h("li", {}, h("span", { class: `tok mask ${kind}` }, "ab"), ` ${label}`)));
  }
  if (!(signal in data.signals)) return null;
  const scale = buildScale(signal, data.scales?.[signal]);
  const steps = listSteps(scale).map(({ classes, value }) =>
    h("li", {}, h("span", { class: `tok ${classes}` }, formatNumber(value))));
  return h("ul", { class: "heat-legend", "aria-label": `Scale of ${nameSignal(signal)}` },
    h("li", { class: "name" }, nameSignal(signal)), steps,
    h("li", {}, h("span", { class: "tok heat s0 beyond" }, "ab"), " beyond the scale"),
    h("li", {}, h("span", { class: "tok masked" }, "ab"), " not in the loss"));
}
