// <live-value value="figures.total.orders" format="count">: one value of the bulletin, as text.

import { formatted } from "./language.js";
import { LiveElement } from "./page.js";

class LiveValue extends LiveElement {
  show(bulletin) {
    const value = this.valueIn(bulletin);
    this.tell(value);
    this.textContent = formatted(value, this.getAttribute("format"));
    this.classList.toggle("is-some", value > 0); // what should be none is shown up when there is some
  }
}

customElements.define("live-value", LiveValue);
