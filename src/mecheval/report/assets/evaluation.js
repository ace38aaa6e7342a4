// A page about one evaluated model: the finding, the table of models, the map of effects, and the evidence.

const { finding, heads, rows, own, lines } = data;
const numeric = (place) => rows.every((row) => /^[\d.–-]*$/.test(row[place]));
document.getElementById("menu").remove();
document.getElementById("nav").remove();
document.querySelector(".frame").classList.add("single");
document.getElementById("main").append(
  el("div", { class: "head" }, el("h1", {}, el("span", { class: "finding" }, finding))),
  el("section", {}, el("h2", {}, rows.length > 1 ? "Beside other models" : "The model"),
    table({
      label: "models", rows: rows.map((_, row) => row), marked: (row) => own[row],
      columns: heads.map((name, place) => ({ name, value: (row) => rows[row][place], number: numeric(place) })),
    }).node),
  el("section", {}, el("h2", {}, "What each activation restores"), data.words.map((_, number) => figure(number)),
    el("ul", { class: "evidence" }, lines.map((text) => el("li", {}, text)))),
  el("footer", {}, el("p", {}, "Made by mecheval. This file needs no network and no other file.")),
);
