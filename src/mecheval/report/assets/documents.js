// One document at a time: its tokens and roles, what a run answers, and what each activation restores.

const placesOf = (shown, role) => [shown.roles[role] ?? []].flat();

function rolesAt(shown, place) {
  const roles = Object.keys(shown.roles).filter((role) => placesOf(shown, role).includes(place));
  return shown.answer_at[0] === place ? [...roles, "answer"] : roles;
}

function tokenRow(shown) {
  return el("ol", { class: "tokens", "aria-label": "tokens of the document" }, shown.symbols.map((symbol, place) => {
    const roles = rolesAt(shown, place);
    const wrong = place === placesOf(shown, shown.key)[0];
    return el("li", { class: roles.length ? `token role-${shown.alike[roles[0]] ?? "answer"}` : "token" },
      el("span", { class: "symbol" }, symbol),
      el("span", { class: "role" }, roles.map((role) => role.replaceAll("_", " ")).join(", ")),
      wrong && el("span", { class: "substitute" }, el("span", { class: "unseen" }, "corrupted to "), `→ ${shown.substitute}`));
  }));
}

function answerList(title, answers) {
  return el("div", { class: "answers" }, el("h4", {}, title), el("ol", {}, answers.map(([symbol, p, right], place) =>
    el("li", {}, el("span", { class: "symbol" }, symbol), el("span", { class: "track", "aria-hidden": "true" }, el("span", { style: `width:${(100 * p).toFixed(1)}%` })),
      el("span", { class: "p" }, `${percent(p)} %`), right && el("span", { class: place ? "target" : "right" }, place ? "target" : "✓ right")))));
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

function documentView(run, shown) {
  const text = (role) => placesOf(shown, role).map((place) => shown.symbols[place]).join(" ");
  const spoken = (role) => role.replaceAll("_", " ");
  const tokens = tokenRow(shown);
  const seen = (role) => [...tokens.children].forEach((token, place) =>
    token.classList.toggle("seen", role !== null && placesOf(shown, role).includes(place)));
  const after = el("div", { class: "after", "aria-live": "polite" }, el("p", { class: "quiet" }, "Click a number to see what the run answers with that activation."));
  const chosen = (at, site, role) => after.replaceChildren(
    answerList(`Answers to the corrupted document with the clean ${site} at the ${spoken(role)}`, shown.patched[at]));
  return [
    tokens,
    el("p", {}, `The ${spoken(shown.query)} ${text(shown.query)} asks for ${shown.answer}. In the corrupted document, ${shown.substitute} stands in place of the ${spoken(shown.key)} ${text(shown.key)}. `
      + `The answer has likelihood ${two(shown.original)} in the original and ${two(shown.corrupted)} in the corrupted document.`),
    el("div", { class: "sides" }, answerList("Answers to the original", shown.answers[0]), answerList("Answers to the corrupted", shown.answers[1])),
    mapTable(run.layout, shown.values, "Restored likelihood of the answer for this document, after patching in one clean activation.", { seen, chosen }),
    after,
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
  const place = el("div", { class: "document", "aria-live": "polite" });
  const numbers = el("div", { class: "chips", role: "group", "aria-label": "document" });
  const select = el("select", { id: "explored", onchange: () => look(Number(select.value), 0) },
    documents.map((run, at) => el("option", { value: at }, name(run.run))));

  function look(at, which, first = false) {
    const run = documents[at];
    select.value = String(at);
    const number = run.documents?.[which].number;
    if (!first) history.replaceState(null, "", `#documents/${run.run}${known(number) ? `/${number}` : ""}`); // a link to this place
    const about = index.get(run.run);
    if (run.problem) {
      numbers.replaceChildren();
      place.replaceChildren(el("p", { class: "note" }, `This run cannot be loaded here: ${run.problem} The mean map below was stored when it was measured.`), ...[meanMap(about)].flat());
      return;
    }
    numbers.replaceChildren(el("span", { class: "axis" }, "test document"), ...run.documents.map((shown, n) =>
      button(String(shown.number), () => {
        look(at, n);
        numbers.querySelectorAll("button")[n].focus();
      }, { class: "chip", "aria-pressed": String(n === which) })));
    place.replaceChildren(el("h3", {}, `${name(run.run)}: test document ${run.documents[which].number}`),
      ...documentView(run, run.documents[which]).flat().filter(Boolean));
  }
  const [, linked, wanted] = location.hash.split("/"); // #documents/RUN/NUMBER
  const start = Math.max(0, documents.findIndex((run) => run.run === linked));
  look(start, Math.max(0, (documents[start].documents ?? []).findIndex((shown) => String(shown.number) === wanted)), true);
  return section("documents", "Documents", [
    el("p", {}, "How a run answers single test documents. The corruption replaces the key; then the activation of one site at one position is taken "
      + "from the original. Where the answer's likelihood comes back, the information was there."),
    el("div", { class: "pick" }, el("label", { for: "explored" }, "Run"), select), numbers, place,
  ]);
}
