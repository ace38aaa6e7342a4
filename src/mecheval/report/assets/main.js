// The page: its sections, and the way to them.

function section(id, title, content, above = null, short = null) {
  const node = el("section", { id, "aria-labelledby": `${id}-title` },
    above && el("p", { class: "above" }, above), el("h2", { id: `${id}-title` }, title), content);
  node.short = short ?? title;
  return node;
}

const isStudy = (node) => node.id.startsWith("study-");

function contents(sections) {
  const links = sections.map((node) => {
    const link = el("a", { href: `#${node.id}`, onclick: () => toggle(false) }, node.short);
    return el("li", { class: isStudy(node) && "study" }, link);
  });
  const first = sections.findIndex(isStudy);
  if (first >= 0) links.splice(first, 0, el("li", { class: "label" }, "Studies"));
  return el("ul", {}, links);
}

const menu = document.getElementById("menu");
function toggle(open) {
  menu.setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("open", open);
}
menu.addEventListener("click", () => toggle(menu.getAttribute("aria-expanded") !== "true"));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.body.classList.contains("open")) {
    toggle(false);
    menu.focus();
  }
});

const main = document.getElementById("main");
const { about } = data;
const states = Object.entries(about.statuses).map(([status, n]) => (n === about.runs ? status : `${count(n)} ${status}`)).join(", ");
const sections = [
  summarySection(), mixersSection(), ...data.studies.map(studySection), trainingSection(), comparisonSection(), documentsSection(), runsSection(),
].filter(Boolean);
main.append(
  el("div", { class: "head" }, findingText(),
    el("p", { class: "quiet" }, `${plural(about.runs, "run")} (${states}) in ${about.store}, as of ${about.updated} · ${plural(about.seeds, "seed")} · `
      + `${duration(about.hours * 3600)} of training · scale ${about.scale} · mecheval ${about.version}`)),
  ...sections,
  el("footer", {}, el("p", {}, "Made by mecheval from a store of runs. This file needs no network and no other file. "
    + "Charts are drawn by Vega and Vega-Lite (BSD-3-Clause, University of Washington Interactive Data Lab).")),
);
document.getElementById("nav").append(contents(sections));

// Mark the section that the reader is in.
const here = new Map([...document.querySelectorAll("#nav a")].map((link) => [link.hash.slice(1), link]));
const spy = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) here.forEach((link, id) => (id === target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  }
}, { rootMargin: "-20% 0px -75% 0px" });
sections.forEach((node) => spy.observe(node));

if (location.hash) document.getElementById(location.hash.slice(1).split("/")[0])?.scrollIntoView();
