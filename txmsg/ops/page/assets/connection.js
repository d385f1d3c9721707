// The connection to the server: server-sent events, reopened whenever it is lost, for any reason.

const SILENCE_MS_MAX = 3500; // the server says something every second
const LOOK_MS = 500;

export const connection = {
  heardAt: performance.now(),
  isLost: () => performance.now() - connection.heardAt > SILENCE_MS_MAX,
};

// An answer that is no stream may mean that the page asks for a login now: loading it again leads there.
function lookForLogin() {
  fetch(location.href, { method: "HEAD", redirect: "manual" }).then(
    (answer) => answer.type === "opaqueredirect" && location.reload(),
    () => {}, // the server is away: the page says so
  );
}

// Calls `take` with each bulletin, for as long as the page is open.
export function connect(address, take) {
  let source = null;
  let openedAt = 0;

  function open() {
    source?.close();
    openedAt = performance.now();
    source = new EventSource(address);
    source.onmessage = (event) => {
      connection.heardAt = performance.now();
      take(JSON.parse(event.data));
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) lookForLogin();
    };
  }

  // An EventSource comes back by itself when the connection breaks, but neither after an answer such as 503 nor when
  // the network swallows everything: so silence is what counts.
  setInterval(() => {
    if (performance.now() - Math.max(connection.heardAt, openedAt) > SILENCE_MS_MAX) open();
  }, LOOK_MS);
  open();
}
