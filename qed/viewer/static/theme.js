/* Light or dark: the system's theme, unless the reader chose one, which this browser remembers. */

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

/** Return the theme that follows one; the system's own is followed by the other of light and dark. */
export function nextTheme(theme) {
  const isDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const order = isDark ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
  return order[(order.indexOf(theme) + 1) % order.length];
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
