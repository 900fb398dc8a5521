import { signalPlot } from "../chart.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { SIGNALS, buildScale, hideMasked, nameSignal, rankExtremes } from "./signals.js";
import { makeButton, makeSelect } from "./texts.js";
import { createTokens, showLegend, showReadout } from "./tokens.js";

/** Milliseconds after which a token counts as chosen: a held arrow key passes thousands, and browsers limit address changes. */
const SETTLED = 100;

/**
 * Show the tokens of an answer with a signal as colour, its chart, its extremes and a read-out.
 *
 * Returns {element, jump(way), cycle(), stop()}; the signal and the chosen token are kept in the URL.
 */
export function renderTokens(data, context) {
  const names = listSignals(data);
  const first = names.includes(context.query.signal) ? context.query.signal : names[0] ?? "none";
  const state = { signal: first, rank: [], at: -1 };
  const places = {
    legend: h("div", { class: "legend-place" }), plot: h("div", { class: "plot-place" }), readout: h("div", { class: "token-readout" }),
    picker: h("div", { class: "picker-place" }),
  };
  const follow = { timer: null, plot: null };
  const tokens = createTokens({
    data, signal: first,
    onSelect: (index) => {
      showReadout(places.readout, data, index, state.signal);
      clearTimeout(follow.timer);
      follow.timer = setTimeout(() => {
        follow.plot?.update(index);
        context.setQuery({ token: String(index) });
      }, SETTLED);
    },
    onHover: (index) => showReadout(places.readout, data, index ?? tokens.selected(), state.signal),
  });
  const drawPlot = () => {
    const values = data.signals[state.signal];
    const label = `${nameSignal(state.signal)} against position`;
    follow.plot = values ? signalPlot({ values: hideMasked(values, data.masks), index: tokens.selected(), label, onPick: (at) => tokens.select(at) }) : null;
    replace(places.plot, follow.plot?.element);
  };
  const choose = (name) => {
    state.signal = name;
    state.at = -1;
    const values = data.signals[name];
    state.rank = values ? rankExtremes(values, buildScale(name, data.scales?.[name]), data.masks) : [];
    tokens.setSignal(name);
    replace(places.legend, showLegend(data, name), describeSignal(name));
    replace(places.picker, makeSelect("Colour", listChoices(data, names), name, choose));
    showReadout(places.readout, data, tokens.selected(), name);
    drawPlot();
    context.setQuery({ signal: name === names[0] ? null : name });
  };
  const jump = (way) => {
    if (state.rank.length === 0) return;
    state.at = Math.max(0, Math.min(state.rank.length - 1, state.at + way));
    tokens.select(state.rank[state.at], { focus: true });
  };
  const cycle = () => names.length && choose(names[(names.indexOf(state.signal) + 1) % names.length]);
  choose(first);
  if (context.query.token) requestAnimationFrame(() => tokens.select(Number(context.query.token)));
  const stop = () => {
    clearTimeout(follow.timer);
    tokens.stop();
  };
  return { element: layOut({ data, context, tokens, places, jump }), jump, cycle, stop };
}

function listSignals(data) {
  const known = Object.keys(SIGNALS).filter((name) => name in data.signals && data.signals[name].some((value) => value != null));
  const others = Object.keys(data.signals).filter((name) => !(name in SIGNALS));
  return [...known, ...others, "mask"];
}

/** The signals that can be shown, then those that this run did not record, so that their absence is visible. */
function listChoices(data, names) {
  const missing = Object.keys(SIGNALS).filter((name) => !names.includes(name));
  return [...names.map((name) => [name, nameSignal(name)]), ...missing.map((name) => [name, `${nameSignal(name)} (not recorded)`, true])];
}

function describeSignal(name) {
  return SIGNALS[name] ? h("p", { class: "note" }, `${nameSignal(name)}: ${SIGNALS[name].about}.`) : null;
}

function layOut({ data, context, tokens, places, jump }) {
  tokens.element.classList.toggle("with-ids", context.query.ids === "1");
  const ids = h("input", {
    type: "checkbox",
    on: {
      change: (event) => {
        tokens.element.classList.toggle("with-ids", event.target.checked);
        context.setQuery({ ids: event.target.checked ? "1" : null });
      },
    },
  });
  ids.checked = context.query.ids === "1";
  const controls = h("div", { class: "token-controls" },
    places.picker, h("label", { class: "check" }, ids, " ids"),
    makeButton("← less extreme", () => jump(-1), { class: "small" }), makeButton("most extreme, next →", () => jump(1), { class: "small" }));
  const notes = (data.notes ?? []).map((note) => h("p", { class: "note" }, note));
  const unread = data.pieces ? null : h("p", { class: "note" }, "The run has no tokenizer file, so tokens are shown by their ids.");
  return h("div", { class: "token-view" },
    controls, places.legend, places.plot,
    h("div", { class: "token-panes" }, tokens.element, places.readout), unread, notes,
    copyButtons({
      name: "the tokens",
      json: () => ({ tokens: data.tokens, pieces: data.pieces, signals: data.signals, masks: data.masks, top: data.top }),
      rows: () => listRows(data),
    }));
}

function listRows(data) {
  const names = Object.keys(data.signals);
  const columns = ["position", "id", "text", ...names, "sampled", "loss"];
  const rows = data.tokens.map((id, index) => [
    index, id, data.pieces?.[index] ?? "", ...names.map((name) => data.signals[name][index]),
    data.masks?.sampled?.[index] ?? "", data.masks?.loss?.[index] ?? "",
  ]);
  return { columns, rows };
}
