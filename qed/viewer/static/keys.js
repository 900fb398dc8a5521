/* The keyboard: keys of the current view, keys that always work, and the list of both. */

import { h } from "./dom.js";

const NAMES = {
  ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Enter: "Enter", Backspace: "Backspace", Escape: "Esc",
};

/** Bind keys. Returns `setKeys(keys)` for those of a view: by key, `{about, run}`. */
export function bindKeys(always) {
  let own = {};
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.matches?.("input")) event.target.blur(); // the keys of the view work again
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
    const bound = own[event.key] ?? always[event.key];
    if (!bound || (event.key === "Enter" && event.target.closest?.("a, button, summary, select"))) return;
    event.preventDefault();
    bound.run(event);
  });
  return {
    setKeys(keys) {
      own = keys ?? {};
    },
    listKeys() {
      return { ...always, ...own };
    },
  };
}

/** Show the list of keys in a dialog. */
export function showKeys(keys) {
  document.querySelector("dialog.keys")?.remove();
  const rows = new Map();
  for (const [key, { about }] of Object.entries(keys)) {
    rows.set(about, [...(rows.get(about) ?? []), NAMES[key] ?? key]);
  }
  const close = h("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const dialog = h("dialog", { class: "keys", "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"),
    h("dl", {}, [...rows].map(([about, names]) => [
      h("dt", {}, names.map((name, at) => [at ? " " : null, h("kbd", {}, name)])), h("dd", {}, about),
    ])),
    h("p", {}, close));
  const leave = () => dialog.close(); // the dialog has the keys of the page
  window.addEventListener("hashchange", leave);
  dialog.addEventListener("close", () => { window.removeEventListener("hashchange", leave); dialog.remove(); });
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}

function isTyping(event) {
  const target = event.target;
  if (document.querySelector("dialog[open]")) return true;
  return target instanceof HTMLElement
    && (target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox]):not([type=radio])"));
}
