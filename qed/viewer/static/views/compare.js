import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { formatPercent } from "../format.js";
import { link } from "../router.js";
import { adjustHolm, countWords, formatP, readMany, redraw, showDifference, showFigures } from "./figures.js";
import { createCurves } from "./overlaid.js";
import { createPair } from "./pairs.js";
import { groupSeeds, listDifferences } from "./seeds.js";
import { makeButton, makeSelect } from "./texts.js";

const MOST_RUNS = 24;
const MOST_OTHERS = 8;
const MOST_SETTINGS = 60;
const SIGNIFICANT = 0.05;
const ACCURACY = "accuracy";

/** Compare runs, or steps of a run: curves, settings, and problem by problem with the paired test. */
export async function renderCompare(context) {
  const { runs: cards } = await get("runs", {});
  const view = readState(context, cards);
  view.curves = createCurves(context);
  view.pair = createPair(view);
  const place = (label) => h("section", { "aria-label": label });
  view.places = { pickers: place("What to compare"), tests: place("Paired tests"), arms: place("Seeds together"), settings: place("Settings") };
  const element = h("article", { class: "compare-view" },
    h("h1", {}, "Compare"), view.places.pickers, view.places.tests, view.places.arms, view.pair.element, view.curves.element, view.places.settings);
  await refresh(view);
  return { title: "Compare", element, keys: view.pair.keys };
}

function readState(context, cards) {
  const { query } = context;
  const named = [...readMany(query.run), ...readMany(query.a), ...readMany(query.b)];
  const runs = [...new Set(named)].slice(0, MOST_RUNS);
  const a = query.a ?? runs[0];
  return {
    context, cards, runs, a, b: query.b ?? runs.find((run) => run !== a) ?? a, step_a: query.step_a ?? "", step_b: query.step_b ?? "",
    task: query.task ?? "", measure: query.measure ?? ACCURACY, known: new Map(), replies: new Map(), number: 0,
  };
}

async function change(view, changes) {
  Object.assign(view, changes);
  const { context, runs, a, b, step_a, step_b, task, measure } = view;
  context.setQuery({ run: runs, a: a ?? null, b: b ?? null, step_a: step_a || null, step_b: step_b || null, task: task || null, measure: measure === ACCURACY ? null : measure, problem: null, side: null });
  await refresh(view);
}

/** Request what the choice needs and show it; a later choice supersedes an earlier one. */
async function refresh(view) {
  view.number += 1;
  const own = view.number;
  showPickers(view);
  if (view.runs.length === 0) return;
  replace(view.places.tests, h("p", { class: "note", role: "status" }, "Comparing …"));
  const [runs, pairs] = await Promise.all([Promise.all(view.runs.map((key) => loadRun(view, key))), loadPairs(view)]);
  if (own !== view.number) return;
  view.pairs = pairs;
  showArms(view, runs, own); // concurrently with what follows
  view.curves.show(runs.filter((run) => run.metrics));
  showSettings(view, runs);
  showTests(view, runs.filter((run) => run.error));
  showPickers(view);
  view.pair.show(findPair(view));
}

async function loadRun(view, key) {
  if (!view.known.has(key)) {
    const ask = async () => {
      try {
        const [about, metrics] = await Promise.all([get("run", { run: key }), get("metrics", { run: key })]);
        return { key, settings: about.settings, metrics };
      } catch (error) {
        return { key, error };
      }
    };
    view.known.set(key, ask());
  }
  return view.known.get(key);
}

/** Request the comparison of A with B, and if more runs are chosen, also of A with each of the others. */
async function loadPairs(view) {
  const others = [...new Set([view.b, ...view.runs])].filter((key) => key !== view.a || key === view.b).slice(0, MOST_OTHERS);
  return Promise.all(others.map(async (other) => {
    const steps = other === view.b ? { step_a: view.step_a, step_b: view.step_b } : { step_a: view.a === view.b ? "" : view.step_a };
    const params = { a: view.a, b: other, measure: view.measure === ACCURACY ? "" : view.measure, ...Object.fromEntries(Object.entries(steps).filter(([, value]) => value !== "")) };
    const name = JSON.stringify(params);
    if (!view.replies.has(name)) view.replies.set(name, get("compare", params));
    try {
      return { other, reply: await view.replies.get(name) };
    } catch (error) {
      view.replies.delete(name);
      return { other, error };
    }
  }));
}

function findPair(view) {
  const found = view.pairs.find(({ other }) => other === view.b);
  const tasks = found?.reply?.tasks ?? [];
  return tasks.find((task) => nameTask(task) === view.task) ?? tasks[0] ?? null;
}

function nameTask({ task, decoding }) {
  return `${task}/${decoding}`;
}

