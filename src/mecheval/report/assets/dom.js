// Elements made from data; text always stays text and never becomes markup.

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function button(text, onclick, props = {}) {
  return el("button", { type: "button", onclick, ...props }, text);
}

// A line that opens; what is inside is made when it is first seen.
function folded(title, make, props = {}) {
  const node = el("details", props, el("summary", {}, title));
  node.addEventListener("toggle", () => {
    if (node.open && node.childElementCount === 1) node.append(make());
  });
  return node;
}

// A name that may break before the digest of a custom mixer and the parts of a hybrid.
const breakable = (name) => name.split(/(?=[@+])/).flatMap((part, place) => (place ? [el("wbr"), part] : part));

const MISSING = "–";
const known = (value) => value !== null && value !== undefined;
const percent = (value) => (known(value) ? (100 * value).toFixed(1).replace(/^-0\.0$/, "0.0") : MISSING);
const two = (value) => (known(value) ? value.toFixed(2).replace("-0.00", "0.00") : MISSING);
const rate = (value) => (known(value) ? value.toExponential().replace(/e\+?/, "e") : MISSING);
const count = (value) => (known(value) ? value.toLocaleString("en") : MISSING);
const words = (label) => (known(label) ? label.replace("conv_association", "short convolution").replaceAll("_", " ") : MISSING);
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

function duration(seconds) {
  if (!known(seconds)) return MISSING;
  if (seconds < 60) return `${seconds.toFixed(0)} s`;
  if (seconds < 3600) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
