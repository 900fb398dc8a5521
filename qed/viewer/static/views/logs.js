import { get, isStatic } from "../api.js";
import { h, replace } from "../dom.js";
import { formatBytes } from "../format.js";

const REFRESH = 2000; // milliseconds between two polls of the end of a log

/** Show the logs of a run, by attempt and rank: the end first, earlier parts on request. */
export async function renderLogs(context, run) {
  const attempts = run.attempts;
  if (!attempts.length) return { element: h("p", { class: "empty" }, "The run has no logs.") };
  const last = attempts[attempts.length - 1];
  const view = {
    context, run, attempt: Number(context.query.attempt ?? last.attempt), name: context.query.name ?? last.logs[0]?.name ?? "",
    text: h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log" }), facts: h("span", { class: "facts" }), start: 0, number: 0, timer: null,
  };
  view.earlier = h("button", { type: "button", on: { click: () => loadEarlier(view) } }, "Earlier");
  const follow = h("input", { type: "checkbox", on: { change: (event) => setFollow(view, event.target.checked) } });
  const element = h("section", { class: "logs" },
    h("div", { class: "bar" }, buildPicker(view, attempts), view.earlier, isStatic() ? null : h("label", {}, follow, " Follow the end"), view.facts), view.text);
  await load(view);
  return { element, dispose: () => clearTimeout(view.timer) };
}

function buildPicker(view, attempts) {
  const options = attempts.flatMap(({ attempt, logs }) => logs.map((log) => ({ attempt, ...log })));
  const pick = (event) => {
    const chosen = options[Number(event.target.value)];
    view.attempt = chosen.attempt;
    view.name = chosen.name;
    view.start = 0;
    replace(view.text);
    view.context.setQuery({ attempt: String(view.attempt), name: view.name });
    load(view);
  };
  return h("label", {}, "Log ", h("select", { on: { change: pick } }, options.map((one, at) => h("option", {
    value: String(at), selected: one.attempt === view.attempt && one.name === view.name,
  }, `attempt ${one.attempt}, ${one.name} (${formatBytes(one.bytes)})`))));
}

async function load(view) {
  const part = await ask(view);
  if (!part) return;
  replace(view.text, part.text);
  // At first the log is not in the page and has no height.
  requestAnimationFrame(() => { view.text.scrollTop = view.text.scrollHeight; });
}

async function loadEarlier(view) {
  const height = view.text.scrollHeight;
  const part = await ask(view, view.start);
  if (!part) return;
  view.text.prepend(h("span", {}, part.text));
  view.text.scrollTop = view.text.scrollHeight - height;
}

/** Request a part of the log, and show which it is; null if it cannot be read, or another part was requested since. */
async function ask(view, end) {
  view.number += 1;
  const own = view.number;
  try {
    const part = await get("log", { run: view.run.card.key, attempt: view.attempt, name: view.name, end }, view.context.signal);
    if (own !== view.number) return null;
    view.start = part.start;
    view.earlier.disabled = part.start <= 0;
    const size = formatBytes(part.bytes);
    replace(view.facts, part.start > 0 ? `from byte ${part.start.toLocaleString("en-US")} of ${size}` : size);
    return part;
  } catch (error) {
    if (own !== view.number || error.name === "AbortError") return null;
    view.earlier.disabled = view.start <= 0;
    replace(view.facts, h("span", { class: "trouble", role: "alert" }, error.message));
    return null;
  }
}

function setFollow(view, on) {
  clearTimeout(view.timer);
  view.follows = on;
  if (!on) return;
  view.timer = setTimeout(async () => {
    await load(view);
    if (view.follows && !view.context.signal?.aborted) setFollow(view, true);
  }, REFRESH);
}
