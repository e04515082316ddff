"use strict";
// On the pages of a site: filters, finds and sorts the rows of tables, saves them as CSV, their bars and plots as SVG.
(() => {
  const FEW = 5, MOST = 12; // rows that are read at a glance; values of a filter, of which a search finds more
  const tables = [...document.querySelectorAll("table.text")].filter((table) => table.closest("section"));
  const rowsOf = (table) => [...table.tBodies[0].rows];
  const button = (text, act) => {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", textContent: text });
    made.addEventListener("click", act);
    return made;
  };
  const saveTable = (table, name) => {
    const lines = [table.tHead.rows[0], ...rowsOf(table).filter((row) => !row.hidden)];
    attnbench.saveCsv(name, lines.map((row) => [...row.cells].map((cell) => cell.textContent)));
  };
  const saveDrawing = (name, width, height, inside) =>
    attnbench.saveSvg(name, `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif">${inside}</svg>`);
  const escape = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const HEIGHT = 22, BAR = 400, LETTER = 6.5; // pixels: of a row, of an axis, and of a letter, about
  const saveBars = (table, name) => {
    let first = "";
    const rows = rowsOf(table).filter((row) => !row.hidden).map((row) => {
      const cells = [...row.cells], place = cells.findIndex((cell) => cell.querySelector("svg"));
      first = cells[0].textContent || first;
      const said = cells.slice(1, place < 0 ? 4 : place).map((cell) => cell.textContent);
      return { text: [first, ...said].filter(Boolean).join("  "), svg: cells[place]?.querySelector("svg") };
    });
    const left = LETTER * Math.max(...rows.map(({ text }) => text.length)) + 10;
    const title = table.closest("section").querySelector("h2")?.textContent || "", heads = [...table.tHead.rows[0].cells];
    const column = heads[[...(rowsOf(table).find((row) => row.querySelector("svg"))?.cells || [])].findIndex((cell) => cell.querySelector("svg"))];
    const line = (text, x, row, weight) => `<text x="${x}" y="${HEIGHT * row + 15}" font-size="12" fill="var(--ink)"${weight || ""}>${escape(text)}</text>`;
    const bars = rows.map(({ text, svg }, i) => line(text, 5, i + 2) + (svg
      ? `<rect x="${left}" y="${HEIGHT * (i + 2) + 4}" width="${BAR}" height="12" fill="var(--grid)"/><svg x="${left}" y="${HEIGHT * (i + 2) + 4}" width="${BAR}" height="12" viewBox="${svg.getAttribute("viewBox")}" preserveAspectRatio="none">${svg.innerHTML}</svg>`
      : ""));
    const inside = line(title, 5, 0, ' font-weight="bold"') + line(column?.textContent || "", left, 1) + bars.join("");
    saveDrawing(name, left + BAR + 10, HEIGHT * (rows.length + 2) + 10, inside);
  };
  const tools = (after, ...buttons) => {
    const made = Object.assign(document.createElement("p"), { className: "tools" });
    made.append(...buttons);
    after.after(made);
  };
  for (const table of tables.filter((table) => rowsOf(table).length > 1)) {
    const name = table.closest("section").id, drawn = table.querySelector("svg.bar");
    tools(table.parentElement, button("Save CSV", () => saveTable(table, name)), ...(drawn ? [button("Save SVG", () => saveBars(table, name))] : []));
  }
  for (const plot of document.querySelectorAll("svg.plot")) {
    const { width, height } = plot.viewBox.baseVal, label = plot.getAttribute("aria-label");
    const points = [...plot.querySelectorAll("title")].map((title) => [title.textContent]);
    tools(
      plot,
      button("Save SVG", () => saveDrawing("plot", width, height + HEIGHT, `<text x="5" y="15" font-size="12" fill="var(--ink)">${escape(label)}</text><g transform="translate(0 ${HEIGHT})">${plot.innerHTML}</g>`)),
      button("Save CSV", () => attnbench.saveCsv("plot", points)),
    );
  }

  if (!tables.some((table) => rowsOf(table).length > FEW) || document.querySelector("#cells")) return; // the page of a run has its own

  // ---- Rows. One whose first entry is empty goes on with the row above: they have one name, and are found together.

  const nameOf = (table) => `${table.closest("section").id.replace("table-", "")}${table.closest(".narrow") ? "/narrow" : ""}`;
  const groupsOf = (table) => {
    const groups = [];
    for (const row of rowsOf(table)) {
      if (groups.length && !row.cells[0].textContent) groups.at(-1).rows.push(row);
      else groups.push({ rows: [row], name: row.cells[0].innerHTML });
    }
    for (const group of groups) group.text = ` ${group.rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ")).join(" ")}`.toLowerCase();
    return groups;
  };
  const shown = tables.filter((table) => rowsOf(table).length > 1).map((table) => ({ table, name: nameOf(table), heads: [...table.tHead.rows[0].cells], groups: groupsOf(table) }));

  // ---- Filters: by the columns of a few values, and by what the name of a case says, as "16k d128 causal fwd bf16".

  const COLUMNS = ["GPU", "machine", "device", "work", "model", "backend", "implementation", "pass", "suite"];
  const CASE = { headdim: /(?:^| )d(\d\S*)(?= |$)/, mask: /(?:^| )d\d\S* (\S.*?) (?:fwd|bwd|fwd_bwd|decode)(?= |$)/, pass: /(?:^| )(fwd|bwd|fwd_bwd|decode)(?= |$)/, dtype: /(?:^| )(bf16|fp16|fp32|fp8)(?= |$)/ };
  const TITLES = { headdim: "Head dimension", mask: "Mask", pass: "Pass", work: "Work", machine: "Machine", device: "Device", model: "Model", backend: "Backend", implementation: "Implementation", suite: "Suite" };
  const valuesOf = new Map(); // row -> {filter: its value}
  const filters = new Map(); // filter -> its values
  for (const { heads, groups } of shown) {
    const columns = heads.map((head, place) => [head.textContent, place]).filter(([heading]) => COLUMNS.includes(heading));
    for (const { rows } of groups) {
      const name = rows[0].cells[0].textContent, own = {};
      for (const filter in CASE) own[filter] = CASE[filter].exec(name)?.[1];
      for (const row of rows) {
        const values = { ...own };
        for (const [heading, place] of columns) values[heading] = place ? row.cells[place].textContent : name;
        valuesOf.set(row, values);
        for (const filter in values) if (values[filter]) filters.set(filter, (filters.get(filter) || new Set()).add(values[filter]));
      }
    }
  }
  const box = (filter, value) => `<label><input type="checkbox" checked name="${filter}" value="${escape(value)}"><span>${escape(value)}</span></label>`;
  const fieldset = ([filter, values]) => `<fieldset><legend>${TITLES[filter] || filter}</legend>${[...values].map((value) => box(filter, value)).join("")}</fieldset>`;
  const several = [...filters].filter(([, values]) => values.size > 1 && values.size <= MOST);
  const search = Object.assign(document.createElement("div"), { className: "tools" });
  search.innerHTML = `${several.length ? `<details id="filtering"><summary>Filters</summary><form id="filters" aria-label="Filters">${several.map(fieldset).join("")}<p><button type="button" id="reset">Show all</button></p></form></details>` : ""}<label>Find <input type="search" id="find" placeholder="d128 causal bf16" autocomplete="off" spellcheck="false"></label><span class="quiet" role="status"></span>`;
  document.querySelector("#results").prepend(search);
  const boxes = [...search.querySelectorAll("input[type=checkbox]")], find = search.querySelector("#find"), reset = search.querySelector("#reset");

  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean), off = boxes.filter((one) => !one.checked);
    const passes = (row) => off.every(({ name, value }) => valuesOf.get(row)[name] !== value);
    let some = 0, all = 0;
    for (const { table, groups } of shown) {
      const counts = table.checkVisibility(); // the table for narrow screens, or its twin for wide ones
      for (const { rows, name, text } of groups) {
        const found = words.every((word) => text.includes(/^\d/.test(word) ? ` ${word}` : word));
        for (const row of rows) row.hidden = !found || !passes(row);
        const first = rows.find((row) => !row.hidden) || rows[0];
        if (rows.length > 1) for (const row of rows) row.cells[0].innerHTML = row === first ? name : "";
        if (counts) all += rows.length;
        if (counts) some += rows.filter((row) => !row.hidden).length;
      }
    }
    search.querySelector("[role=status]").textContent = words.length || off.length ? `${some} of ${all} rows` : "";
    if (reset) reset.disabled = !off.length;
  };

  // ---- Order, by a click on a heading: a column of numbers has the largest first.

  const UNITS = { us: 1e-6, ms: 1e-3, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
  const NUMBER = /^[±+]?(-?\d[\d.]*(?:e[+-]?\d+)?)[x%~]*(?: ([a-zA-Z]+))?(?= |,|$)/;
  const orders = new Map(); // name of a table -> {place of its column, down}
  const valueOf = ({ rows }, place) => rows.filter((row) => !row.hidden).map((row) => row.cells[place].textContent).find((text) => text && text !== "-");
  const numberOf = (text) => {
    const [, digits, unit] = NUMBER.exec(text) || [];
    return digits && Number(digits) * (UNITS[unit] || 1);
  };
  const isOfNumbers = ({ groups }, place) => groups.map((group) => valueOf(group, place)).every((text) => !text || numberOf(text) !== undefined);
  const sort = (of) => {
    const order = orders.get(of.name), numbers = order && isOfNumbers(of, order.place);
    const compare = (a, b) => (numbers ? numberOf(a) - numberOf(b) : a.localeCompare(b, "en", { numeric: true }));
    const sorted = !order ? of.groups : [...of.groups].sort((one, other) => {
      const [a, b] = [one, other].map((group) => valueOf(group, order.place));
      if (!a || !b) return !a - !b; // rows without a value come last in both orders
      return order.down ? compare(b, a) : compare(a, b);
    });
    of.table.tBodies[0].append(...sorted.flatMap(({ rows }) => rows));
    of.heads.forEach((head, place) => {
      if (order?.place !== place) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    });
  };
  const keep = () => {
    const choices = new URLSearchParams();
    for (const { name, value, checked } of boxes) if (!checked) choices.append("off", `${name}:${value}`);
    if (find.value) choices.set("find", find.value);
    for (const [name, { place, down }] of orders) choices.append("sort", `${name}:${down ? "-" : ""}${place}`);
    attnbench.keep(choices);
  };
  const show = () => {
    filter();
    shown.forEach(sort);
  };
  const changed = () => {
    show();
    keep();
  };
  const sortBy = (of, place) => {
    const down = isOfNumbers(of, place), before = orders.get(of.name);
    if (before?.place !== place) orders.set(of.name, { place, down });
    else if (before.down === down) before.down = !down;
    else orders.delete(of.name); // the third time: the order of the page
    sort(of);
    keep();
  };

  for (const of of shown) {
    of.heads.forEach((head, place) => {
      if (!of.groups.some((group) => valueOf(group, place))) return; // drawings
      const text = head.textContent;
      head.textContent = "";
      head.append(button(text, () => sortBy(of, place)));
    });
  }
  search.addEventListener("change", changed);
  find.addEventListener("input", changed);
  search.querySelector("form")?.addEventListener("submit", (event) => event.preventDefault());
  reset?.addEventListener("click", () => {
    for (const one of boxes) one.checked = true;
    changed();
  });
  const kept = attnbench.kept(), off = new Set(kept.getAll("off"));
  for (const one of boxes) one.checked = !off.has(`${one.name}:${one.value}`);
  if (off.size && boxes.length) search.querySelector("details").open = true;
  find.value = kept.get("find") || "";
  for (const choice of kept.getAll("sort")) {
    const [, name, minus, place] = /^(.*):(-?)(\d+)$/.exec(choice) || [], of = shown.find((one) => one.name === name);
    if (!of?.heads[place]) continue;
    orders.set(name, { place: Number(place), down: minus === "-" });
  }
  show();
})();
