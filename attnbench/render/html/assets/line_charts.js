"use strict";
// Draws the line charts of a page from their specifications (render/html/line_charts.py): as wide as the page, or as given.
(() => {
  const MOST = 820, LEAST = 250, AXIS = 70, SYMBOL = 24; // pixels
  const charts = JSON.parse(document.getElementById("line-charts").textContent);
  const boxes = [...document.querySelectorAll("[data-chart]")];
  const draw = (box) => {
    const spec = charts[box.dataset.chart];
    const width = Number(box.dataset.width) || Math.max(LEAST, Math.min(MOST, box.clientWidth)) - AXIS;
    const own = { ...JSON.parse(JSON.stringify(spec)), width, height: Number(box.dataset.height) || spec.height };
    for (const { encoding } of own.layer)
      for (const one of Object.values(encoding)) if (one.legend) one.legend.labelLimit = width - SYMBOL;
    box.textContent = "";
    box.view = new vega.View(vega.parse(vegaLite.compile(own).spec), { renderer: "svg", container: box, logLevel: vega.Error });
    box.view.run();
    box.querySelector("svg").setAttribute("aria-hidden", "true"); // the box says its finding
  };
  const drawAll = () => boxes.forEach(draw);
  const svgOf = (name) => boxes.find((one) => one.dataset.chart === name && !one.dataset.width).view.toSVG();
  const rowsOf = ({ data: { values }, layer }) => {
    const { x, y } = layer[0].encoding;
    return [["line", "point", x.title, y.title, "low", "high"], ...values.map((of) => [of.line, of.name, of.x, of.y, of.low, of.high])];
  };
  for (const button of document.querySelectorAll("[data-save-chart]")) {
    const { saveChart: name, as } = button.dataset;
    button.addEventListener("click", async () =>
      as === "svg" ? attnbench.saveSvg(name, await svgOf(name)) : attnbench.saveCsv(name, rowsOf(charts[name])),
    );
  }
  let width = innerWidth, timer;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(drawAll, 150);
  });
  drawAll();
})();
