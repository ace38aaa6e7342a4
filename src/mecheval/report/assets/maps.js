// Maps: sites by depth, roles across; a table, coloured.

const step = (value) => Math.round(Math.min(1, Math.max(0, value)) * (data.painted.ramp - 1));

// `seen(role)` hears over which column the pointer or the focus is (null: none), `chosen(place, site, role)` of a click.
function mapTable(layout, values, caption, { seen = null, chosen = null } = {}) {
  const { sites, roles } = layout;
  let before = null;
  const rows = sites.flatMap(([layer, name], place) => {
    const cells = roles.map((_, role) => {
      const at = place * roles.length + role;
      const shown = two(values[at]);
      const look = known(values[at]) ? `r${step(values[at])}` : "none";
      if (!chosen) return el("td", { class: look }, shown);
      const tell = (on) => () => seen(on ? roles[role] : null);
      return el("td", { class: look, onmouseenter: tell(true), onmouseleave: tell(false) },
        button(shown, () => chosen(at, `${name} of layer ${layer}`, roles[role]), { class: "cell", onfocus: tell(true), onblur: tell(false) }));
    });
    const line = el("tr", {}, el("th", { scope: "row" }, name), cells);
    const first = layer !== before;
    before = layer;
    const title = known(layer) ? `layer ${layer}` : "other";
    return first ? [el("tr", { class: "layer" }, el("th", { colspan: roles.length + 1, scope: "colgroup" }, title)), line] : [line];
  });
  return [el("p", { class: "caption" }, caption), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: "map" },
      el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "unseen" }, "site")),
        roles.map((role) => el("th", { scope: "col" }, role.replaceAll("_", " "))))),
      el("tbody", {}, rows)))];
}

// The mean map of run number `run`.
function meanMap(run) {
  const map = data.runs.map[run];
  if (!map) return el("p", { class: "quiet" }, "There are no interventions on this run.");
  const [layout, shares, original, corrupted, values] = map;
  const caption = shares
    ? `With the key corrupted, the likelihood of the answer falls from ${two(original)} to ${two(corrupted)}. `
      + "Restored share: how much of that returns after patching in one clean activation; mean over documents."
    : `The task is not learnt: the likelihood of the answer is ${two(original)}, and ${two(corrupted)} with the key corrupted, `
      + "so there is no share to restore. Shown is the likelihood after patching in one clean activation; mean over documents.";
  return mapTable(data.runs.layouts[layout], values, caption);
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
