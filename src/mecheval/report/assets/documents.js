// One document at a time: its tokens and roles, what a run answers, and what each activation restores.

const placesOf = (shown, role) => [shown.roles[role] ?? []].flat();

function rolesAt(shown, place) {
  const roles = Object.keys(shown.roles).filter((role) => placesOf(shown, role).includes(place));
  return shown.answer_at[0] === place ? [...roles, "answer"] : roles;
}

// Tokens that a run reads are buttons: `look(token)` hears over which the pointer or the focus is, `choose(token)` of a click.
function tokenRow(shown, reads) {
  return el("ol", { class: "tokens", "aria-label": "tokens of the document" }, shown.symbols.map((symbol, place) => {
    const roles = rolesAt(shown, place);
    const wrong = place === placesOf(shown, shown.key)[0];
    const tell = (on) => () => reads.look(on ? place : null);
    const props = { onmouseenter: tell(true), onmouseleave: tell(false), onfocus: tell(true), onblur: tell(false), class: "symbol" };
    return el("li", { class: roles.length ? `token role-${shown.alike[roles[0]] ?? "answer"}` : "token" },
      place <= reads.last ? button(symbol, () => reads.choose(place), props) : el("span", { class: "symbol" }, symbol),
      el("span", { class: "role" }, roles.map(spoken).join(", ")),
      wrong && el("span", { class: "substitute" }, el("span", { class: "unseen" }, "corrupted to "), `→ ${shown.substitute}`));
  }));
}

// `answers` are [name, per mille, name, per mille, ...], the likeliest first; names are numbers of `run.names`.
function answerList(run, shown, title, answers) {
  const each = answers.filter((_, at) => at % 2 === 0).map((name, place) => [run.names[name], answers[2 * place + 1] / 1000]);
  return el("div", { class: "answers" }, el("h4", {}, title), el("ol", {}, each.map(([symbol, p], place) =>
    el("li", {}, el("span", { class: "symbol" }, symbol), el("span", { class: "track", "aria-hidden": "true" }, el("span", { style: `width:${(100 * p).toFixed(1)}%` })),
      el("span", { class: "p" }, `${percent(p)} %`),
      symbol === shown.answer && el("span", { class: place ? "target" : "right" }, place ? "target" : "✓ right")))));
}

