// Keeps the live part of the page as the server sees it. A page that is not seen does not listen: a browser has few
// connections for one server, and many pages may be open.

const SILENCE_MS = 6000; // the server says something at least every 2 s

let source = null;
let heardAt = 0;
const live = document.getElementById("live");
const lost = document.getElementById("lost");

export function startLive() {
  const listen = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", close);
  addEventListener("pageshow", listen);
  setInterval(look, 1000);
  listen();
}

// Shows at once what an action has changed.
export function refresh() {
  close();
  open();
}

function open() {
  if (source !== null) return;
  heardAt = performance.now();
  source = new EventSource(location.href);
  source.addEventListener("part", (event) => {
    heard();
    show(event.data);
  });
  source.addEventListener("same", heard);
}

function close() {
  source?.close();
  source = null;
}

function heard() {
  heardAt = performance.now();
  lost.hidden = true;
  document.documentElement.removeAttribute("data-lost");
}

function look() {
  if (source === null || performance.now() - heardAt < SILENCE_MS) return;
  lost.hidden = false;
  document.documentElement.setAttribute("data-lost", "");
  if (source.readyState !== EventSource.CLOSED) return;
  refresh(); // an answer that was no stream ends it for good
  // Perhaps the login has ended: then the page leads to another one.
  fetch(location.href, { method: "HEAD", redirect: "manual" }).then(
    (answer) => answer.type === "opaqueredirect" && location.reload(),
    () => {}, // the console is away, and the page says so
  );
}

function show(html) {
  if (getSelection()?.toString() && live.contains(getSelection().anchorNode)) return; // somebody is copying it
  Idiomorph.morph(live, html, {
    morphStyle: "innerHTML",
    callbacks: {
      // What a user has opened, or what scripts have drawn, the server does not know.
      beforeAttributeUpdated: (name, node) => !(name === "open" || name === "data-chosen"),
      beforeNodeRemoved: (node) => node.parentNode?.localName !== "time-line",
    },
  });
  htmx.process(live);
}
