// <wall-clock>: the time of day where the page is looked at. A clock that stands shows that the browser does.

import { timeOfDay } from "./language.js";
import { LiveElement } from "./page.js";

class WallClock extends LiveElement {
  connectedCallback() {
    super.connectedCallback();
    this.timer = setInterval(() => this.show(), 1000);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearInterval(this.timer);
  }

  show() {
    this.textContent = timeOfDay(new Date());
  }
}

customElements.define("wall-clock", WallClock);
