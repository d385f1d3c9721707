// <part-state part="broker">: the name of a part, and whether it is up.

import { word } from "./language.js";
import { LiveElement } from "./page.js";

class PartState extends LiveElement {
  show(bulletin) {
    const part = this.getAttribute("part");
    const state = { true: "up", false: "down" }[bulletin?.parts[part]] ?? "unknown";
    const name = word(`part_${part}`) ?? part;
    this.dataset.state = state;
    this.textContent = name;
    this.title = state === "up" ? `${name}: ${word("up")}` : word(state, { parts: name });
  }
}

customElements.define("part-state", PartState);
