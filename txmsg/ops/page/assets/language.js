// Which language the page speaks, and how it writes words and numbers in it. The browser's, until the user switches.

import { page } from "./page.js";
import { recall, remember } from "./memory.js";

const LOCALES = { en: "en-US", zh: "zh-CN" };
const WORDS = JSON.parse(document.getElementById("words").textContent);
const NONE = "–";

let language = "en";

export function startLanguage(button) {
  const preferred = navigator.languages.map((each) => each.slice(0, 2)).find((each) => each in LOCALES);
  use(recall("language", Object.keys(LOCALES)) ?? preferred ?? "en", button);
  button.addEventListener("click", () => {
    use(language === "en" ? "zh" : "en", button);
    remember("language", language);
  });
}

function use(chosen, button) {
  language = chosen;
  document.documentElement.lang = LOCALES[language];
  document.title = word("title");
  button.textContent = word("language");
  button.lang = LOCALES[language === "en" ? "zh" : "en"];
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
  page.refresh();
}

const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };

// The time of day, 00:00:00 to 23:59:59. Not by hour12: false, by which midnight is 24:00:00 in English.
export const timeOfDay = (date) => date.toLocaleTimeString(LOCALES[language], TIME);

// What the page says for a key, with {values} put in. Undefined where nothing is said.
export function word(key, values = {}) {
  return WORDS[key]?.[language].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// The one of two languages that a name of the figures has: {"en": ..., "zh": ...}.
export const named = (name) => name[language];

const formatters = new Map();

function number(value, options) {
  const key = language + JSON.stringify(options);
  if (!formatters.has(key)) formatters.set(key, new Intl.NumberFormat(LOCALES[language], options));
  return formatters.get(key).format(value);
}

const CENTS = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
const SHORT = { notation: "compact", minimumSignificantDigits: 3, maximumSignificantDigits: 3 };

const FORMATS = {
  count: (value) => number(value, { maximumFractionDigits: 0 }),
  count_short: (value) => (Math.abs(value) < 10_000 ? FORMATS.count(value) : number(value, SHORT)),
  money: (cents) => `${cents < 0 ? "-" : ""}¥${number(Math.abs(cents) / 100, CENTS)}`,
  money_short: (cents) => `${cents < 0 ? "-" : ""}¥${number(Math.abs(cents) / 100, SHORT)}`,
  percent: (share) => number(share, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 }),
  duration_ms: (ms) => duration(ms),
  duration_s: (s) => duration(s * 1000),
};

// A value of a bulletin as text; a dash for what is not known.
export function formatted(value, format) {
  return value === null ? NONE : FORMATS[format](value);
}

const UNITS = { en: ["ms", "s", "min", "h"], zh: ["毫秒", "秒", "分", "小时"] };
const THIN_SPACE = "\u202f";
const measured = (value, unit) => `${value}${THIN_SPACE}${UNITS[language][unit]}`;

// How long something took: 240 ms, 1.2 s, 45 s, 3 min 20 s.
function duration(ms) {
  if (ms < 995) return measured(FORMATS.count(ms), 0);
  if (ms < 9950) return measured(number(ms / 1000, { minimumFractionDigits: 1, maximumFractionDigits: 1 }), 1);
  return age(ms);
}

// How long ago something was: 8 s, 3 min 20 s, 2 h 5 min.
export function age(ms) {
  const s = Math.round(ms / 1000);
  if (s < 60) return measured(s, 1);
  if (s < 3600) return `${measured(Math.floor(s / 60), 2)} ${measured(s % 60, 1)}`;
  return `${measured(Math.floor(s / 3600), 3)} ${measured(Math.floor((s % 3600) / 60), 2)}`;
}
