// Dialogs: an answer that is put into #dialog-body is shown; what an action has done is told, and the dialog closed.

import { refresh } from "./live.js";

const TOAST_MS = 6000;

export function startDialogs() {
  const dialog = document.getElementById("dialog");
  const body = document.getElementById("dialog-body");

  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === body && !dialog.open) dialog.showModal();
  });
  document.body.addEventListener("htmx:sendError", () => dialog.close()); // the page says that the console is away
  document.body.addEventListener("txmsg:done", (event) => {
    dialog.close();
    toast(event.detail.text);
    refresh();
  });
  dialog.addEventListener("close", () => {
    body.replaceChildren(); // also ends the polling of an operation
    refresh();
  });
  for (const each of document.querySelectorAll("dialog")) {
    each.addEventListener("click", (event) => {
      if (event.target === each || event.target.closest("[data-close]")) each.close();
    });
  }
}

function toast(text) {
  const shown = document.createElement("p");
  shown.textContent = text;
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), TOAST_MS);
}
