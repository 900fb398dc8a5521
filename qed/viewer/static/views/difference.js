import { h, replace } from "../dom.js";
import { renderDiff } from "../diff.js";
import { isWritten, makeButton, makeSelect } from "./texts.js";

/**
 * Let the reader choose any two texts of a problem and mark their difference.
 *
 * Returns {element, showButtons(answer)}; the choice (`a`, `b`, `diff`) is kept in the URL.
 */
export function createDifference({ context, data }) {
  const texts = listTexts(data);
  const state = { a: context.query.a ?? "", b: context.query.b ?? "", mode: context.query.diff === "inline" ? "inline" : "side" };
  const element = h("section", { class: "difference", "aria-label": "Difference of two texts" });
  const change = (changes) => {
    Object.assign(state, changes);
    context.setQuery({ a: state.a || null, b: state.b || null, diff: state.mode === "side" ? null : state.mode });
    draw();
  };
  const draw = () => {
    const choices = [["", "–"], ...texts.map(({ key, label }) => [key, label])];
    const [a, b] = [state.a, state.b].map((key) => texts.find((text) => text.key === key));
    replace(element,
      h("div", { class: "group-tools" },
        makeSelect("Compare", choices, state.a, (value) => change({ a: value })),
        makeSelect("with", choices, state.b, (value) => change({ b: value })),
        makeSelect("shown", [["side", "side by side"], ["inline", "in one text"]], state.mode, (value) => change({ mode: value })),
        a || b ? makeButton("Close", () => change({ a: "", b: "" }), { class: "small" }) : null),
      a && b ? renderDiff(a.text, b.text, { mode: state.mode, labels: [a.label, b.label] }) : hint(a ?? b));
  };
  draw();
  const choose = (answer) => {
    const key = String(answer);
    change(state.a === "" || (state.a !== "" && state.b !== "") ? { a: key, b: "" } : { b: key });
    if (state.a && state.b) element.scrollIntoView({ block: "nearest" });
  };
  const showButtons = (answer) =>
    makeButton("Compare", () => choose(answer), { class: "small", "aria-label": `Compare answer ${answer + 1} with another text` });
  return { element, showButtons };
}

function hint(chosen) {
  return chosen ? h("p", { class: "note" }, `${chosen.label} is chosen. Choose the text to compare it with.`) : null;
}

function listTexts({ group, answers }) {
  const others = [["gold", "gold answer", group.gold], ["prompt", "prompt", group.prompt]];
  return [
    ...answers.map((answer) => ({ key: String(answer.answer), label: nameAnswer(answer), text: answer.text ?? "" })),
    ...others.filter(([, , text]) => text != null && text !== "").map(([key, label, text]) => ({ key, label, text: String(text) })),
  ];
}

function nameAnswer(answer) {
  return `answer ${answer.answer + 1}${isWritten(answer) ? ` (${answer.source})` : ""}`;
}
