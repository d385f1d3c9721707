// What all elements share: the newest bulletin, and which of them want to know of it. Knows no connection.

class Page {
  #elements = new Set();
  bulletin = null; // the newest; null before the first
  takenAt = performance.now(); // when it came, or when the page began

  join(element) {
    this.#elements.add(element);
    element.show(this.bulletin);
  }

  leave(element) {
    this.#elements.delete(element);
  }

  take(bulletin) {
    this.bulletin = bulletin;
    this.takenAt = performance.now();
    this.refresh();
  }

  // Redraws all elements: after a bulletin, and after a change of language or theme.
  refresh() {
    for (const element of this.#elements) element.show(this.bulletin);
  }
}

export const page = new Page();

// What a rem is just now, which changes with the window.
export const remPx = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

// An element that shows something of each bulletin. A subclass has show(bulletin), which gets null before the first.
export class LiveElement extends HTMLElement {
  connectedCallback() {
    page.join(this);
  }

  disconnectedCallback() {
    page.leave(this);
  }

  // What the attribute `value` names: a path in the bulletin, such as "figures.total.orders". Null if it is not there.
  valueIn(bulletin) {
    return this.getAttribute("value").split(".").reduce((found, name) => found?.[name], bulletin) ?? null;
  }

  // How wide the text is, as `--ems`, for a style that makes it as large as there is room for: fonts differ by a third.
  measure() {
    this.style.setProperty("--ems", this.getBoundingClientRect().width / parseFloat(getComputedStyle(this).fontSize));
  }

  // For programs: `data-value` is the value as it was counted, and is not there while there is none.
  tell(value) {
    if (value === null) delete this.dataset.value;
    else this.dataset.value = value;
  }
}
