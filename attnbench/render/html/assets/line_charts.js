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
  const save = (file, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const svgOf = async (name) => {
    const style = getComputedStyle(document.documentElement);
    const box = boxes.find((one) => one.dataset.chart === name && !one.dataset.width);
    const svg = (await box.view.toSVG()).replace(/var\((--\w+)\)/g, (_, of) => style.getPropertyValue(of).trim());
    const paper = `<rect width="100%" height="100%" fill="${style.getPropertyValue("--paper").trim()}"/>`;
    return svg.replace(/(<svg[^>]*>)/, `$1${paper}`);
  };
  const field = (value) => `"${String(value).replace(/^(?=[=+@-].)/, "'").replaceAll('"', '""')}"`; // no formula of a spreadsheet
  const csvOf = ({ data: { values }, layer }) => {
    const { x, y } = layer[0].encoding;
    const rows = values.map((row) => [field(row.line), field(row.name), row.x, row.y, row.low, row.high]);
    return [["line", "point", field(x.title), field(y.title), "low", "high"], ...rows].join("\n") + "\n";
  };
  for (const button of document.querySelectorAll("[data-save-chart]")) {
    const { saveChart: name, as } = button.dataset;
    button.addEventListener("click", async () =>
      as === "svg" ? save(`${name}.svg`, "image/svg+xml", await svgOf(name)) : save(`${name}.csv`, "text/csv", csvOf(charts[name])),
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