function treePicture(shown) {
  const { parents, owners, asked } = shown.tree;
  const last = shown.roles.divider;
  const places = shown.symbols.map((_, place) => place).filter((place) => place > 0 && place < last);
  const depth = (place) => (parents[place] < 0 ? 0 : 1 + depth(parents[place]));
  const longest = Math.max(...places.map((place) => Math.max(shown.symbols[place].length, (owners[place] ?? "").length)));
  const wide = Math.max(34, 8 * longest + 10);
  const x = (place) => (place - 0.5) * wide;
  const y = (place) => 24 + depth(place) * 52;
  const deepest = Math.max(...places.map(depth));
  const isAsked = (child) => asked.some(([from]) => from === child);
  const edges = places.filter((place) => parents[place] >= 0).sort((a, b) => isAsked(a) - isAsked(b)).map((place) => {
    const parent = parents[place];
    const turn = y(place) - 26;
    return svg("path", {
      class: isAsked(place) ? "edge asked" : "edge",
      d: `M${x(parent)},${y(parent)} L${x(parent)},${turn} L${x(place)},${turn} L${x(place)},${y(place)}`,
    });
  });
  const nodes = places.map((place) => {
    const role = rolesAt(shown, place)[0];
    const owner = owners[place];
    return svg("g", { transform: `translate(${x(place)},${y(place)})` },
      svg("rect", { class: role ? `node role-${shown.alike[role] ?? "answer"}` : "node", x: -wide / 2 + 2, y: -16, width: wide - 4, height: 32, rx: 5 }),
      owner && svg("text", { class: "owner", y: -4, "text-anchor": "middle" }, owner),
      svg("text", { y: owner ? 10 : 4, "text-anchor": "middle" }, shown.symbols[place]));
  });
  const width = wide * places.length;
  const height = 48 + deepest * 52;
  const said = places.map((place) => (parents[place] < 0 ? `${shown.symbols[place]} is the root`
    : `${shown.symbols[place]} at ${place} below ${shown.symbols[parents[place]]} at ${parents[place]}`)).join("; ");
  return el("figure", { class: "tree" },
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "derivation" },
      svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Tree: ${said}.` }, edges, nodes)),
    el("figcaption", {}, "The derivation. Each terminal stands above its place in the document, and what it heads hangs below it; "
      + "over a head stands the nonterminal that it expands. The thick line is what the query asks for."));
}

const FEW = 16; // positions that a wide page shows as columns without being asked
const alike = (a, b) => a.length === b.length && a.every((place, at) => place === b[at]);
const telling = (shown) => shown.original - shown.corrupted > 0.5; // the corruption takes the answer away: the document to begin with
const siteName = ([layer, part]) => `${layer}.${part}`;

// The columns of a document's map: its roles, or all positions. Each names its number among the columns of the data.
function columnsOf(run, shown, view) {
  const text = (places) => places.map((place) => shown.symbols[place]).join(" ");
  if (view === "positions") {
    return shown.columns.map((places, at) => ({ places, at, above: text(places), role: rolesAt(shown, places[0]).map(spoken).join(", ") }))
      .filter(({ places }) => places.length === 1).map((column) => ({ ...column, name: column.role || String(column.places[0]) }));
  }
  return run.layout.roles.map((role) => {
    const at = shown.columns.findIndex((places) => alike(places, placesOf(shown, role)));
    return at < 0 ? null : { places: shown.columns[at], at, name: spoken(role), role: spoken(role), above: text(shown.columns[at]) };
  }).filter(Boolean);
}

// `place` is what the address says besides the document: { view, patch, token }; `tell(place)` writes it there.
function documentView(run, shown, place, tell) {
  const text = (role) => placesOf(shown, role).map((at) => shown.symbols[at]).join(" ");
  const { sites } = run.layout;
  const heads = columnsOf(run, shown, "positions");
  const columns = columnsOf(run, shown, place.view);
  const mark = (places) => [...tokens.children].forEach((token, at) => token.classList.toggle("seen", places.includes(at)));
  const reading = (token) => [...tokens.children].forEach((node, at) => node.classList.toggle("reads", token === at));
  const choose = (token) => {
    reads.pin(token);
    reading(token);
    tell({ token });
  };
  const reads = shown.reads ? readsView(shown, heads, choose) : null;
  const tokens = tokenRow(shown, reads ? { last: reads.last, look: (token) => reads.show(token), choose } : { last: -1 });
  if (reads && Number(place.token) <= reads.last) {
    reads.pin(Number(place.token));
    reading(Number(place.token));
  }
  const after = el("div", { class: "after", "aria-live": "polite" }, el("p", { class: "quiet" }, "Choose a number to see what the run answers with that activation."));
  const patched = (site, column) => {
    const at = site * shown.columns.length + columns[column].at;
    const where = columns[column].role ? `the ${columns[column].role} ${columns[column].above}` : `${columns[column].above}, position ${columns[column].places[0]}`;
    after.replaceChildren(answerList(run, shown, `Answers to the corrupted document with the clean ${sites[site][1]} of layer ${sites[site][0]} at ${where}`,
      shown.patched[at] ?? shown.answers[1]));
  };
  const [site, column] = [
    sites.findIndex((each) => place.patch?.split("@")[0] === siteName(each)),
    columns.findIndex(({ places }) => place.patch?.split("@")[1] === places.join("+")),
  ];
  if (site >= 0 && column >= 0) patched(site, column);
  const views = el("div", { class: "chips", role: "group", "aria-label": "columns" }, el("span", { class: "axis" }, "columns"),
    [["roles", "roles"], ["positions", "all positions"]].map(([view, name]) =>
      button(name, () => tell({ view }, true), { class: "chip", "aria-pressed": String(view === place.view) })));
  return [
    tokens,
    el("p", {}, `The ${spoken(shown.query)} ${text(shown.query)} asks for ${shown.answer}. In the corrupted document, ${shown.substitute} stands in place of the ${spoken(shown.key)} ${text(shown.key)}. `
      + `The answer has likelihood ${two(shown.original)} in the original and ${two(shown.corrupted)} in the corrupted document.`),
    el("div", { class: "sides" }, answerList(run, shown, "Answers to the original", shown.answers[0]), answerList(run, shown, "Answers to the corrupted", shown.answers[1])),
    el("h4", {}, "What each activation restores"), views,
    mapTable(sites, columns, sites.flatMap((_, at) => columns.map((each) => shown.values[at * shown.columns.length + each.at])),
      "Restored likelihood of the answer for this document, after patching in one clean activation.", {
        narrow: place.view === "positions", pressed: [site, column], seen: (at) => mark(at === null ? [] : columns[at].places),
        chosen: (row, at) => {
          patched(row, at);
          tell({ patch: `${siteName(sites[row])}@${columns[at].places.join("+")}` });
        },
      }),
    after,
    reads && reads.node,
    shown.tree && treePicture(shown),
  ];
}

function documentsSection() {
  const { documents, runs } = data;
  const index = new Map(runs.run.map((run, place) => [run, place]));
  const name = (run) => {
    const at = index.get(run);
    const seed = data.about.seeds > 1 ? ` · seed ${runs.seed[at]}` : "";
    return `${runs.task_name[at]} · ${runs.mixer_name[at]} · d ${runs.d_model[at]} · ${plural(runs.n_layers[at], "layer")}${seed} · ${verdictText(at)}`;
  };
  if (!documents.length) return null;
  const node = el("div", { class: "document", "aria-live": "polite" });
  const numbers = el("div", { class: "chips", role: "group", "aria-label": "document" });
  let asked = null; // the columns that the reader asked for, in any document
  const select = el("select", { id: "explored", onchange: () => {
    const at = Number(select.value);
    link(look(at, Math.max(0, (documents[at].documents ?? []).findIndex(telling))));
  } },
    documents.map((run, at) => el("option", { value: at }, name(run.run))));
  const link = (parts) => history.replaceState(null, "", `#documents/${parts.filter(known).join("/")}`);

  // Shows a document, and returns the parts of its address.
  function look(at, which, place = {}) {
    const run = documents[at];
    const shown = run.documents?.[which];
    select.value = String(at);
    if (run.problem) {
      numbers.replaceChildren();
      node.replaceChildren(el("p", { class: "note" }, `This run cannot be loaded here: ${run.problem} The mean map below was stored when it was measured.`),
        ...[meanMap(index.get(run.run))].flat());
      return [run.run];
    }
    const view = place.view ?? asked ?? (shown.columns.length <= FEW && innerWidth >= 960 ? "positions" : "roles");
    const here = (now) => [run.run, shown.number, ...["view", "patch", "token"].filter((part) => known(now[part])).map((part) => `${part}=${now[part]}`)];
    const tell = (change, again = false) => {
      place = { ...place, ...change };
      asked = change.view ?? asked;
      link(here(place));
      if (!again) return;
      look(at, which, place);
      node.querySelector("[aria-label=columns] [aria-pressed=true]").focus();
    };
    numbers.replaceChildren(el("span", { class: "axis" }, "test document"), ...run.documents.map((each, n) =>
      button(String(each.number), () => {
        link(look(at, n));
        numbers.querySelectorAll("button")[n].focus();
      }, { class: "chip", "aria-pressed": String(n === which) })));
    node.replaceChildren(el("h3", {}, `${name(run.run)}: test document ${shown.number}`),
      ...documentView(run, shown, { ...place, view }, tell).flat(Infinity).filter(Boolean));
    return here(place);
  }

  // #documents/RUN/NUMBER/view=positions/patch=1.input@4/token=8
  function follow() {
    const [, linked, wanted, ...rest] = location.hash.split("/").map(decodeURIComponent);
    const start = Math.max(0, documents.findIndex((run) => run.run === linked));
    const which = (documents[start].documents ?? []).findIndex((shown) => (known(wanted) ? String(shown.number) === wanted : telling(shown)));
    look(start, Math.max(0, which), Object.fromEntries(rest.map((part) => part.split("="))));
  }
  follow();
  addEventListener("hashchange", () => location.hash.startsWith("#documents/") && follow());
  return section("documents", "Documents", [
    el("p", {}, "How a run answers single test documents. The corruption replaces the symbol on which the answer depends; then the activation of one site at one position is taken "
      + "from the original. Where the answer's likelihood comes back, the information was there. Hover over a token to see what each layer reads there; "
      + "the address in the browser is a link to what you see."),
    el("div", { class: "pick" }, el("label", { for: "explored" }, "Run"), select), numbers, node,
  ]);
}
