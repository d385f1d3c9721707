// <live-value value="figures.total.orders" format="count">: one value of the bulletin, as text.

import { formatted } from "./language.js";
import { LiveElement } from "./page.js";

class LiveValue extends LiveElement {
  show(bulletin) {
    const value = this.valueIn(bulletin);
    this.tell(value);
    const text = formatted(value, this.getAttribute("format"));
    const isOfOtherLength = text.length !== this.textContent.length;
    this.textContent = text;
    if (isOfOtherLength) this.measure();
    this.classList.toggle("is-some", value > 0); // what should be none is shown up when there is some
  }
}

customElements.define("live-value", LiveValue);
