"use strict";
// Draws the line charts of a page from their specifications (render/html/line_charts.py): as wide as the page, or as given.
(() => {
  const MOST = 820, LEAST = 250, AXIS = 70, NARROW = 420; // pixels
  const charts = JSON.parse(document.getElementById("line-charts").textContent);
  const boxes = [...document.querySelectorAll("[data-chart]")];
  const draw = (box) => {
    const { spec } = charts[box.dataset.chart];
    const width = Number(box.dataset.width) || Math.max(LEAST, Math.min(MOST, box.clientWidth)) - AXIS;
    const own = { ...JSON.parse(JSON.stringify(spec)), width, height: Number(box.dataset.height) || spec.height };
    for (const { encoding } of width < NARROW ? own.layer : [])
      for (const one of Object.values(encoding)) if (one.legend) one.legend.columns = 1;
    box.textContent = "";
    box.view = new vega.View(vega.parse(vegaLite.compile(own).spec), { renderer: "svg", container: box, logLevel: vega.Error });
    box.view.run();
    box.querySelector("svg").setAttribute("aria-hidden", "true"); // the box says its finding
  };
  const drawAll = () => boxes.forEach(draw);
  for (const button of document.querySelectorAll("[data-save-chart]")) {
    button.addEventListener("click", async () => {
      const place = button.dataset.saveChart, style = getComputedStyle(document.documentElement);
      const box = boxes.find((one) => one.dataset.chart === place && !one.dataset.width);
      const svg = (await box.view.toSVG()).replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim());
      const paper = `<rect width="100%" height="100%" fill="${style.getPropertyValue("--paper").trim()}"/>`;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([svg.replace(/(<svg[^>]*>)/, `$1${paper}`)], { type: "image/svg+xml" }));
      link.download = `${charts[place].name}.svg`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
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
