"use strict";
// Draws the figures and the table of a page from its data (render/html/interactive.py), filters and sorts them.
(() => {
  const MOST_ROWS = 200, GAP = 20, AXIS = 70, MANY = 10;
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const data = JSON.parse($("#data").textContent);
  const fields = [data.fields, data.coded, data.alike].flatMap(Object.keys);
  const rows = Array.from({ length: data.number }, (_, index) => {
    const row = { index, ...data.alike };
    for (const name in data.fields) row[name] = data.fields[name][index];
    for (const name in data.coded) row[name] = data.coded[name].of[data.coded[name].at[index]];
    return row;
  });
  const parts = data.parts || attnbench.parts; // of the page, or of all pages of its site
  const whole = (value) => { // puts the parts that layers share back into a specification
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value)) return value.map(whole);
    if ("part" in value) return whole(parts[value.part]);
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, whole(item)]));
  };
  data.columns = data.columns.map(whole);
  const backends = new Map(data.backends.map((b) => [b.name, b]));
  // Pixels: the least width of a panel, wider where many lines share it, and the width of a whole figure on paper.
  const SCREEN = { least: backends.size > MANY ? 300 : 235 }, PAPER = { least: 190, width: 920 };
  const page = document.documentElement.dataset; // tests wait for "opened" and "complete"
  const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

  // ---- How values are written: as attnbench/core/formats.py does.

  const digits = (number) => {
    if (number === 0) return "0";
    if (Math.abs(number) < 1000) number = Number(number.toPrecision(3));
    if (Math.abs(number) < 1e-4) return number.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
    return number.toFixed(Math.max(0, 2 - Math.floor(Math.log10(Math.abs(number)))));
  };
  const scaled = (units) => (number) => {
    const fits = ([factor]) => Number((Math.abs(number) / factor).toPrecision(3)) >= 1;
    const [factor, unit] = units.find(fits) || units[units.length - 1];
    return `${digits(number / factor)} ${unit}`;
  };
  const length = (n) =>
    n >= 2 ** 20 && n % 2 ** 20 === 0 ? `${n / 2 ** 20}m` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : String(n);
  const write = {
    text: String,
    number: String,
    length,
    digits,
    duration: scaled([[1, "s"], [1e-3, "ms"], [1e-6, "us"]]),
    size: scaled([[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]),
    percent: (x) => `${Math.abs(x) < 1 ? Number((100 * x).toPrecision(2)) : Math.round(100 * x)}%`,
    share: (x) => (100 * x >= 0.95 ? `${(100 * x).toFixed(0)}%` : `${Number((100 * x).toPrecision(1))}%`),
    times: (x) => `${digits(x)}x`,
    megahertz: (x) => `${(x / 1e6).toFixed(0)} MHz`,
    watts: (x) => `${digits(x)} W`,
    celsius: (x) => `${x.toFixed(0)} C`,
  };

  // ---- The marks of backends, the same in filters, table and figures.

  const SHAPES = {
    circle: "M12 1.5a4.5 4.5 0 1 0 .01 0z",
    square: "M8 2h8v8h-8z",
    "triangle-up": "M12 1l5 9h-10z",
    "triangle-down": "M12 11l5-9h-10z",
    "triangle-right": "M17 6l-9 5v-10z",
    "triangle-left": "M7 6l9 5v-10z",
    diamond: "M12 .5l5 5.5l-5 5.5l-5-5.5z",
    cross: "M10.3 1h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
  };
  const swatch = (name, line) => {
    const { color, dash, shape } = backends.get(name);
    const path = `<path d="${SHAPES[shape]}" fill="var(--c${color})"/>`;
    const stroke = `<path d="M-6 6H30" stroke="var(--c${color})" stroke-width="2" stroke-dasharray="${dash}"/>`;
    return `<svg class="swatch" viewBox="${line ? "-6 0 36 12" : "6 0 12 12"}" aria-hidden="true">${line ? stroke : ""}${path}</svg>`;
  };

  // ---- Filters. Every figure and the table show the rows that pass them.

  const boxes = $$("#filters input");
  const passing = () => {
    const allowed = new Map();
    for (const box of boxes) {
      if (!allowed.has(box.name)) allowed.set(box.name, new Set());
      if (box.checked) allowed.get(box.name).add(box.value);
    }
    const tests = [...allowed];
    return rows.filter((row) => tests.every(([field, values]) => values.has(row[field])));
  };
  let visible = rows;

  // ---- The shape that is ranked: one that has figures, by default the one that most backends have.

  const chosen = $("#shape");
  const fillShapes = () => {
    if (!chosen) return;
    const shapes = new Map();
    for (const row of visible) if (row.rate !== null) shapes.set(row.shape, [...(shapes.get(row.shape) || []), row]);
    const rank = ([row, ...others]) => [others.length, -Math.abs(parseInt(row.headdim) - 128), row.seqlen];
    const better = (a, b) => a.map((x, i) => x - b[i]).find((x) => x) > 0;
    const panels = new Map();
    let best;
    for (const [shape, of] of shapes) {
      const kind = shape.replace(/ \S+$/, ""); // without its length
      panels.set(kind, [...(panels.get(kind) || []), shape]);
      if (!best || better(rank(of), rank(shapes.get(best)))) best = shape;
    }
    const option = (shape) => `<option${shape === (shapes.has(wished) ? wished : best) ? " selected" : ""}>${escape(shape)}</option>`;
    chosen.innerHTML = [...panels]
      .map(([panel, of]) => `<optgroup label="${escape(panel)}">${of.map(option).join("")}</optgroup>`)
      .join("");
  };
  let wished = null; // the shape that the reader chose, kept while filters hide it

  // ---- Backends that stand out in all figures: the one under the pointer, else those whose names were clicked.

  const pinned = new Set();
  let pointed = null;
  const focus = () => (pointed ? [pointed] : [...pinned].filter((name) => backends.has(name)));
  const standOut = () => {
    const names = focus();
    for (const figure of figures) {
      if (figure.view && figure.near) figure.view.signal("focus", names).run();
      else if (figure.view) figure.unfocused = true;
    }
    for (const entry of $$("[data-backend]")) {
      entry.classList.toggle("faded", names.length > 0 && !names.includes(entry.dataset.backend));
      if (entry.matches("button")) entry.setAttribute("aria-pressed", pinned.has(entry.dataset.backend));
    }
  };
  const point = (name) => {
    if (name === pointed) return;
    pointed = name;
    standOut();
  };

  const refresh = () => {
    visible = passing();
    $("#shown").textContent = visible.length === rows.length ? "" : `${visible.length} of ${rows.length} cells shown`;
    $("#reset").disabled = boxes.every((box) => box.checked);
    for (const figure of figures) figure.stale = true;
    fillShapes();
    drawNear();
    fillTable();
    keep();
  };

  // ---- The address holds what a reader chose, so that a link shows the same.

  const keep = () => {
    const kept = new URLSearchParams();
    for (const box of boxes) if (!box.checked) kept.append("off", `${box.name}:${box.value}`);
    for (const name of pinned) kept.append("backend", name);
    if ($("#find").value) kept.set("find", $("#find").value);
    if (order.field) kept.set("sort", `${order.down ? "-" : ""}${order.field}`);
    if (wished) kept.set("shape", wished);
    attnbench.keep(kept);
  };
  const restore = () => {
    const kept = attnbench.kept(), off = new Set(kept.getAll("off"));
    for (const box of boxes) box.checked = !off.has(`${box.name}:${box.value}`);
    for (const name of kept.getAll("backend")) if (backends.has(name)) pinned.add(name);
    $("#find").value = kept.get("find") || "";
    const sort = kept.get("sort") || "", field = sort.replace(/^-/, "");
    if (data.columns.some((column) => column.field === field)) Object.assign(order, { field, down: sort !== field });
    wished = kept.get("shape");
  };

  // ---- Files to take away.

  const saveFigure = async (figure) => {
    if (figure.stale || !figure.view) draw(figure);
    if (!figure.view) return;
    attnbench.saveSvg(figure.name, await figure.view.toSVG());
  };
  const saveTable = () => {
    const names = ["case", ...data.columns.filter((c) => c.kind !== "remark").map((c) => c.field), "status", "reason"];
    attnbench.saveCsv("cells", [names, ...found().map((row) => names.map((name) => row[name]))]);
  };

  // ---- Figures, drawn when they come near the window, again when filters or width change.

  const figures = data.figures.map((packed) => {
    const figure = { ...packed, spec: whole(packed.spec) };
    figure.section = document.getElementById(figure.name);
    figure.label = $(".drawing", figure.section).getAttribute("aria-label"); // Vega overwrites it
    const text = JSON.stringify(figure.spec);
    const used = fields.filter((name) => new RegExp(`\\b${name}\\b`).test(text));
    return { ...figure, fields: ["index", ...used], stale: true, near: false };
  });
  const picked = (row, fields) => {
    const some = {};
    for (const field of fields) some[field] = row[field];
    return some;
  };

  const ranks = (figure) => figure.panel === "shape";
  const fitted = (figure, number, { least, width }) => {
    width ||= $(".drawing", figure.section).clientWidth;
    if (ranks(figure)) {
      const atEnd = rowsOf(figure).some((row) => row.limit) ? 110 : 175; // pixels of the text after the longest bar
      const names = Math.max(...rows.map((row) => row.bar.length)) * 6.5 + 12;
      return { ...figure.spec, spec: { ...figure.spec.spec, width: Math.min(800, Math.max(80, width - names - atEnd)) } };
    }
    const most = Math.max(1, Math.min(number, 4, Math.floor((width - AXIS + GAP) / (least + GAP))));
    const columns = most > 2 && number % most && number % (most - 1) === 0 ? most - 1 : most; // full lines, if possible
    const panel = Math.min(620, Math.floor((width - AXIS - (columns - 1) * GAP) / columns));
    return { ...figure.spec, columns, spec: { ...figure.spec.spec, width: panel } };
  };

  const rowsOf = (figure) => {
    if (!ranks(figure)) return visible;
    const exact = visible.filter((row) => row.shape === chosen.value && row.exact);
    const tried = exact.filter((row) => row.status === "ok" || row.slot !== null);
    return tried.sort((a, b) => b.rate - a.rate);
  };
  const panelsOf = (figure) => {
    const found = rowsOf(figure).filter((row) => row[figure.field] !== null);
    return [...new Set(found.map((row) => row[figure.panel]))];
  };

  const reserve = (figure) => {
    // Give a figure that is not drawn yet its least height; without one, all figures would be near the window.
    const number = panelsOf(figure).length, { columns, spec } = fitted(figure, number, SCREEN);
    const height = ranks(figure) ? spec.height.step * rowsOf(figure).length : Math.ceil(number / columns) * spec.height;
    $(".drawing", figure.section).style.minHeight = `${height}px`;
  };

  const draw = (figure, medium = SCREEN) => {
    figure.stale = medium !== SCREEN;
    if (figure.view) figure.view.finalize();
    const box = $(".drawing", figure.section), kept = new Set(panelsOf(figure));
    box.style.minHeight = "0";
    if (!kept.size) {
      box.textContent = visible.length ? "No cell that passes the filters has a figure for this." : "No cell passes the filters.";
      figure.view = null;
      return;
    }
    const lines = data.lines.filter((line) => line.kind === figure.lines && kept.has(line[figure.panel]));
    const values = rowsOf(figure).filter((row) => kept.has(row[figure.panel])).map((row) => picked(row, figure.fields));
    const spec = { ...fitted(figure, kept.size, medium), data: { values: [...values, ...lines.map((line) => ({ ...line }))] } };
    box.textContent = "";
    figure.view = new vega.View(vega.parse(vegaLite.compile(spec).spec), { renderer: "svg", container: box, logLevel: vega.Error });
    figure.view.description(figure.label).signal("focus", focus()).tooltip(tip);
    figure.view.addEventListener("pointerover", (_, item) => item?.datum?.backend && point(item.datum.backend));
    figure.view.addEventListener("pointerout", () => point(null));
    figure.view.run();
    $("svg", box).setAttribute("aria-hidden", "true"); // hundreds of marks without names; the box says its finding
    figure.unfocused = false;
  };

  const drawNear = () => {
    for (const figure of figures.filter((f) => f.near)) {
      if (figure.stale) draw(figure);
      else if (figure.view && figure.unfocused) figure.view.signal("focus", focus()).run();
      figure.unfocused = false;
    }
  };
  const drawPaper = () => {
    for (const figure of figures) draw(figure, PAPER);
  };
  const drawIdle = () => {
    const next = figures.find((figure) => figure.stale);
    if (next) draw(next);
    if (next) requestIdleCallback(drawIdle);
    else page.complete = true;
  };

  const watch = () => {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) figures.find((f) => f.section === entry.target).near = entry.isIntersecting;
        drawNear();
        // Milliseconds since the page was requested: everything near the window is drawn and can be used.
        if (!page.opened) requestAnimationFrame(() => setTimeout(() => (page.opened ||= performance.now())));
      },
      { rootMargin: "50px" },
    );
    for (const figure of figures) {
      reserve(figure);
      observer.observe(figure.section);
    }
    let width = innerWidth, timer;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      clearTimeout(timer);
      timer = setTimeout(() => {
        for (const figure of figures) figure.stale = true;
        drawNear();
        requestIdleCallback(drawIdle);
      }, 150);
    });
    addEventListener("beforeprint", drawPaper);
    addEventListener("afterprint", () => requestIdleCallback(drawIdle));
  };

  // ---- Tips: the cell under the pointer.

  const tip = (_, event, item, mark) => {
    const box = $("#tip"), row = mark && rows[mark.index];
    box.hidden = !row;
    if (!row) return;
    const shown = data.columns.filter((c) => row[c.field] != null && write[c.kind] && !["backend", "seqlen", ...data.filters].includes(c.field));
    const pairs = shown.map((c) => `<dt>${escape(c.title)}</dt><dd>${escape(write[c.kind](row[c.field]))}</dd>`);
    const said = remark(row);
    box.innerHTML = `<b>${escape(row.case)}</b><dl>${pairs.join("")}</dl>${said ? `<p>${escape(said)}</p>` : ""}`;
    const { width, height } = box.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 8))}px`;
  };

  // The arrow keys read a figure: each cell that it shows, in the order of the report or of the ranking.
  const readByKeys = (figure) => {
    const box = $(".drawing", figure.section);
    let at = -1;
    box.tabIndex = 0;
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const shown = rowsOf(figure).filter((row) => row[figure.field] !== null);
      if (!shown.length) return;
      at = (Math.max(at, step < 0 ? 0 : -1) + step + shown.length) % shown.length;
      const { left, top } = box.getBoundingClientRect();
      tip(null, { clientX: left, clientY: Math.max(0, top) }, null, shown[at]);
      point(shown[at].backend);
    });
    box.addEventListener("blur", () => {
      at = -1;
      $("#tip").hidden = true;
      point(null);
    });
  };

  const remark = (row) => (row.status !== "ok" ? `${row.status}: ${row.reason}` : row.held ? "clock held down" : "");

  // ---- The table.

  const order = { field: null, down: false };
  const dtypes = [...new Set(rows.map((row) => row.dtype))];
  // A figure in fp8 does not compete with one in bf16: each dtype is ranked by itself.
  const better = (field) => data.columns.find((column) => column.field === field)?.better;
  const ranked = () => dtypes.length > 1 && better(order.field);
  let all = false;
  const haystack = rows.map((row) =>
    [row.case, row.dtype, row.other, row.device, `batch ${row.batch}`, remark(row)].join(" ").toLowerCase(),
  );
  const matches = (text, word) => (/^\d/.test(word) ? ` ${text}`.includes(` ${word}`) : text.includes(word));
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  const sorted = (found) => {
    if (!order.field) return found;
    const value = (row) => (order.field === "status" ? remark(row) || null : row[order.field]);
    return [...found].sort((a, b) => {
      if (ranked() && a.dtype !== b.dtype) return dtypes.indexOf(a.dtype) - dtypes.indexOf(b.dtype);
      const [x, y] = [value(a), value(b)];
      if (x == null || y == null) return (x == null) - (y == null); // rows without a value come last in both orders
      return order.down ? compare(y, x) : compare(x, y);
    });
  };

  const classes = ({ field, kind }) => (kind === "text" ? field : kind === "remark" ? kind : `end ${field}`);
  const cell = (row, column) => {
    if (column.kind === "remark") return `<td class="${classes(column)}">${escape(remark(row))}</td>`;
    const value = row[column.field];
    const text = value == null ? "" : escape(write[column.kind](value));
    return `<td class="${classes(column)}">${column.field === "backend" ? swatch(value, false) : ""}${text}${["tflops", "gbps"].includes(column.field) && row.held ? "~" : ""}</td>`;
  };

  const found = () => {
    const wanted = $("#find").value.toLowerCase().split(/\s+/).filter(Boolean);
    return sorted(visible.filter((row) => wanted.every((word) => matches(haystack[row.index], word))));
  };
  const fillTable = () => {
    const every = found(), shown = all ? every : every.slice(0, MOST_ROWS);
    $("#cells tbody").innerHTML = shown.map((row) => `<tr>${data.columns.map((c) => cell(row, c)).join("")}</tr>`).join("");
    $("#count").textContent = `${every.length} of ${rows.length} cells${shown.length < every.length ? `, the first ${shown.length} shown` : ""}${ranked() ? "; each dtype by itself" : ""}`;
    $("#more").hidden = shown.length === every.length;
    $("#more").textContent = `Show all ${every.length} rows`;
    for (const head of $$("#cells th")) {
      if (head.dataset.field !== order.field) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      $("span", head).textContent = head.dataset.field !== order.field ? "" : order.down ? " ▼" : " ▲";
    }
  };

  const sortBy = (field) => {
    const first = better(field) === "higher"; // the best first
    if (order.field !== field) Object.assign(order, { field, down: first });
    else if (order.down === first) order.down = !first;
    else order.field = null; // the third time: the order of the report
    fillTable();
    keep();
  };

  // ---- Start.

  attnbench.write = write; // for tests

  for (const box of boxes.filter((b) => b.name === "backend")) box.insertAdjacentHTML("afterend", swatch(box.value, true));
  const entry = (name) => `<button type="button" data-backend="${escape(name)}" aria-pressed="false">${swatch(name, true)} ${escape(name)}</button>`;
  for (const box of $$(".legend")) box.innerHTML = data.backends.map(({ name }) => entry(name)).join(" ");
  for (const box of boxes.filter((b) => b.name === "backend")) box.parentElement.dataset.backend = box.value;
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      if (!event.target.closest?.(".drawing")) point(event.target.closest?.("[data-backend]")?.dataset.backend || null);
    });
  }
  document.addEventListener("click", (event) => {
    const name = event.target.closest("button[data-backend]")?.dataset.backend;
    if (!name) return;
    if (!pinned.delete(name)) pinned.add(name);
    standOut();
    keep();
  });
  chosen?.addEventListener("change", () => {
    wished = chosen.value;
    draw(figures.find(ranks));
    keep();
  });
  const filtering = $("#filtering"), wide = matchMedia("(min-width: 60rem)");
  const unfold = () => (filtering.open = wide.matches);
  wide.addEventListener("change", unfold);
  unfold();
  const held = rows.some((row) => row.held), failed = rows.some((row) => row.status !== "ok");
  $("#key").textContent = [held && "Hollow marks: the clock was held down.", failed && "✕: no figure; point at it for the reason."]
    .filter(Boolean)
    .join(" ");
  $("#cells thead").innerHTML = `<tr>${data.columns
    .map((c) => `<th scope="col" data-field="${c.field}" class="${classes(c)}" title="${escape(c.doc)}"><button type="button">${escape(c.title)}<span aria-hidden="true"></span></button></th>`)
    .join("")}</tr>`;
  $("#cells thead").addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (head) sortBy(head.dataset.field);
  });
  $("#filters").addEventListener("change", refresh);
  $("#filters").addEventListener("submit", (event) => event.preventDefault());
  $("#reset").addEventListener("click", () => {
    for (const box of boxes) box.checked = true;
    refresh();
  });
  $("#find").addEventListener("input", () => {
    fillTable();
    keep();
  });
  $("#save").addEventListener("click", saveTable);
  for (const button of $$("[data-save]")) {
    button.addEventListener("click", () => saveFigure(figures.find((figure) => figure.name === button.dataset.save)));
  }
  $("#more").addEventListener("click", () => {
    all = true;
    fillTable();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") $("#tip").hidden = true;
  });
  figures.forEach(readByKeys);
  restore();
  refresh();
  if (pinned.size) standOut();
  watch();
  requestIdleCallback(drawIdle);
})();
