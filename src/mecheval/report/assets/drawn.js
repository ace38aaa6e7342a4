// This script comes before Vega's, so that text stands while that is read; then what is near is drawn.
addEventListener("vega", () => {
  charts.forEach((chart) => {
    near.unobserve(chart.place);
    near.observe(chart.place);
  });
});
