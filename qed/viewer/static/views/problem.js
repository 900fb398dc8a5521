import { get } from "../api.js";
import { lineChart } from "../chart.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatPercent } from "../format.js";
import { link } from "../router.js";
import { createChoice } from "./chosen.js";
import { askOn, countWords } from "./figures.js";
import { makeSelect, showProblem } from "./texts.js";
import { createTimeline } from "./timeline.js";
import { listVisits, nameSeries, nameVisit } from "./visits.js";

/** Show one problem through training: its pass rate, its answers at every step, and what changed in them. */
export async function renderProblem(context) {
  const [, run, , id] = context.parts;
  const reply = await askPatiently(run, id, context.signal);
  const view = { context, run, id, reply, visits: listVisits(reply), series: context.query.series ?? "" };
  view.choice = createChoice(view);
  view.timeline = createTimeline(view, (text) => view.choice.choose(text));
  view.choice.onChange(() => view.timeline.mark(view.choice.chosen()));
  view.places = { story: h("div", {}), chart: h("div", {}), note: h("div", {}) };
  refresh(view);
  if (reply.complete === false) readOn(view);
  const title = `Problem ${id}`;
  const element = h("article", { class: "problem-view" },
    h("h1", {}, title), view.places.story, showProblem(reply, { demonstration: reply.demonstration ? [{ text: reply.demonstration }] : null }),
    view.places.note, view.places.chart,
    h("div", { class: "problem-panes" },
      h("section", { class: "answers" }, h("h2", {}, "Answers through training"), showTools(view), view.timeline.element),
      h("section", { class: "changed" }, h("h2", {}, "What changed in the text"), view.choice.element)),
    showCopies(view));
  view.choice.start();
  return { title, element, keys: buildKeys(view) };
}

/** Request the problem until all steps with answers to it have been read. */
async function askPatiently(run, id, signal) {
  for (let turn = 0; ; turn += 1) {
    try {
      return await get("problem", { run, id });
    } catch (error) {
      if (!/ask again/.test(error.message) || turn > 200 || signal?.aborted) throw error;
      await new Promise((resume) => setTimeout(resume, 200));
    }
  }
}

async function readOn(view) {
  const use = (reply) => {
    view.reply = reply;
    view.visits = listVisits(reply);
    refresh(view);
  };
  try {
    await askOn(() => get("problem", { run: view.run, id: view.id }), use, view.context.signal);
  } catch (error) {
    replace(view.places.note, h("p", { class: "trouble", role: "alert" }, `The steps could not all be read: ${error.message}`));
  }
}

function refresh(view) {
  const { reply, places } = view;
  replace(places.story, h("p", { class: "headline" }, tellStory(view)));
  replace(places.note, reply.complete === false ? h("p", { class: "note", role: "status" }, "Still reading the steps; more answers may follow.") : null);
  replace(places.chart, drawRates(view));
  view.timeline.refresh(pickVisits(view));
}

function pickVisits({ visits, series }) {
  return visits.filter((visit) => !series || nameSeries(visit) === series);
}

/** Say in a sentence or two when the problem was first solved, and whether it was forgotten. */
function tellStory({ reply, visits }) {
  const first = reply.first_right;
  const last = visits.at(-1);
  if (!last) return "No answer to this problem was saved.";
  const count = (visit) => (visit.n ? `${visit.n_right} of ${visit.n} right` : "not graded");
  const begin = first ? `First right at ${nameVisit(first)}: ${count(first)}.` : `Never right in ${countWords(visits.length, "visit")}.`;
  const lost = reply.forgotten.map((visit) => nameVisit(visit));
  const more = lost.length > 3 ? ` and ${lost.length - 3} times more` : "";
  const middle = lost.length ? ` Forgotten at ${lost.slice(0, 3).join("; ")}${more}.` : first ? " Not forgotten since." : "";
  return `${begin}${middle} Seen last at ${nameVisit(last)}: ${count(last)}.`;
}

function drawRates(view) {
  const { reply, visits } = view;
  const names = [...new Set(visits.map(nameSeries))];
  const series = names.map((name, at) => ({
    label: name, colour: at % 8, marks: name !== "training",
    points: joinSteps(visits.filter((visit) => nameSeries(visit) === name)),
  }));
  if (!series.some(({ points }) => points.length > 1)) return null;
  const events = reply.forgotten.map(({ step }) => ({ x: step, label: "forgotten" }));
  if (reply.first_right) events.unshift({ x: reply.first_right.step, label: "first right" });
  const onPick = (x) => view.timeline.reveal(x);
  return h("section", {}, h("h2", {}, "Share right by step"),
    lineChart({ title: "Right answers of all answers", series, percent: true, events, onPick }).element,
    h("p", { class: "note" }, "Triangles mark where it was first right and where it was forgotten. A problem is forgotten when none of its answers is right after at least half of them were, in training or in one ",
      "decoding of one task. Click a point to go to its answers."));
}

/** Return a point for each step: a step may have several groups of one problem. */
function joinSteps(visits) {
  const steps = new Map();
  for (const { step, n, n_right: right } of visits) {
    const [count, good] = steps.get(step) ?? [0, 0];
    steps.set(step, [count + n, good + right]);
  }
  return [...steps].map(([step, [n, right]]) => [step, n ? right / n : null]);
}

function showTools(view) {
  const names = [...new Set(view.visits.map(nameSeries))];
  if (names.length < 2) return null;
  const change = (series) => {
    view.series = series;
    view.context.setQuery({ series: series || null });
    view.timeline.refresh(pickVisits(view));
  };
  return h("div", { class: "tools" }, makeSelect("Show", [["", "training and evaluations"], ...names.map((name) => [name, name])], view.series, change));
}

function showCopies(view) {
  const columns = ["step", "series", "group", "n", "n_right", "rate", "reward_mean"];
  const list = () => view.visits.map((visit) => [
    visit.step, nameSeries(visit), visit.group, visit.n, visit.n_right, visit.n ? formatPercent(visit.n_right / visit.n) : "", visit.reward_mean ?? "",
  ]);
  return h("p", { class: "actions" },
    copyButtons({ name: `problem-${view.id}`, json: () => view.reply, rows: () => ({ columns, rows: list() }) }),
    h("a", { href: link(["run", view.run, "problems"]) }, "All problems"));
}

function buildKeys(view) {
  return {
    j: { about: "next step with answers", run: () => view.timeline.move(1) },
    k: { about: "previous step with answers", run: () => view.timeline.move(-1) },
    Enter: { about: "open the answers of the step", run: () => document.activeElement.closest(".visit")?.querySelector("a")?.click() },
    f: { about: "texts before and after the first right answer", run: () => view.choice.preset("right") },
  };
}
