// Maps: sites by depth, roles or positions across; a table, coloured.

const step = (value) => Math.round(Math.min(1, Math.max(0, value)) * (data.painted.ramp - 1));
const spoken = (role) => role.replaceAll("_", " ");
const roleHeads = (roles) => roles.map((role) => ({ name: spoken(role) }));

// The look of a cell by its number; what is below zero has a hue of its own.
function cellLook(value) {
  if (!known(value)) return { class: "none" };
  if (value > -0.05) return { class: `r${step(value)}` };
  return { style: `background:color-mix(in srgb, var(--bad) ${Math.round(45 * Math.min(1, -value))}%, var(--card))` };
}

// `heads` are the columns, [{ name, above? }]; `values` go site by site. `seen(column)` hears over which column the pointer
// or the focus is (null: none), `chosen(site, column)` of a click; `pressed` is the cell that is chosen, [site, column].
function mapTable(sites, heads, values, caption, { seen = null, chosen = null, pressed = null, narrow = false, flat = false } = {}) {
  let before = null;
  const buttons = [];
  const rows = sites.flatMap(([layer, name], site) => {
    const cells = heads.map((head, column) => {
      const value = values[site * heads.length + column];
      if (!chosen) return el("td", cellLook(value), two(value));
      const tell = (on) => () => seen(on ? column : null);
      const cell = button(two(value), () => {
        buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === cell)));
        chosen(site, column);
      }, {
        class: "cell", onfocus: tell(true), onblur: tell(false), "aria-pressed": String(pressed?.[0] === site && pressed?.[1] === column),
        "aria-label": `${two(value)}, ${name} of layer ${layer} at ${head.name}`,
      });
      buttons.push(cell);
      return el("td", { ...cellLook(value), onmouseenter: tell(true), onmouseleave: tell(false) }, cell);
    });
    const line = el("tr", {}, el("th", { scope: "row" }, name), cells);
    const first = layer !== before && !flat;
    before = layer;
    const title = known(layer) ? `layer ${layer}` : "other";
    return first ? [el("tr", { class: "layer" }, el("th", { colspan: heads.length + 1, scope: "colgroup" }, title)), line] : [line];
  });
  return [el("p", { class: "caption" }, caption), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: narrow ? "map narrow" : "map" },
      el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "unseen" }, "site")),
        heads.map(({ name, above }) => el("th", { scope: "col" }, above && el("span", { class: "symbol" }, above), name)))),
      el("tbody", {}, rows)))];
}

// The mean map of run number `run`.
function meanMap(run) {
  const map = data.runs.map[run];
  if (!map) return el("p", { class: "quiet" }, "There are no interventions on this run.");
  const [layout, shares, original, corrupted, values] = map;
  const done = data.runs.done[data.runs.task[run]] ?? "the document corrupted";
  const caption = shares
    ? `With ${done}, the likelihood of the answer falls from ${two(original)} to ${two(corrupted)}. `
      + "Restored share: how much of that returns after patching in one clean activation; mean over documents."
    : `The task is not learnt: the likelihood of the answer is ${two(original)}, and ${two(corrupted)} with ${done}, `
      + "so there is no share to restore. Shown is the likelihood after patching in one clean activation; mean over documents.";
  const { sites, roles } = data.runs.layouts[layout];
  return mapTable(sites, roleHeads(roles), values, caption);
}

function evidence(run) {
  const runs = data.runs;
  if (!known(runs.summary[run])) return null;
  const lines = known(runs.evidence[run]) ? runs.evidence[run].split("\n").filter(Boolean) : [];
  const agreement = known(runs.agreement[run])
    ? `Same verdict in ${(100 * runs.agreement[run]).toFixed(1)} % of bootstrap resamples.` : null;
  return el("div", { class: "evidence" }, el("p", {}, el("strong", {}, runs.summary[run])),
    el("ul", {}, [agreement, ...lines].filter(Boolean).map((text) => el("li", {}, text))));
}
