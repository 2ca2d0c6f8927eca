// Reads charts: the values under the pointer, or at the place that the arrow keys choose, stand above
// the chart, also when the page has been replaced under them. Without this file a chart shows them as
// tooltips.

let pointer = null; // where it was seen last
let chosen = null; // the chart and the moment that the keys have chosen

function show(chart, spot) {
  const said = chart.querySelector("[data-chart-at]");
  const keys = chart.querySelector("[data-chart-text]");
  chart.querySelector(".spot.chosen")?.classList.remove("chosen");
  spot?.classList.add("chosen");
  said.hidden = !spot;
  keys.hidden = Boolean(spot);
  const text = spot?.querySelector("title")?.textContent ?? "";
  if (said.textContent !== text) said.textContent = text;
}

const chartOf = (event) => event.target.closest?.("[data-chart]");
const spotsOf = (chart) => [...chart.querySelectorAll(".spot")];
const momentOf = (spot) => spot?.querySelector("title")?.textContent.split(": ")[0];

document.addEventListener("pointermove", (event) => {
  const chart = chartOf(event);
  pointer = chart ? [event.clientX, event.clientY] : null;
  if (chart) show(chart, event.target.closest(".spot") ?? chart.querySelector(".spot.chosen"));
});

document.addEventListener("pointerout", (event) => {
  const chart = chartOf(event);
  if (chart && !chart.contains(event.relatedTarget)) show(chart, null);
});

document.addEventListener("focusin", (event) => {
  const chart = chartOf(event);
  if (!chart) return;
  const known = chosen?.chart === chart.id ? spotsOf(chart).find((one) => momentOf(one) === chosen.moment) : null;
  show(chart, known ?? spotsOf(chart).at(-1));
});

document.addEventListener("focusout", (event) => {
  const chart = chartOf(event);
  if (chart) show(chart, null);
});

document.addEventListener("keydown", (event) => {
  const chart = chartOf(event);
  if (!chart) return;
  const spots = spotsOf(chart);
  const here = spots.indexOf(chart.querySelector(".spot.chosen"));
  const steps = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: spots.length - 1 };
  if (!(event.key in steps) || !spots.length) return;
  event.preventDefault();
  const spot = spots[Math.min(Math.max(steps[event.key], 0), spots.length - 1)];
  chosen = spot === spots.at(-1) ? null : { chart: chart.id, moment: momentOf(spot) };
  show(chart, spot);
});

document.addEventListener("replaced", () => {
  const spot = pointer && document.elementFromPoint(...pointer)?.closest(".spot");
  if (spot) show(spot.closest("[data-chart]"), spot);
});
