// Light, dark, or as the system is: by turns with each press of the button. The colours are in base.css.

import { word } from "./language.js";
import { recall, remember } from "./memory.js";
import { page } from "./page.js";

const THEMES = ["system", "light", "dark"];

export function startTheme(button) {
  let theme = recall("theme", THEMES) ?? "system";

  function use() {
    document.documentElement.dataset.theme = theme;
    button.dataset.theme = theme;
    page.refresh(); // a canvas must be redrawn
  }

  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    remember("theme", theme);
    use();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", use);
  page.join({ show: () => { button.title = button.ariaLabel = word(`theme_${theme}`); } });
  use();
}
