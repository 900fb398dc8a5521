/* The frame of the page: which view an address shows, the path above it, keys, theme, loading and errors. */

import { isStatic, listen, listNotes } from "./api.js";
import { h, replace } from "./dom.js";
import { bindKeys, showKeys } from "./keys.js";
import { changeQuery, go, link, parse } from "./router.js";
import { readTheme, setTheme, nextTheme } from "./theme.js";
import { renderAnswer } from "./views/answer.js";
import { renderCompare } from "./views/compare.js";
import { renderEvaluation } from "./views/evaluation.js";
import { renderEvaluations } from "./views/evaluations.js";
import { renderGroup } from "./views/group.js";
import { renderProblem } from "./views/problem.js";
import { renderProblems } from "./views/problems.js";
import { renderRun } from "./views/run.js";
import { renderRuns } from "./views/runs.js";
import { renderStep } from "./views/step.js";
import { renderSuspects } from "./views/suspects.js";

const OF_RUN = {
  problems: renderProblems, problem: renderProblem, suspects: renderSuspects, evaluations: renderEvaluations,
  evaluation: renderEvaluation, settings: renderRun, events: renderRun, logs: renderRun,
};

/** Start the viewer in an element, the body of the page. */
export function startApp(body) {
  setTheme(readTheme());
  const places = {
    path: h("nav", { class: "path", "aria-label": "Path" }),
    tools: h("div", { class: "tools" }),
    main: h("main", { tabindex: "-1" }),
    status: h("p", { class: "loading", role: "status" }),
  };
  // Remove what the page shows until its scripts are loaded, but not the data of a static copy.
  body.querySelectorAll(":scope > header, :scope > main").forEach((element) => element.remove());
  body.append(
    h("a", { class: "skip", href: "#/", on: { click: (event) => skipTo(event, places.main) } }, "Skip to the content"),
    h("header", { class: "top" }, places.path, places.status, places.tools), places.main);
  const app = { places, keys: null, shown: null, turn: 0 };
  app.keys = bindKeys(buildKeys(app));
  replace(places.tools, buildTools(app));
  window.addEventListener("hashchange", () => show(app));
  return show(app);
}

/** Choose the view of an address: the function that renders it, or null. */
export function chooseView(parts) {
  if (!parts.length) return renderRuns;
  if (parts[0] === "compare" && parts.length === 1) return renderCompare;
  if (parts[0] !== "run" || parts.length < 2) return null;
  if (parts.length === 2) return renderRun;
  if (parts[2] === "step") return chooseAnswers(parts.slice(4), parts.length);
  if (parts[2] === "eval") return chooseAnswers(parts.slice(6), parts.length - 2);
  return OF_RUN[parts[2]] ?? null;
}

function chooseAnswers(rest, length) {
  if (length < 4) return null;
  if (rest[0] === "group" && rest[2] === "answer") return renderAnswer;
  return rest[0] === "group" ? renderGroup : renderStep;
}

async function show(app) {
  const turn = ++app.turn;
  leave(app);
  const { parts, query } = parse(window.location.hash);
  const { main, path, status } = app.places;
  const controller = new AbortController();
  app.shown = { controller, stops: [] };
  replace(path, buildPath(parts));
  main.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => replace(status, "Loading …"), 150);
  try {
    const render = chooseView(parts);
    if (!render) throw new Error("The viewer has no such page.");
    const view = await render({ parts, query, setQuery: changeQuery, signal: controller.signal });
    if (turn !== app.turn) {
      view.dispose?.();
      return;
    }
    place(app, view, parts);
  } catch (error) {
    if (turn !== app.turn || error.name === "AbortError") return;
    app.keys.setKeys({});
    document.title = "qed view";
    replace(main, h("h1", {}, "Nothing to show"), h("p", { class: "trouble", role: "alert" }, error.message),
      h("p", {}, h("a", { href: "#/" }, "All runs")));
    focusHeading(main);
  } finally {
    clearTimeout(slow);
    if (turn === app.turn) {
      replace(status);
      main.removeAttribute("aria-busy");
    }
  }
}

