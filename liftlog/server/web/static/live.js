// Keeps a visible page up to date. Without this file the page is complete, but as old as its load.
//
// Every two seconds it fetches the page's .json twin. Numbers go into the elements that name them
// (data-count="high_watermark"). When the shape of the page has changed (a new stream, another
// state), it loads the page itself and replaces <main>.

const INTERVAL_MS = 2000;
const LONGEST_MS = 30000;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const KEPT = 60;
const WIDTH = 120;
const HEIGHT = 28;

// --- the same formats as in formats.py ---

export function count(number) {
  return String(Math.floor(number + 0.5)).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function tenths(number) {
  return number >= 99.95 ? count(number) : (Math.floor(number * 10 + 0.5) / 10).toFixed(1);
}

export function size(bytes) {
  let unit = 0;
  while (bytes >= 1023.5 && unit < UNITS.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? count(bytes) : tenths(bytes)} ${UNITS[unit]}`;
}

export function rate(perSecond) {
  return perSecond === 0 ? "0" : tenths(perSecond);
}

export function percent(ratio) {
  return `${Math.floor(ratio * 1000 + 0.5) / 10}%`;
}

export function duration(seconds) {
  if (seconds < 10) return `${Math.floor(seconds * 10 + 0.5) / 10} s`;
  let rest = Math.floor(seconds);
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const amount = Math.floor(rest / length);
    rest %= length;
    if (amount) parts.push(`${amount} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

export function sparkPoints(history) {
  if (!history.length) return "";
  const top = Math.max(...history) || 1;
  const step = WIDTH / (KEPT - 1);
  const left = WIDTH - step * (history.length - 1);
  return history
    .map((one, i) => `${(left + step * i).toFixed(1)},${(1 + (HEIGHT - 2) * (1 - one / top)).toFixed(1)}`)
    .join(" ");
}

const FORMS = {
  count, size, rate, percent, duration, ms: (seconds) => `${rate(seconds * 1000)} ms`,
};

// --- showing new values ---

const found = (data, path) => path.split(".").reduce((value, name) => value?.[name], data);

function fillElement(element, data) {
  for (const [name, form] of Object.entries(FORMS)) {
    const path = element.dataset[name];
    if (path === undefined) continue;
    const value = found(data, path);
    if (typeof value !== "number") continue;
    const text = form(value);
    if (element.textContent !== text) element.textContent = text;
  }
  if (element.dataset.spark) {
    const points = sparkPoints(found(data, element.dataset.spark) ?? []);
    const area = points && `${points.split(",")[0]},${HEIGHT} ${points} ${WIDTH},${HEIGHT}`;
    element.querySelector("polyline")?.setAttribute("points", points);
    element.querySelector("polygon")?.setAttribute("points", area);
  }
  if (element.dataset.x) {
    const value = found(data, element.dataset.x);
    if (typeof value === "number") element.setAttribute("x", value);
  }
  if (element.dataset.value) {
    const value = found(data, element.dataset.value);
    if (typeof value === "number") element.value = value;
  }
}

const FILLED = [...Object.keys(FORMS), "spark", "value", "x"].map((name) => `[data-${name}]`).join(",");

function scopeOf(element, data, main) {
  const row = element.closest("[data-key]");
  if (row) {
    const table = row.closest("[data-each]");
    const key = row.dataset.key;
    return (data[table.dataset.each] ?? []).find((one) => one[table.dataset.by] === key);
  }
  const part = element.closest("[data-at]");
  return part && main.contains(part) ? data[part.dataset.at] : data;
}

function fill(main, data) {
  for (const element of main.querySelectorAll(FILLED)) {
    const scope = scopeOf(element, data, main);
    if (scope) fillElement(element, scope);
  }
}

// --- fetching ---

const status = document.querySelector("[data-live-status]");
const toggle = document.querySelector("[data-live-toggle]");
const said = document.querySelector("[data-live-text]");
let timer = 0;
let wait = INTERVAL_MS;
let isOn = true;

function say(text) {
  // A screen reader announces every change, so the text is set only when it is new.
  if (said && said.textContent !== text) said.textContent = text;
}

function isBusy(main) {
  // The page is not replaced while the user types or has opened something.
  const focused = document.activeElement;
  return main.contains(focused) && focused !== main && focused.matches("input, select, textarea, pre");
}

function placeOf(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const link = element.getAttribute("href");
  return link === null ? null : `[href="${CSS.escape(link)}"]`;
}

async function replaceMain(main) {
  if (isBusy(main)) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (!fresh?.dataset.live) return;
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  const focused = document.activeElement;
  const place = main.contains(focused) ? placeOf(focused) : null;
  main.dataset.shape = fresh.dataset.shape;
  main.replaceChildren(...document.adoptNode(fresh).childNodes);
  main.querySelectorAll("details").forEach((one, i) => { one.open = open[i] ?? false; });
  if (place) main.querySelector(place)?.focus({ preventScroll: true });
  document.dispatchEvent(new Event("replaced"));
}

function note(isLost, text) {
  // Nothing on the page is green while the daemon is not known to be there.
  document.documentElement.classList.toggle("lost", isLost);
  const main = document.querySelector("main");
  let banner = document.querySelector("[data-lost]");
  if (isLost && !banner) {
    banner = document.createElement("p");
    banner.className = "notice bad";
    banner.dataset.lost = "";
    banner.textContent = `The daemon has not answered since ${new Date().toISOString().slice(11, 19)} UTC; this page is as old.`;
    main.prepend(banner);
  } else if (!isLost) {
    banner?.remove();
  }
  say(text);
}

async function look() {
  const main = document.querySelector("main[data-live]");
  if (!main || !isOn || document.hidden) return;
  try {
    const answer = await fetch(main.dataset.live, { redirect: "error" });
    if (answer.status === 401) {
      location.reload();
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const data = await answer.json();
    if (JSON.stringify(data.shape) !== JSON.stringify(JSON.parse(main.dataset.shape))) {
      await replaceMain(main);
    } else {
      fill(main, data);
    }
    wait = INTERVAL_MS;
    note(false, "");
    document.documentElement.dataset.looked = String(Number(document.documentElement.dataset.looked ?? 0) + 1);
  } catch {
    wait = Math.min(wait * 2, LONGEST_MS);
    note(true, "The daemon does not answer; retrying.");
  }
  clearTimeout(timer); // begin() may have set one meanwhile, and two would alternate
  timer = setTimeout(look, wait);
}

function begin() {
  clearTimeout(timer);
  if (isOn && !document.hidden) timer = setTimeout(look, INTERVAL_MS);
}

if (status && toggle) {
  status.hidden = false;
  toggle.addEventListener("click", () => {
    isOn = !isOn;
    toggle.setAttribute("aria-pressed", String(isOn));
    say(isOn ? "" : "Paused");
    begin();
  });
  document.addEventListener("visibilitychange", begin);
  begin();
}
