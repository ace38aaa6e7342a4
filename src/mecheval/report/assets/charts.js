// Charts: drawn when they come near, drawn again when the theme changes, filtered by the chips of their section.

const charts = [];
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target.chart)),
  { rootMargin: "600px" },
);
const MANY = 400; // rows from which a canvas is faster than thousands of SVG elements

// A figure with chart number `number`; `signals()` says what its section's chips choose.
function figure(number, signals = () => ({})) {
  const words = data.words[number];
  const place = el("div", { class: "drawing", tabindex: 0, role: "img", "aria-label": words });
  const chart = { number, signals, place, view: null, drawn: null };
  const save = button("Save as SVG", () => saveSvg(chart), { class: "quiet" });
  const node = el("figure", { class: "chart" }, place,
    el("figcaption", {}, folded("In words", () => el("p", {}, words)), save));
  place.chart = chart;
  charts.push(chart);
  near.observe(place);
  return node;
}

// The promises inside wait for nothing but each other, so a chart that is asked for before printing is there in time.
async function draw(chart) {
  if (chart.drawn || !window.vegaEmbed) return;
  near.unobserve(chart.place);
  const turn = (chart.drawn = {}); // a later drawing, in other colours, replaces this one
  const plain = JSON.parse(document.getElementById(`spec-${chart.number}`).textContent);
  const spec = theme.dark ? painted(plain) : plain;
  const rows = Object.values(spec.datasets || {}).reduce((sum, part) => sum + part.length, 0);
  const stage = el("div");
  const { view } = await vegaEmbed(stage, spec, {
    mode: "vega-lite", actions: false, defaultStyle: false, renderer: rows > MANY ? "canvas" : "svg", config: looks(), tooltip,
    logLevel: 1, // errors
  });
  if (chart.drawn !== turn) {
    view.finalize();
    return;
  }
  chart.view?.finalize();
  chart.view = view;
  chart.place.replaceChildren(stage);
  chart.place.style.minHeight = "0"; // the height that reserved the chart's place until now
  choose(chart);
}

function choose(chart) {
  if (!chart.view) return;
  for (const [name, value] of Object.entries(chart.signals())) chart.view.signal(name, value);
  chart.view.run();
}

function redraw() {
  for (const chart of charts.filter((each) => each.drawn)) {
    chart.drawn = null;
    draw(chart);
  }
}

theme.heard.push(redraw);

// A printed page has every chart, in light colours.
function forPaper(paper) {
  if (theme.paper === paper) return;
  theme.paper = paper;
  if (document.documentElement.dataset.theme === "dark") redraw();
  if (paper) charts.forEach(draw);
}
addEventListener("beforeprint", () => forPaper(true));
addEventListener("afterprint", () => forPaper(false));
matchMedia("print").addEventListener("change", (event) => forPaper(event.matches));

// The specification with the colours of a dark page.
function painted(node, key = "", inRows = false) {
  const { dark, fields } = data.painted;
  if (Array.isArray(node)) return node.map((each) => painted(each, key, inRows));
  if (node && typeof node === "object") {
    return Object.fromEntries(Object.entries(node).map(
      ([name, value]) => [name, painted(value, name, inRows || (key === "datasets"))]));
  }
  if (typeof node !== "string" || (inRows && !fields.includes(key))) return node;
  if (node === "white" && ["fill", "stroke"].includes(key)) return dark["#ffffff"];
  return Object.hasOwn(dark, node) ? dark[node] : node;
}

function looks() {
  const ink = theme.dark ? "#e6e9ec" : "#1c2126";
  const quiet = theme.dark ? "#a9b3bd" : "#5c6670";
  return {
    background: null, font: "system-ui, sans-serif", axis: { labelColor: ink, titleColor: quiet },
    legend: { labelColor: ink, titleColor: quiet }, title: { color: ink, subtitleColor: quiet },
    text: { color: ink }, mark: { tooltip: null },
  };
}

// Tooltips: names and values, as text.
const tip = document.getElementById("tip");

function tooltip(handler, event, item, given) {
  const value = given ?? onLine(event);
  tip.hidden = !value;
  if (!value) return;
  const pairs = typeof value === "object" ? Object.entries(value) : [["", value]];
  tip.replaceChildren(el("dl", {}, pairs.map(([name, each]) => [el("dt", {}, name), el("dd", {}, String(each))])));
  const { clientX: x, clientY: y } = event;
  const { offsetWidth: wide, offsetHeight: high } = tip;
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - wide - 8))}px`;
  tip.style.top = `${y + high + 24 > innerHeight ? Math.max(8, y - high - 14) : y + 14}px`;
}

// Vega tells of a line only beside its points; a reader points anywhere on it, and means the nearest.
function onLine(event) {
  const line = event?.target?.__data__; // there is no event when a chart is taken away
  if (line?.mark?.marktype !== "line" || /out|leave/.test(event.type)) return null;
  const { left, width } = event.target.getBoundingClientRect();
  const [first, last] = [line.mark.items[0].x, line.mark.items.at(-1).x];
  const x = first + ((event.clientX - left) / Math.max(1, width)) * (last - first);
  return line.mark.items.reduce((best, each) => (Math.abs(each.x - x) < Math.abs(best.x - x) ? each : best)).tooltip;
}

addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

async function saveSvg(chart) {
  await draw(chart);
  const url = URL.createObjectURL(new Blob([await chart.view.toSVG()], { type: "image/svg+xml" }));
  el("a", { href: url, download: `chart-${chart.number}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
