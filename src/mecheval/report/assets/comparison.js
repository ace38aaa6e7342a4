// Our results beside the paper's: claims with their outcomes, then numbers cell by cell.

const SIGNS = { reproduced: "✓", contradicted: "✗", inconclusive: "≈" };
const points = (value) => (known(value) ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`.replace(/^[+-]0\.0$/, "0.0") : MISSING);

const OUTCOMES = {
  reproduced: "Reproduced: ", contradicted: "Contradicted: ", inconclusive: "Not decided yet: ",
};

// What a claim rests on, with titles.
const CLAIM = {
  where: "section", paper: "the paper", tested: "tested", evidence: "found", needs: "missing", lenient: "if most is enough",
  flips: "with other limits",
};

// A claim of the paper as a sentence, and what we found.
function claimItem(claim) {
  const outcome = Object.keys(OUTCOMES).find((each) => claim.outcome.startsWith(each)) ?? "inconclusive";
  const where = claim.outcome.slice(outcome.length).trim();
  return el("li", { class: "claim" },
    el("p", {}, el("strong", { class: `o-${outcome}` }, `${SIGNS[outcome]} ${where ? `${OUTCOMES[outcome].slice(0, -2)} ${where}: ` : OUTCOMES[outcome]}`), claim.says),
    el("p", { class: "quiet" }, `${claim.ours || claim.evidence} (${claim.rests})`),
    folded("What the paper says, how it was tested, and what is missing", () => el("dl", { class: "pairs" },
      Object.entries(CLAIM).filter(([name]) => claim[name]).map(([name, title]) => [el("dt", {}, title), el("dd", {}, claim[name])]))));
}

function cellsTable(study) {
  const { cells } = study;
  const rows = cells.mixer.map((_, row) => row);
  const rates = cells.lr.some(known);
  return table({
    label: `numbers of study ${study.study} beside the paper's`, rows, step: 20,
    columns: [
      { name: "mixer", value: (row) => cells.mixer[row] },
      { name: "lr", value: (row) => cells.lr[row], show: (row) => rate(cells.lr[row]), number: true, hidden: () => !rates },
      { name: "d", value: (row) => cells.d_model[row], number: true },
      { name: "quantity", value: (row) => words(cells.quantity[row]) },
      { name: "ours %", value: (row) => cells.ours[row], number: true, show: (row) => percent(cells.ours[row]) },
      {
        name: "range %", value: (row) => cells.high[row] - cells.low[row], number: true, hidden: () => !cells.seeds.some((n) => n > 1),
        show: (row) => (cells.seeds[row] > 1 ? `${percent(cells.low[row])} to ${percent(cells.high[row])}` : MISSING),
      },
      { name: "paper %", value: (row) => cells.paper[row], number: true, show: (row) => percent(cells.paper[row]) },
      { name: "difference", value: (row) => cells.difference[row], number: true, show: (row) => points(cells.difference[row]) },
    ],
  }).node;
}

function patternsTable(study) {
  const { patterns } = study;
  return table({
    label: `where runs of study ${study.study} are restored most`, rows: patterns.mixer.map((_, row) => row),
    columns: [
      { name: "mixer", value: (row) => patterns.mixer[row] }, { name: "ours", value: (row) => patterns.ours[row] || MISSING },
      { name: "paper", value: (row) => patterns.paper[row] || MISSING },
      {
        name: "same place", value: (row) => (patterns.main[row] && patterns.learnt[row] ? patterns.same[row] / patterns.learnt[row] : null),
        show: (row) => (patterns.main[row] && patterns.learnt[row] ? `${patterns.same[row]} of ${plural(patterns.learnt[row], "run")}` : MISSING),
      },
    ],
  }).node;
}

function comparisonSection() {
  const { comparison, about } = data;
  if (!comparison.studies.length) return null;
  const settings = new Map();
  comparison.studies.forEach((study) => study.settings.forEach(({ task, ours, paper }) => {
    settings.set(`${task}: ours ${ours}; the paper's ${paper}`, ours === paper ? `${task}: both ${ours}.` : `${task}: ours ${ours}; the paper's ${paper}.`);
  }));
  const numbers = comparison.studies.filter((study) => study.cells.mixer.length);
  return section("paper", "Comparison with the paper", [
    el("p", {}, `Scale ${about.scale}. `, about.scale === "paper" ? "Both sides have the same settings. "
      : "Our tasks are smaller and training is shorter, so levels differ; compare which mixers recall, and at which position they are restored. ",
      "The paper has one seed and, without a hold-out, chose learning rates on the documents that it reports; we choose on dev and report test."),
    el("ul", {}, [...settings.values()].map((text) => el("li", {}, text))),
    comparison.charts.map((number) => figure(number)),
    comparison.claims.length > 0 && [
      el("h3", {}, "What the paper says, and what we found"),
      el("ul", { class: "claims" }, comparison.claims.map(claimItem)),
    ],
    comparison.counted && el("p", { class: "quiet" }, comparison.counted),
    numbers.map((study) => [
      el("h3", {}, `Numbers of figure ${study.figure}`),
      el("p", {}, "Likelihood of the right answer: for the original document, for the corrupted one, and after patching in one clean activation; differences in percentage points."),
      study.agreement && el("p", {}, study.agreement),
      study.arms && el("p", {}, study.arms),
      folded("Where models that learnt are restored most", () => patternsTable(study), { open: true }),
      cellsTable(study),
    ]),
  ]);
}
