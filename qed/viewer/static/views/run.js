import { get } from "../api.js";
import { copyButton } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatDuration, formatInterval, formatNumber, formatTime } from "../format.js";
import { go, link } from "../router.js";
import { openNearest, renderCurves } from "./curves.js";
import { renderEvents } from "./events.js";
import { renderLogs } from "./logs.js";
import { renderSettings } from "./settings.js";
import { showStatus } from "./status.js";

const MOST_ALARMS = 3;
const TABS = { curves: renderCurves, settings: renderSettings, events: renderEvents, logs: renderLogs };

/** Show a run: its state and key figures, and its curves, settings, events or logs. */
export async function renderRun(context) {
  const [, key, tab = "curves"] = context.parts;
  const run = await get("run", { run: key }, context.signal);
  const view = { context, run, key, head: h("div", { class: "run-head" }) };
  replace(view.head, buildHead(view));
  const inner = await TABS[tab](context, run);
  const element = h("article", { class: "run-view" },
    h("h1", {}, run.card.key), view.head, buildLinks(view), buildTabs(key, tab), inner.element);
  return {
    title: run.card.key, element, dispose: inner.dispose,
    keys: { ...buildKeys(view), ...inner.keys },
    live: run.card.status === "live" ? {
      ...inner.live,
      status: ({ card }) => {
        run.card = card;
        replace(view.head, buildHead(view));
      },
      steps: ({ steps }) => {
        run.steps = steps;
        replace(view.steps, buildStepLinks(view));
        inner.live?.steps?.({ steps });
      },
    } : null,
  };
}

function buildHead(view) {
  const { card, command, phases } = view.run;
  const figures = [
    card.accuracy ? [`${card.accuracy.task}, ${card.accuracy.decoding}`, formatInterval(card.accuracy), `step ${formatNumber(card.accuracy.step)}, n = ${formatNumber(card.accuracy.n)}`] : null,
    card.first_accuracy && card.first_accuracy.step !== card.accuracy?.step
      ? ["at first", formatInterval(card.first_accuracy), `step ${formatNumber(card.first_accuracy.step)}`] : null,
    card.reward === null || card.reward === undefined ? null : ["mean reward", formatNumber(card.reward), "of the last step"],
    ["steps", card.planned ? `${formatNumber(card.step)} of ${formatNumber(card.planned)}` : formatNumber(card.step), phases.map((phase) => phase.label).join(", then ")],
    card.updated && card.started ? ["from start to end", formatDuration(card.updated - card.started), `until ${formatTime(card.updated)}${card.resumed ? ", pauses included" : ""}`] : null,
    card.tokens_per_s ? ["speed", `${formatNumber(Math.round(card.tokens_per_s))} tokens/s`, "of the last step"] : null,
  ].filter(Boolean);
  return [
    h("p", { class: "facts" }, showStatus(card), card.reason ? `: ${card.reason}` : "", ` · ${[card.method, card.model, card.task].filter(Boolean).join(" · ")}`,
      card.seed === null || card.seed === undefined ? "" : ` · seed ${card.seed}`),
    h("dl", { class: "tiles" }, figures.map(([name, value, below]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, below))))),
    buildAlarms(view),
    command ? h("div", { class: "command-line" }, h("code", {}, command), copyButton("Copy the command", () => command)) : null,
  ];
}

/** Show the last alarms; a run with many of them has the rest in its list of events. */
function buildAlarms({ key, run }) {
  const { alarms } = run.card;
  const rest = alarms.length - MOST_ALARMS;
  return [
    alarms.slice(-MOST_ALARMS).map((alarm) => h("p", { class: "trouble" }, `▲ step ${formatNumber(alarm.step)}: ${alarm.message || alarm.name}`)),
    rest > 0 ? h("p", {}, h("a", { href: link(["run", key, "events"], { q: "alarm" }) }, `${formatNumber(rest)} earlier alarms`)) : null,
  ];
}

function buildLinks(view) {
  const { key } = view;
  view.steps = h("ul", { class: "links" }, buildStepLinks(view));
  const places = [["Evaluations", "evaluations"], ["Problems", "problems"], ["Suspects", "suspects"]];
  return h("nav", { class: "places", "aria-label": "Parts of the run" }, view.steps,
    h("ul", { class: "links" }, places.map(([label, part]) => h("li", {}, h("a", { href: link(["run", key, part]) }, label))),
      h("li", {}, h("a", { href: link(["compare"], { run: key }) }, "Compare with another run"))));
}

function buildStepLinks(view) {
  const { steps, best_step: best } = view.run;
  if (!steps.length) return h("li", { class: "facts" }, "No answers of training steps were saved.");
  const open = (step) => link(["run", view.key, "step", String(step)]);
  const places = [["First step", steps[0]], ["Last step", steps[steps.length - 1]]];
  if (steps.includes(best)) places.push(["Best step", best]);
  const pick = h("input", {
    type: "number", min: String(steps[0]), max: String(steps[steps.length - 1]), "aria-label": "Answers of step", placeholder: "step",
    on: {
      change: (event) => openNearest(view.run, Number(event.target.value)),
    },
  });
  return [places.map(([label, step]) => h("li", {}, h("a", { href: open(step) }, `${label} (${formatNumber(step)})`))),
    h("li", {}, h("label", {}, "Answers of step ", pick))];
}

function buildTabs(key, tab) {
  const names = Object.keys(TABS);
  return h("nav", { class: "run-tabs", "aria-label": "Views of the run" }, names.map((name) => h("a", {
    href: link(name === "curves" ? ["run", key] : ["run", key, name]), "aria-current": name === tab ? "page" : null,
  }, name[0].toUpperCase() + name.slice(1))));
}

function buildKeys(view) {
  const { key, run } = view;
  return {
    ArrowRight: { about: "Open the first step with answers", run: () => openNearest(run, -1) },
    ArrowLeft: { about: "Open the last step with answers", run: () => openNearest(run, run.steps[run.steps.length - 1]) },
    e: { about: "Evaluations", run: () => go(["run", key, "evaluations"]) },
    p: { about: "Problems", run: () => go(["run", key, "problems"]) },
    s: { about: "Suspects", run: () => go(["run", key, "suspects"]) },
    c: { about: "Compare with another run", run: () => go(["compare"], { run: [run.card.key] }) },
  };
}
