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
  for (const button of document.querySelectorAll("[data-save-chart]")) {
    button.addEventListener("click", async () => {
      const name = button.dataset.saveChart, style = getComputedStyle(document.documentElement);
      const box = boxes.find((one) => one.dataset.chart === name && !one.dataset.width);
      const svg = (await box.view.toSVG()).replace(/var\((--\w+)\)/g, (_, of) => style.getPropertyValue(of).trim());
      const paper = `<rect width="100%" height="100%" fill="${style.getPropertyValue("--paper").trim()}"/>`;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([svg.replace(/(<svg[^>]*>)/, `$1${paper}`)], { type: "image/svg+xml" }));
      link.download = `${name}.svg`;
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