function place(app, view, parts) {
  const { main } = app.places;
  replace(main, buildNotes(), view.element);
  if (view.problem !== undefined) replace(app.places.path, buildPath(parts, view.problem));
  document.title = parts.length ? `${view.title} – qed view` : "qed view";
  app.keys.setKeys(view.keys);
  app.shown.stops.push(() => view.dispose?.());
  if (view.live && parts[0] === "run") app.shown.stops.push(listen(parts[1], view.live));
  window.scrollTo(0, 0);
  focusHeading(main);
}

function focusHeading(main) {
  const heading = main.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  heading?.focus({ preventScroll: true });
}

function leave(app) {
  app.shown?.controller.abort();
  for (const stop of app.shown?.stops ?? []) stop();
  app.shown = null;
}

function buildNotes() {
  const notes = isStatic() ? listNotes() : [];
  return notes.length ? h("aside", { class: "note copy-note" }, notes.map((note) => h("p", {}, note))) : null;
}

/** Build the path to a page; `problem` is the number of its problem within the step, once it is known. */
function buildPath(parts, problem = "") {
  const steps = [["Runs", []]];
  if (parts[0] === "compare") steps.push(["Compare", ["compare"]]);
  if (parts[0] === "run" && parts.length > 1) steps.push([parts[1], parts.slice(0, 2)], ...nameInside(parts, problem));
  return h("ol", {}, steps.map(([label, to], at) => {
    const last = at === steps.length - 1;
    return h("li", {}, last ? h("span", { "aria-current": "page" }, label) : h("a", { href: link(to) }, label));
  }));
}

function nameInside(parts, problem) {
  const kind = parts[2];
  if (!kind) return [];
  const size = kind === "eval" ? 6 : 4;
  if (kind === "step" || kind === "eval") {
    const label = kind === "step" ? `Step ${parts[3]}` : `Step ${parts[3]}, ${parts[4]}, ${parts[5]}`;
    const steps = [[label, parts.slice(0, size)]];
    if (parts.length > size + 1) steps.push([`Problem ${problem}`, parts.slice(0, size + 2)]);
    if (parts.length > size + 3) steps.push([`Answer ${Number(parts[size + 3]) + 1}`, parts]);
    return steps;
  }
  if (kind === "problem") return [["Problems", [...parts.slice(0, 2), "problems"]], [parts[3] ?? "", parts]];
  if (kind === "evaluation") return [["Evaluations", [...parts.slice(0, 2), "evaluations"]], [parts.slice(3).join(", "), parts]];
  return [[kind[0].toUpperCase() + kind.slice(1), parts]];
}

function buildKeys(app) {
  return {
    "?": { about: "Show the keys", run: () => showKeys(app.keys.listKeys()) },
    t: { about: "Change the theme", run: () => changeTheme(app) },
    "/": { about: "Search", run: () => document.querySelector("main :is(input[type=search], input[type=text])")?.focus() },
    u: { about: "Go up", run: goUp },
    Backspace: { about: "Go up", run: goUp },
  };
}

function goUp() {
  const links = document.querySelectorAll(".path a");
  if (links.length) window.location.hash = links[links.length - 1].getAttribute("href");
  else go([]);
}

function buildTools(app) {
  return [
    h("button", { type: "button", class: "theme", on: { click: () => changeTheme(app) } }, nameTheme()),
    h("button", { type: "button", on: { click: () => showKeys(app.keys.listKeys()) } }, "Keys"),
  ];
}

function changeTheme(app) {
  setTheme(nextTheme(readTheme()));
  replace(app.places.tools.querySelector(".theme"), nameTheme());
}

function nameTheme() {
  return { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[readTheme()];
}

function skipTo(event, main) {
  event.preventDefault();
  main.focus();
}
