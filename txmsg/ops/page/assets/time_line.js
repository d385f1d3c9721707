// <time-line value="figures.seconds" lines="orders paid" span="120">: lines over time, drawn by uPlot.
//
// The value is {"from": seconds since 1970, NAME: [a number for each second from then on, or null]}.

import { formatted, timeOfDay, word } from "./language.js";
import { LiveElement, page, remPx } from "./page.js";

const SPAN_S_MIN = 120; // a young line does not fill the whole width at once, unless `span` says so

class TimeLine extends LiveElement {
  #chart = null;
  #names = [];

  connectedCallback() {
    this.#names = this.getAttribute("lines").split(" ");
    this.resized = new ResizeObserver(() => this.#resize());
    this.resized.observe(this);
    super.connectedCallback();
  }

  disconnectedCallback() {
    this.resized.disconnect();
    this.#chart?.destroy();
    this.#chart = null;
    super.disconnectedCallback();
  }

  show(bulletin) {
    const value = this.valueIn(bulletin);
    const count = value?.[this.#names[0]].length ?? 0;
    this.classList.toggle("is-empty", count === 0);
    this.dataset.empty = word("waiting");
    if (this.clientWidth === 0) return;
    this.#chart ??= this.#draw();
    const xs = Array.from({ length: count }, (_, place) => value.from + place);
    this.#chart.setData([xs, ...this.#names.map((name) => value?.[name] ?? [])]);
  }

  #resize() {
    if (this.#chart === null) this.show(page.bulletin);
    else this.#chart.setSize({ width: this.clientWidth, height: this.clientHeight });
  }

  // How wide an axis is, how far apart its values are at least, and how far from the lines: in rem.
  #sizes(size, space, gap) {
    const rem = remPx();
    return { size: size * rem, space: space * rem, gap: gap * rem };
  }

  #draw() {
    const rem = remPx();
    const span = Number(this.getAttribute("span") ?? SPAN_S_MIN);
    const axis = {
      stroke: () => this.#colour("--muted"),
      grid: { stroke: () => this.#colour("--grid"), width: 1 },
      ticks: { show: false },
      font: `${Math.max(11, 0.95 * rem)}px ${getComputedStyle(this).fontFamily}`,
    };
    const options = {
      width: this.clientWidth,
      height: this.clientHeight,
      padding: [0.6 * rem, 2.6 * rem, 0, 0], // half a label with seconds, right of the last tick
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false }, points: { size: 8 } },
      scales: {
        x: { range: (_, from, to) => (from === null ? [0, span] : [Math.min(from, to - span), to]) },
        y: { range: (_, __, most) => [0, Math.max(10, (most ?? 0) * 1.12)] },
      },
      axes: [
        { ...axis, ...this.#sizes(2.4, 6, 0.7), grid: { show: false }, values: (_, times) => this.#times(times) },
        { ...axis, ...this.#sizes(4, 2.2, 0.4), values: (_, counts) => counts.map((each) => formatted(each, "count_short")) },
      ],
      series: [{}, ...this.#names.map((name, place) => this.#series(place))],
      hooks: { setCursor: [(chart) => this.#point(chart)] },
    };
    return new uPlot(options, [[], ...this.#names.map(() => [])], this);
  }

  #series(place) {
    const colour = `--line-${place + 1}`;
    return {
      stroke: () => this.#colour(colour),
      width: place === 0 ? 2.5 : 1.75,
      points: { show: false },
      fill: place > 0 ? undefined : (chart) => {
        const shade = chart.ctx.createLinearGradient(0, chart.bbox.top, 0, chart.bbox.top + chart.bbox.height);
        shade.addColorStop(0, this.#colour("--fill-1"));
        shade.addColorStop(1, this.#colour("--fill-1-end"));
        return shade;
      },
    };
  }

  // What the mouse points at, as the element's title.
  #point(chart) {
    const place = chart.cursor.idx;
    const values = place == null ? [] : chart.data.map((column) => column[place]);
    this.title = place == null ? "" : values.map((each, column) => {
      return column === 0 ? this.#timeOf(each) : `${word(this.#names[column - 1])} ${formatted(each, "count")}`;
    }).join(" · ");
  }

  #times(times) {
    const isWhole = times.every((each) => each % 60 === 0);
    return times.map((each) => (isWhole ? this.#timeOf(each).slice(0, 5) : this.#timeOf(each)));
  }

  #timeOf = (s) => timeOfDay(new Date(s * 1000));

  // A canvas knows no custom properties, nor light-dark(): an element that has the colour tells what it comes to.
  #colour(name) {
    this.style.setProperty("--asked", `var(${name})`);
    return getComputedStyle(this, "::before").color;
  }
}

customElements.define("time-line", TimeLine);
