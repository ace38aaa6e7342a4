// What each layer reads in a document: the shares at one token as a table, and those of all tokens as grids.

const DENSE = 24; // tokens from which on the cells of a grid are small

// A grid a layer: a row is a token that reads, a column one that is read. `choose(token)` hears of a click, `look(token)` of a hover.
function readGrid(shares, layer, symbols, { look, choose }) {
  const cell = shares.length > DENSE ? 10 : 16; // pixels
  const letter = shares.length > DENSE ? 9 : 11;
  const label = 6 + 0.65 * letter * Math.max(...symbols.map((symbol) => symbol.length));
  const side = cell * shares.length;
  const rows = shares.map((row, t) => svg("g", { class: "reader", onmouseenter: () => look(t), onmouseleave: () => look(null), onclick: () => choose(t) },
    svg("rect", { class: "band", x: 0, y: label + cell * t, width: label + side, height: cell }),
    svg("text", { x: label - 5, y: label + cell * (t + 0.75), "text-anchor": "end" }, symbols[t]),
    row.map((share, s) => {
      const hue = cellLook(share / 100);
      const fill = hue.class ? `fill:var(--r${step(share / 100)})` : hue.style.replace("background", "fill");
      return svg("rect", { class: "share", style: fill, x: label + cell * s, y: label + cell * t, width: cell - 1, height: cell - 1 },
        svg("title", {}, `layer ${layer}: ${symbols[t]} reads ${two(share / 100)} from ${symbols[s]}`));
    })));
  const heads = shares.map((_, s) => svg("text", { transform: `translate(${label + cell * (s + 0.7)},${label - 5}) rotate(-90)` }, symbols[s]));
  const picture = svg("svg", { width: label + side, height: label + side, viewBox: `0 0 ${label + side} ${label + side}`, role: "img", style: `font-size:${letter}px`,
    "aria-label": `Layer ${layer}: share of what each token reads that comes from each earlier token.` }, heads, rows);
  return { node: el("figure", { class: "grid" }, el("h5", {}, `layer ${layer}`), picture), rows };
}

// `show(token)` is what the page calls when another token is looked at.
function readsView(shown, heads, choose) {
  const last = shown.reads[0].length - 1;
  const place = el("div", { class: "strip" });
  let pinned = last;
  const grids = shown.reads.map((shares, layer) => readGrid(shares, layer, shown.symbols, { look: (token) => view.show(token), choose }));
  const view = {
    last,
    node: [el("h4", {}, "What each layer reads"), place, el("div", { class: "grids" }, grids.map((grid) => grid.node)),
      el("p", { class: "caption" }, "A row is a token that reads, a column one that it reads from; the stronger its colour, the larger the share. Choose a row or a token above to keep it.")],
    pin(token) {
      pinned = token;
      view.show(null);
    },
    show(token) {
      const at = token ?? pinned;
      const values = shown.reads.flatMap((shares) => Array.from({ length: last + 1 }, (_, s) => (s <= at ? shares[at][s] / 100 : null)));
      place.replaceChildren(...mapTable(shown.reads.map((_, layer) => [null, `layer ${layer}`]), heads, values,
        `At ${heads[at].above}${heads[at].role ? ` (${heads[at].role})` : ""}, position ${at}: the share of what the layer's mixer reads that comes from each token. `
        + "Shares of a layer sum to 1; a negative one counts against the result.", { narrow: true, flat: true }));
      grids.forEach((grid) => grid.rows.forEach((row, t) => row.classList.toggle("on", t === at)));
    },
  };
  view.show(null);
  return view;
}
