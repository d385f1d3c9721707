// What all elements share: the newest frame, and which of them want to know of it. Knows no connection.

class Page {
  #elements = new Set();
  frame = null; // the newest; null before the first
  takenAt = performance.now(); // when it came, or when the page began

  join(element) {
    this.#elements.add(element);
    element.show(this.frame);
  }

  leave(element) {
    this.#elements.delete(element);
  }

  take(frame) {
    this.frame = frame;
    this.takenAt = performance.now();
    this.refresh();
  }

  // Has all elements shown anew: after a frame, and after a change of language or theme.
  refresh() {
    for (const element of this.#elements) element.show(this.frame);
  }
}

export const page = new Page();

// An element that shows something of each frame. A subclass has show(frame), which is called with null before the first.
export class LiveElement extends HTMLElement {
  connectedCallback() {
    page.join(this);
  }

  disconnectedCallback() {
    page.leave(this);
  }

  // What the attribute `value` names: a path in the frame, such as "figures.total.orders". Null if it is not there.
  valueIn(frame) {
    return this.getAttribute("value").split(".").reduce((found, name) => found?.[name], frame) ?? null;
  }
}
