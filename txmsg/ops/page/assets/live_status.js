// The one line that says how far the figures can be believed: live, old, a part down, or the connection lost.

import { connection } from "./connection.js";
import { age, word } from "./language.js";
import { LiveElement, page } from "./page.js";

const LOOK_MS = 250; // ages grow between bulletins, too
const FRESH_MS = 2000; // so new that its age is not worth saying

const nameOf = (part) => word(`part_${part}`) ?? part;

function partsThatAre(state, bulletin) {
  const names = Object.keys(bulletin.parts).filter((part) => bulletin.parts[part] === state).map(nameOf);
  return names.join(word("and"));
}

// What there is to say of a bulletin that came `passedMs` ago: [state, text, whether the figures are old].
function judge(bulletin, passedMs) {
  if (connection.isLost()) {
    return ["bad", word("lost", { age: age(performance.now() - connection.heardAt) }), true];
  }
  if (bulletin === null) return ["waiting", word("waiting"), false];

  const ageMs = bulletin.age_ms === null ? null : bulletin.age_ms + passedMs;
  const isOld = ageMs !== null && ageMs > bulletin.stale_after_ms;
  const down = partsThatAre(false, bulletin);
  const unknown = partsThatAre(null, bulletin);
  const texts = [];
  if (down) texts.push(word("down", { parts: down }));
  if (isOld) texts.push(word("stale", { age: age(ageMs) }));
  if (unknown) texts.push(word("unknown", { parts: unknown }));
  if (texts.length) return [down ? "bad" : "warn", texts.join(" · "), isOld];
  if (ageMs === null) return ["waiting", word("waiting"), false];
  const since = ageMs < FRESH_MS ? "" : ` · ${word("ago", { age: age(ageMs) })}`;
  return ["live", word("live") + since, false];
}

class LiveStatus extends LiveElement {
  connectedCallback() {
    super.connectedCallback();
    this.timer = setInterval(() => this.show(page.bulletin), LOOK_MS);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearInterval(this.timer);
  }

  show(bulletin) {
    const [state, text, isOld] = judge(bulletin, performance.now() - page.takenAt);
    this.textContent = text;
    document.documentElement.dataset.state = state;
    document.documentElement.dataset.old = isOld;
    document.documentElement.dataset.lost = connection.isLost();
  }
}

customElements.define("live-status", LiveStatus);
