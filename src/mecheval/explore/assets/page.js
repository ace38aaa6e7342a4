// Edits and patches go to the server, which answers with everything that the page shows. Text is only ever textContent.
const byId = (id) => document.getElementById(id);
const patches = new Set();
let start;
let running = false;
let again = false;

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children.flat());
  return made;
}

function documentRow(name) {
  const places = Object.entries(start.roles);
  return el("div", { class: "row", id: name }, el("b", {}, name), start[name].map((symbol, place) => {
    const roles = places.filter(([, at]) => at.includes(place)).map(([role]) => role).join(", ");
    const input = el("input", { list: "symbols", value: symbol, "aria-label": `${name} token ${place} ${roles}` });
    input.addEventListener("change", () => {
      input.classList.toggle("changed", input.value !== symbol);
      update();
    });
    return el("label", { class: "token" }, roles || " ", input);
  }));
}

const words = (name) => [...byId(name).querySelectorAll("input")].map((input) => input.value.trim());

function answerList(title, answers) {
  return el("div", {}, el("h2", {}, title), el("ol", {}, answers.map(([symbol, p, right]) =>
    el("li", { class: right ? "right" : "" }, `${symbol} ${(100 * p).toFixed(1)} %${right ? " ✓" : ""}`))));
}

function cell(site, role, share) {
  const name = JSON.stringify([site, role]);
  const made = el("button", { "aria-pressed": patches.has(name), "aria-label": `${site} at ${role}`, "data-cell": `${site}@${role}` },
    share === null ? "–" : share.toFixed(2));
  const depth = Math.max(0, Math.min(1, share ?? 0));
  made.style.backgroundColor = `color-mix(in srgb, #2b79b8 ${Math.round(70 * depth)}%, transparent)`;
  made.addEventListener("click", () => {
    if (!patches.delete(name)) patches.add(name);
    update();
  });
  return el("td", {}, made);
}

function show(found) {
  byId("answers").replaceChildren(answerList("clean", found.answers.clean), answerList("corrupted", found.answers.corrupted),
    answerList("patched", found.answers.patched));
  byId("verdict").textContent = found.verdict;
  const head = el("tr", {}, el("th"), found.map.roles.map((role) => el("th", { scope: "col" }, role)));
  const focused = document.activeElement?.getAttribute("data-cell");
  byId("map").replaceChildren(el("table", {}, head, found.map.rows.map((row) =>
    el("tr", {}, el("th", { scope: "row" }, row.site), found.map.roles.map((role) => cell(row.site, role, row.shares[role]))))));
  if (focused) byId("map").querySelector(`[data-cell="${CSS.escape(focused)}"]`)?.focus();
}

async function update() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  const began = performance.now();
  const asked = { clean: words("clean"), corrupted: words("corrupted"), direction: byId("direction").value, patches: [...patches].map((each) => JSON.parse(each)) };
  try {
    const response = await fetch("answer", { method: "POST", body: JSON.stringify(asked) });
    const found = await response.json();
    byId("problem").textContent = found.error ?? "";
    if (!found.error) {
      show(found);
      byId("took").textContent = `${Math.round(performance.now() - began)} ms`;
    }
  } catch {
    byId("problem").textContent = "The server has ended.";
  }
  running = false;
  if (again) {
    again = false;
    update();
  }
}

start = await (await fetch("start")).json();
byId("title").textContent = start.title;
byId("symbols").append(...start.symbols.map((symbol) => el("option", { value: symbol })));
byId("documents").append(documentRow("clean"), documentRow("corrupted"));
byId("direction").addEventListener("change", update);
byId("none").addEventListener("click", () => {
  patches.clear();
  update();
});
update();
