/* Light or dark: that of the system unless one was chosen, which this browser remembers. */

const NAME = "qed-theme";
const THEMES = ["auto", "light", "dark"];

/** Return the chosen theme: auto, light or dark. */
export function readTheme() {
  let stored = null;
  try {
    stored = window.localStorage.getItem(NAME);
  } catch {
    // A page from a file may have no storage.
  }
  const chosen = document.documentElement.dataset.theme ?? stored;
  return THEMES.includes(chosen) ? chosen : "auto";
}

/** Return the theme that comes after one, so that the page looks different: past `auto` if that is what it looks like. */
export function nextTheme(theme) {
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = system === "dark" ? "light" : "dark";
  return { auto: other, [other]: system, [system]: "auto" }[theme];
}

/** Show and remember a theme. */
export function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    window.localStorage.setItem(NAME, theme);
  } catch {
    // As above.
  }
}
