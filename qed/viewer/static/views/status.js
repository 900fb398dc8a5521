import { h } from "../dom.js";

const SIGNS = { live: "●", done: "✓", stopped: "■", failed: "✕", hung: "‖", unknown: "?" };

/** The statuses of a run, those that need attention first. */
export const STATUSES = ["hung", "failed", "live", "stopped", "done", "unknown"];

/** Show the status of a run: a sign and a word. */
export function showStatus(card) {
  const status = STATUSES.includes(card.status) ? card.status : "unknown";
  return h("span", { class: `status ${status}`, title: card.reason || null },
    h("span", { "aria-hidden": "true" }, `${SIGNS[status]} `), status);
}