function showPickers(view) {
  const { runs, a, b } = view;
  const free = view.cards.filter(({ key }) => !runs.includes(key)).map(({ key }) => [key, key]);
  const add = (key) => change(view, { runs: [...runs, key], a: a ?? key, b: b === undefined || b === a ? key : b, step_b: "" });
  const chips = runs.map((key) => h("li", {}, h("a", { href: link(["run", key], {}) }, key),
    key === a ? h("b", {}, "A") : null, key === b ? h("b", {}, "B") : null,
    runs.length > 1 ? makeButton("×", () => remove(view, key), { "aria-label": `Leave out ${key}`, class: "small" }) : null));
  redraw(view.places.pickers,
    runs.length ? h("ul", { class: "chips", "aria-label": "Runs" }, chips) : h("p", {}, "Choose the runs to compare."),
    h("div", { class: "tools" },
      free.length && runs.length < MOST_RUNS ? makeSelect("Add a run", [["", "–"], ...free], "", (key) => key && add(key)) : null,
      runs.length ? showSides(view) : null));
}

function showSides(view) {
  const { runs, a, b } = view;
  const names = runs.map((key) => [key, key]);
  const pick = (side) => (key) => change(view, { [side]: key, [`step_${side}`]: "" });
  return [
    makeSelect("A", names, a, pick("a")), makeSelect("at step", listSteps(view, "steps_a"), view.step_a, (step) => change(view, { step_a: step })),
    makeSelect("B", names, b, pick("b")), makeSelect("at step", listSteps(view, "steps_b"), view.step_b, (step) => change(view, { step_b: step })),
    makeSelect("Measure", listMeasures(view), view.measure, (measure) => change(view, { measure })),
    makeButton("Swap A and B", () => change(view, { a: b, b: a, step_a: view.step_b, step_b: view.step_a }), { class: "small" }),
  ];
}

function listMeasures(view) {
  const tasks = (view.pairs ?? []).flatMap(({ reply }) => reply?.tasks ?? []);
  const names = new Set([ACCURACY, view.measure, ...tasks.flatMap(({ measures }) => measures ?? [])]);
  return [...names].map((name) => [name, name]);
}

function listSteps(view, side) {
  const tasks = view.pairs?.find(({ other }) => other === view.b)?.reply?.tasks ?? [];
  const own = side === "steps_a" ? view.step_a : view.step_b;
  const steps = new Set([...tasks.flatMap((task) => task[side]), ...(own === "" ? [] : [Number(own)])]);
  const usual = side === "steps_a" && view.a === view.b ? "first" : "last";
  return [["", usual], ...[...steps].sort((x, y) => x - y).map((step) => [String(step), `step ${step}`])];
}

function remove(view, key) {
  const runs = view.runs.filter((run) => run !== key);
  const a = view.a === key ? runs[0] : view.a;
  const b = view.b === key ? (runs.find((run) => run !== a) ?? a) : view.b;
  change(view, { runs, a, b, step_a: view.a === key ? "" : view.step_a, step_b: view.b === key ? "" : view.step_b });
}

/** Show the paired tests in the words of the report; a row selects what is shown below. */
function showTests(view, broken) {
  const tests = view.pairs.flatMap(({ reply }) => (reply?.tasks ?? []).map(({ test }) => test));
  adjustHolm(tests.map((test) => test.p_value)).forEach((value, at) => (tests[at].p_holm = value));
  const rows = view.pairs.flatMap(({ other, reply }) => (reply?.tasks ?? []).map((task) => showTest(view, other, task)));
  const trouble = new Map([...view.pairs.map(({ other, error }) => [other, error]), ...broken.map(({ key, error }) => [key, error])].filter(([, error]) => error));
  const skipped = view.pairs.flatMap(({ other, reply }) => (reply?.skipped ?? []).map((each) => `${each.task}, ${each.decoding} of ${other}: ${each.reason}`));
  const isSame = view.a === view.b;
  const left = view.runs.length - 1 - MOST_OTHERS;
  redraw(view.places.tests, h("h2", {}, "Problem by problem"),
    [...trouble].map(([key, error]) => h("p", { class: "trouble", role: "alert" }, `${key}: ${error.message}`)),
    rows.length ? showTestTable(view, rows) : trouble.size ? null
      : h("p", {}, `${isSame ? "This run has no two evaluations" : "These runs have no evaluation"} of the same problems with stored answers.`),
    skipped.length ? h("p", { class: "note" }, `Not compared: ${skipped.slice(0, 8).join("; ")}.`) : null,
    left > 0 ? h("p", { class: "note" }, `Tests of ${countWords(left, "further run")} are left out: choose a run as B to see its test.`) : null);
}

