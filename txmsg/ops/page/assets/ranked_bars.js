// <ranked-bars value="figures.provinces" figure="turnover_cents" format="money_short" most="31" rest>: a list by rank.
//
// The value is a list of {"key", "name", FIGURE}, the greatest first. As many are shown as there is room for, `most` at
// most; with `rest`, what the others have together stands below. A row glides to its new rank.

import { formatted, named, word } from "./language.js";
import { LiveElement, page, remPx } from "./page.js";

const ROW_REM_MIN = 1.6;
const ROW_REM_MAX = 2.6;
const LEAST_SHARE = 0.003;

class RankedBars extends LiveElement {
  #rows = new Map();

  connectedCallback() {
    this.resized = new ResizeObserver(() => this.show(page.bulletin));
    this.resized.observe(this);
    super.connectedCallback();
  }

  disconnectedCallback() {
    this.resized.disconnect();
    super.disconnectedCallback();
  }

  show(bulletin) {
    const figure = this.getAttribute("figure");
    const entries = this.valueIn(bulletin) ?? [];
    this.classList.toggle("is-empty", entries.length === 0);
    this.dataset.empty = word("waiting");

    const rem = remPx();
    const places = Math.floor(this.clientHeight / (ROW_REM_MIN * rem));
    const most = Math.min(entries.length, Number(this.getAttribute("most")));
    const hasRest = this.hasAttribute("rest") && entries.length > Math.min(most, places);
    const count = Math.max(0, Math.min(most, places - (hasRest ? 1 : 0)));
    const height = Math.min(ROW_REM_MAX * rem, this.clientHeight / Math.max(1, count + (hasRest ? 1 : 0)));

    const greatest = Math.max(1, ...entries.slice(0, 1).map((each) => each[figure]));
    const seen = new Set();
    const place = (key, rank, label, value, share) => {
      seen.add(key);
      this.#row(key).set(rank, height, label, formatted(value, this.getAttribute("format")), share);
    };
    entries.slice(0, count).forEach((each, rank) => {
      place(each.key, rank, named(each.name), each[figure], Math.max(0, each[figure]) / greatest);
    });
    if (hasRest && count > 0) {
      const others = entries.slice(count);
      const sum = others.reduce((total, each) => total + each[figure], 0);
      place("", count, word("others", { count: others.length }), sum, null);
    }
    for (const [key, row] of this.#rows) {
      if (!seen.has(key)) {
        row.node.remove();
        this.#rows.delete(key);
      }
    }
  }

  #row(key) {
    if (!this.#rows.has(key)) {
      const row = new Row();
      this.#rows.set(key, row);
      this.append(row.node);
    }
    return this.#rows.get(key);
  }
}

class Row {
  constructor() {
    this.node = document.createElement("div");
    this.node.className = "row";
    [this.rank, this.label, this.track, this.value] = ["rank", "label", "track", "value"].map((name) => {
      const node = this.node.appendChild(document.createElement("span"));
      node.className = name;
      return node;
    });
    this.bar = this.track.appendChild(document.createElement("span"));
  }

  // `share` of the greatest is how long the bar is; null for a row without one.
  set(rank, height, label, value, share) {
    this.node.style.height = `${height}px`;
    this.node.style.zIndex = 1000 - rank; // the one that rises passes over the one that falls
    this.node.style.transform = `translateY(${rank * height}px)`;
    this.node.classList.toggle("is-rest", share === null);
    this.node.classList.toggle("is-top", share !== null && rank < 3);
    this.rank.textContent = share === null ? "" : rank + 1;
    this.label.textContent = this.label.title = label;
    this.value.textContent = value;
    this.bar.style.visibility = share > LEAST_SHARE ? "visible" : "hidden"; // what is left of none is a speck
    this.bar.style.transform = `translateX(${((share ?? 0) - 1) * 100}%)`;
  }
}

customElements.define("ranked-bars", RankedBars);
