// The keyboard: / searches, g and a letter leads to a section, j and k choose a row that Enter opens, ? lists all.

const SEQUENCE_MS = 1500;

export function startKeys() {
  const help = document.getElementById("help");
  let goingUntil = 0;
  document.getElementById("keys").addEventListener("click", () => help.showModal());

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, select, textarea, dialog");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (performance.now() < goingUntil) {
      goingUntil = 0;
      const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    const act = ACTIONS[event.key];
    if (event.key === "g") goingUntil = performance.now() + SEQUENCE_MS;
    else if (event.key === "?") help.showModal();
    else if (act && act() !== false) event.preventDefault();
  });
}

const ACTIONS = {
  "/": () => document.querySelector("input[type=search]")?.focus() ?? undefined,
  j: () => choose(1),
  k: () => choose(-1),
};

function choose(step) {
  const links = [...document.querySelectorAll("#main tbody tr td:first-child a")];
  if (links.length === 0) return false;
  const now = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, now + step))].focus();
  return true;
}
