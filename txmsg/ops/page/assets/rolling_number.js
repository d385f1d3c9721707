// <rolling-number value="figures.total.turnover_cents" format="money">: a counter whose digits roll to new places.
//
// Programs read `data-value`, which has the new value at once.

import { formatted } from "./language.js";
import { LiveElement } from "./page.js";

const ROLL_MS = 500;
const REST_MS = 400; // what always moves cannot be read
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const modulo10 = (x) => ((x % 10) + 10) % 10;

// One digit: a strip of 0 1 ... 9 0 behind a window. `from` and `to` are places on an endless strip: it rolls from 9 on
// to 0, and back again when the number falls.
class Digit {
  constructor(digit) {
    this.node = document.createElement("span");
    this.node.className = "digit";
    this.strip = this.node.appendChild(document.createElement("span"));
    this.strip.textContent = "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n0";
    this.to = digit;
    this.place(digit);
  }

  place(at) {
    this.at = at;
    this.strip.style.transform = `translateY(${(-modulo10(at) / 11) * 100}%)`;
  }

  aim(digit, isRising) {
    const steps = digit - modulo10(this.to);
    this.from = this.at;
    this.to += isRising ? modulo10(steps) : -modulo10(-steps);
  }

  settle() {
    this.to = modulo10(this.to);
    this.place(this.to);
  }
}

class RollingNumber extends LiveElement {
  #value = null;
  #text = "";
  #digits = []; // from the right, as they keep their places there when the number grows
  #begunAt = -Infinity;
  #next = null;

  show(bulletin) {
    const value = this.valueIn(bulletin);
    this.tell(value);
    this.role = "img";
    this.ariaLabel = formatted(value, this.getAttribute("format"));
    clearTimeout(this.#next);
    const restMs = this.#value === null ? 0 : this.#begunAt + ROLL_MS + REST_MS - performance.now();
    if (restMs > 0) this.#next = setTimeout(() => this.#aim(value), restMs);
    else this.#aim(value);
  }

  #aim(value) {
    const text = formatted(value, this.getAttribute("format"));
    if (text === this.#text) return;
    const isRising = value >= this.#value;
    if (text.replace(/\d/g, "0") !== this.#text.replace(/\d/g, "0")) this.#build(text);
    const digits = [...text.matchAll(/\d/g)].reverse().map(Number);
    this.#digits.forEach((each, place) => each.aim(digits[place], isRising));
    this.#value = value;
    this.#text = text;
    this.#begunAt = performance.now();
    this.#roll();
  }

  // The same digits on other places: a new one begins at 0, the others go on from where they are.
  #build(text) {
    const known = this.#digits;
    this.#digits = [];
    const nodes = [...text].reverse().map((char) => {
      if (char >= "0" && char <= "9") {
        const digit = known[this.#digits.length] ?? new Digit(0);
        this.#digits.push(digit);
        return digit.node;
      }
      const node = document.createElement("span");
      node.className = /[.,]/.test(char) ? "mark" : "sign";
      node.textContent = char;
      return node;
    });
    this.replaceChildren(...nodes.reverse());
    this.measure();
  }

  #roll() {
    const share = STILL.matches ? 1 : Math.min(1, (performance.now() - this.#begunAt) / ROLL_MS);
    if (share === 1) {
      this.#digits.forEach((each) => each.settle());
      return;
    }
    const eased = 1 - (1 - share) ** 3;
    for (const each of this.#digits) each.place(each.from + (each.to - each.from) * eased);
    requestAnimationFrame(() => this.#roll());
  }
}

customElements.define("rolling-number", RollingNumber);
