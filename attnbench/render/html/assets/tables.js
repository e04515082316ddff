"use strict";
// On the pages of a site: saves each table as CSV, and hides the rows that lack the words a reader looks for.
(() => {
  const FEW = 20; // rows; with fewer, nobody searches
  const tables = [...document.querySelectorAll("table.text")];
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
  const save = (table, name) => {
    const lines = [table.tHead.rows[0], ...rowsOf(table).filter((row) => !row.hidden)];
    const text = lines.map((row) => [...row.cells].map(field).join(",")).join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  for (const table of tables.filter((table) => rowsOf(table).length > 1)) {
    const tools = document.createElement("p");
    tools.className = "tools";
    tools.append(button("Save CSV", () => save(table, table.closest("section").id)));
    table.parentElement.after(tools);
  }

  const long = tables.filter((table) => rowsOf(table).length > FEW);
  if (!long.length || document.querySelector("#cells")) return; // the page of a run has its own
  const find = Object.assign(document.createElement("input"), { type: "search", placeholder: "d128 causal bf16" });
  const label = document.createElement("label"), count = document.createElement("span");
  count.className = "quiet";
  count.setAttribute("role", "status");
  label.append("Find ", find);
  const tools = Object.assign(document.createElement("p"), { className: "tools" });
  tools.append(label, count);
  document.querySelector("#results").prepend(tools);

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
