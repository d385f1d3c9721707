// What the console does in a browser. Pages work without it, but are not live, and ask nothing.

import "./time_line.js";
import { startDialogs } from "./dialogs.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";

startLive();
startDialogs();
startKeys();
document.documentElement.dataset.ready = ""; // for tests: from here on a button does what it says

const menu = document.getElementById("menu");
menu.addEventListener("click", () => {
  const isOpen = document.getElementById("side").toggleAttribute("data-open");
  menu.setAttribute("aria-expanded", String(isOpen));
});