function showTestTable(view, rows) {
  const isSame = view.a === view.b;
  return showFigures({
    caption: isSame ? `Step against step of ${view.a}` : `Problem by problem against ${view.a}, A`, rows, kind: "stack tests",
    heads: ["", "A", "B", "difference in points", "better / worse", "p", "p (Holm)", "n"], foot: describeTests(rows.length, view.pairs.every(({ other }) => other === view.a)),
  });
}

function showTest(view, other, found) {
  const { test, step_a: stepA, step_b: stepB } = found;
  const name = nameTask(found);
  const isShown = other === view.b && nameTask(findPair(view)) === name;
  const label = `${view.a === other ? "" : `${other}: `}${found.task}, ${found.decoding} answers`;
  const steps = other === view.b ? {} : { step_a: view.a === view.b ? "" : view.step_a, step_b: "" };
  const choose = () => change(view, { b: other, task: name, ...steps });
  return {
    props: isShown ? { class: "shown" } : {},
    head: [makeButton(label, choose, { class: "as-link", "aria-pressed": String(isShown) }), h("small", {}, `A at step ${stepA}, B at step ${stepB}`)],
    cells: [
      formatPercent(test.before), formatPercent(test.after), showDifference(test), `${found.n_gained ?? found.gained.length} / ${found.n_lost ?? found.lost.length}`,
      [formatP(test.p_value), h("small", {}, test.note || test.test)], formatP(test.p_holm), [String(test.n), test.unpaired ? h("small", {}, `${test.unpaired} unpaired`) : null],
    ],
  };
}

function describeTests(count, isSame) {
  return [
    "Brackets are 95 % intervals of the difference, B minus A. Problems are paired by their id and their known answer.",
    count > 1 ? `With ${count} tests the probability that one falls below ${SIGNIFICANT} by chance is higher than ${SIGNIFICANT}: require p (Holm) < ${SIGNIFICANT}, which is adjusted for all of them.` : "",
    isSame ? "" : "Two runs also differ in their seeds; no test over problems can see that.",
  ].filter(Boolean).join(" ");
}

/** Compare all seeds of A with all seeds of B, if one of them has several. */
async function showArms(view, runs, own) {
  const groups = groupSeeds(runs.filter((run) => run.settings));
  const [one, other] = [view.a, view.b].map((key) => groups.find(({ members }) => members.includes(key)));
  if (!one || !other || one === other || one.members.length + other.members.length < 3) return void replace(view.places.arms);
  const params = { a: one.members.join("\n"), b: other.members.join("\n"), measure: view.measure === ACCURACY ? "" : view.measure };
  let found;
  try {
    found = await get("arms", params);
  } catch (error) {
    found = { error };
  }
  if (own !== view.number) return;
  const rows = (found.tasks ?? []).map(({ task, decoding, test }) => ({
    head: `${task}, ${decoding} answers`,
    cells: [
      [formatPercent(test.before), h("small", {}, test.runs[0].map((share) => formatPercent(share)).join(", "))],
      [formatPercent(test.after), h("small", {}, test.runs[1].map((share) => formatPercent(share)).join(", "))],
      showDifference(test), [formatP(test.p_value), test.note ? h("small", {}, test.note) : null], formatP(test.p_holm), String(test.n),
    ],
  }));
  redraw(view.places.arms, h("h2", {}, "Seeds together"),
    found.error ? h("p", { class: "trouble", role: "alert" }, found.error.message) : null,
    h("p", { class: "facts" }, `A is ${one.label}, B is ${other.label}: runs that differ only in their seeds.`),
    rows.length ? showFigures({
      caption: null, rows, kind: "stack tests", heads: ["", "A", "B", "difference in points", "p", "p (Holm)", "n"],
      foot: "Brackets are 95 % intervals over problems and seeds together.",
    }) : h("p", {}, "These runs have no evaluation of the same problems with stored answers."));
}

function showSettings(view, runs) {
  // An evaluation has no training settings; those that its answers depend on are shown with its tests.
  const known = runs.filter((run) => run.settings?.length).slice(0, 6);
  if (known.length < 2) return void replace(view.places.settings);
  const found = listDifferences(known);
  const show = (value) => (value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  const rows = found.slice(0, MOST_SETTINGS).map(({ key, values }) => ({ head: h("code", {}, key), cells: values.map((value) => show(value).slice(0, 300)) }));
  replace(view.places.settings, h("h2", {}, "Settings that differ"),
    rows.length === 0 ? h("p", {}, "All settings are the same.")
      : showFigures({ caption: null, heads: ["setting", ...known.map(({ key }) => key)], rows, kind: "stack settings-table" }),
    found.length > MOST_SETTINGS ? h("p", { class: "note" }, `The first ${MOST_SETTINGS} of ${found.length}.`) : null);
}
