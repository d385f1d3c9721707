// <time-line data-from="SECONDS SINCE 1970" data-step="SECONDS" data-values="1,2,,3">: a small line over time, by uPlot.
// What the pointer is at is told as its title.

class TimeLine extends HTMLElement {
  static observedAttributes = ["data-values", "data-from"];
  #chart = null;
  #waiting = false;

  connectedCallback() {
    this.resized = new ResizeObserver(() => this.#show());
    this.resized.observe(this);
    schemes.addEventListener("change", this.#redraw);
  }

  disconnectedCallback() {
    this.resized.disconnect();
    schemes.removeEventListener("change", this.#redraw);
    this.#chart?.destroy();
    this.#chart = null;
  }

  attributeChangedCallback() {
    if (this.#waiting || this.#chart === null) return;
    this.#waiting = true; // both attributes change together
    queueMicrotask(() => {
      this.#waiting = false;
      this.#chart?.setData(this.#data());
    });
  }

  #data() {
    const values = this.dataset.values.split(",").map((each) => (each === "" ? null : Number(each)));
    const [from, step] = [Number(this.dataset.from), Number(this.dataset.step)];
    return [values.map((_, place) => from + place * step), values];
  }

  #show() {
    const size = { width: this.clientWidth, height: this.clientHeight };
    if (size.width === 0) return;
    if (this.#chart === null) this.#chart = new uPlot(this.#options(size), this.#data(), this);
    else this.#chart.setSize(size);
  }

  #redraw = () => this.#chart?.redraw();

  #options(size) {
    return {
      ...size,
      padding: [6, 0, 0, 0],
      legend: { show: false },
      cursor: { x: false, y: false, drag: { setScale: false }, points: { size: 6 } },
      scales: {
        x: { range: (_, from, to) => [Math.min(from ?? 0, (to ?? 0) - 120), to ?? 1] },
        y: { range: (_, __, most) => [0, Math.max(1, (most ?? 0) * 1.1)] },
      },
      axes: [{ show: false }, { show: false }],
      series: [{}, { stroke: () => this.#colour(1), fill: () => this.#colour(0.13), width: 1.5, points: { show: false } }],
      hooks: { setCursor: [(chart) => this.#point(chart)] },
    };
  }

  #point(chart) {
    const place = chart.cursor.idx;
    const value = place == null ? null : chart.data[1][place];
    this.title = value == null ? "" : `${new Date(chart.data[0][place] * 1000).toLocaleTimeString()} · ${value.toLocaleString()}`;
  }

  // A canvas knows no light-dark(): the element's own colour, as the browser has worked it out.
  #colour(opacity) {
    const [red, green, blue] = getComputedStyle(this).color.match(/[\d.]+/g);
    return `rgb(${red} ${green} ${blue} / ${opacity})`;
  }
}

const schemes = matchMedia("(prefers-color-scheme: dark)");
customElements.define("time-line", TimeLine);
