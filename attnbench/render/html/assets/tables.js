"use strict";
// On the pages of a site: saves tables as CSV, their bars and plots as SVG, and hides the rows that lack the words that
// a reader looks for.
(() => {
  const FEW = 20; // rows; with fewer, nobody searches
  const tables = [...document.querySelectorAll("table.text")].filter((table) => table.closest("section"));
  const rowsOf = (table) => [...table.tBodies[0].rows];
  const button = (text, act) => {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", textContent: text });
    made.addEventListener("click", act);
    return made;
  };
  const field = (cell) => {
    const text = cell.textContent.replace(/^(?=[=+@-].)/, "'"); // no formula of a spreadsheet
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${text}\n`], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const saveTable = (table, name) => {
    const lines = [table.tHead.rows[0], ...rowsOf(table).filter((row) => !row.hidden)];
    save(`${name}.csv`, "text/csv", lines.map((row) => [...row.cells].map(field).join(",")).join("\n"));
  };

  // A drawing by itself, with its colours as they are on the page.
  const saveDrawing = (name, width, height, inside) => {
    const style = getComputedStyle(document.documentElement);
    const paper = `<rect width="${width}" height="${height}" fill="var(--paper)"/>`;
    const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif">${paper}${inside}</svg>`;
    save(`${name}.svg`, "image/svg+xml", text.replace(/var\((--\w+)\)/g, (_, color) => style.getPropertyValue(color).trim()));
  };
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
    const points = [...plot.querySelectorAll("title")].map(field);
    tools(
      plot,
      button("Save SVG", () => saveDrawing("plot", width, height + HEIGHT, `<text x="5" y="15" font-size="12" fill="var(--ink)">${escape(label)}</text><g transform="translate(0 ${HEIGHT})">${plot.innerHTML}</g>`)),
      button("Save CSV", () => save("plot.csv", "text/csv", points.join("\n"))),
    );
  }

  const long = tables.filter((table) => rowsOf(table).length > FEW);
  if (!long.length || document.querySelector("#cells")) return; // the page of a run has its own
  const find = Object.assign(document.createElement("input"), { type: "search", placeholder: "d128 causal bf16" });
  const label = document.createElement("label"), count = document.createElement("span");
  count.className = "quiet";
  count.setAttribute("role", "status");
  label.append("Find ", find);
  const search = Object.assign(document.createElement("p"), { className: "tools" });
  search.append(label, count);
  document.querySelector("#results").prepend(search);

  // A row whose first entry is empty goes on with the row above; both are found together.
  const groups = long.flatMap((table) => {
    const found = [];
    for (const row of rowsOf(table)) {
      if (found.length && !row.cells[0].textContent) found.at(-1).push(row);
      else found.push([row]);
    }
    return found.map((rows) => ({ rows, text: ` ${rows.map((row) => [...row.cells].map((c) => c.textContent).join(" ")).join(" ")}`.toLowerCase() }));
  });
  const show = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { rows, text } of groups) {
      const fits = words.every((word) => text.includes(/^\d/.test(word) ? ` ${word}` : word));
      for (const row of rows) row.hidden = !fits;
      shown += fits ? rows.length : 0;
    }
    const all = groups.reduce((sum, { rows }) => sum + rows.length, 0);
    count.textContent = words.length ? `${shown} of ${all} rows` : "";
  };
  find.addEventListener("input", () => {
    show();
    history.replaceState(null, "", find.value ? `#?find=${encodeURIComponent(find.value)}` : "#");
  });
  if (location.hash.startsWith("#?")) find.value = new URLSearchParams(location.hash.slice(2)).get("find") || "";
  show();
})();
