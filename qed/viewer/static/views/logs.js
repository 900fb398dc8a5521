import { get, isStatic } from "../api.js";
import { h, replace } from "../dom.js";
import { formatBytes } from "../format.js";

const REFRESH = 2000; // milliseconds between two looks at the end of a log

/** Show the logs of a run, by attempt and rank: the end first, earlier parts on request. */
export async function renderLogs(context, run) {
  const attempts = run.attempts;
  if (!attempts.length) return { element: h("p", { class: "empty" }, "The run has no logs.") };
  const last = attempts[attempts.length - 1];
  const view = {
    context, run, attempt: Number(context.query.attempt ?? last.attempt), name: context.query.name ?? last.logs[0]?.name ?? "",
    text: h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log" }), facts: h("span", { class: "facts" }), start: 0, end: 0, timer: null,
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
    view.context.setQuery({ attempt: String(view.attempt), name: view.name });
    load(view);
  };
  return h("label", {}, "Log ", h("select", { on: { change: pick } }, options.map((one, at) => h("option", {
    value: String(at), selected: one.attempt === view.attempt && one.name === view.name,
  }, `attempt ${one.attempt}, ${one.name} (${formatBytes(one.bytes)})`))));
}

async function load(view) {
  await show(view, await ask(view));
  // At first the log is not in the page, and has no height.
  requestAnimationFrame(() => { view.text.scrollTop = view.text.scrollHeight; });
}

function ask(view, end) {
  return get("log", { run: view.run.card.key, attempt: view.attempt, name: view.name, end }, view.context.signal);
}

async function show(view, part) {
  view.start = part.start;
  view.end = part.end;
  replace(view.text, part.text);
  describe(view, part.bytes);
}

async function loadEarlier(view) {
  const height = view.text.scrollHeight;
  const part = await ask(view, view.start);
  view.start = part.start;
  view.text.prepend(h("span", {}, part.text));
  view.text.scrollTop = view.text.scrollHeight - height;
  describe(view, part.bytes);
}

function describe(view, bytes) {
  view.earlier.disabled = view.start <= 0;
  replace(view.facts, view.start > 0 ? `from byte ${view.start.toLocaleString("en-US")} of ${formatBytes(bytes)}` : formatBytes(bytes));
}

function setFollow(view, on) {
  clearTimeout(view.timer);
  if (!on) return;
  view.timer = setTimeout(async () => {
    try {
      await load(view);
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    setFollow(view, true);
  }, REFRESH);
}
