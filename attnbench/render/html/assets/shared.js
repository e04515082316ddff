"use strict";
// What the scripts of a page share: files to take away, and the address, which holds a reader's choices.
window.attnbench = (() => {
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  // A drawing by itself has paper behind it, and colours that stand for themselves.
  const saveSvg = (name, svg) => {
    const style = getComputedStyle(document.documentElement);
    const onPaper = svg.replace(/<svg[^>]*>/, '$&<rect width="100%" height="100%" fill="var(--paper)"/>');
    save(`${name}.svg`, "image/svg+xml", onPaper.replace(/var\((--\w+)\)/g, (_, color) => style.getPropertyValue(color).trim()));
  };
  const field = (value) => {
    const text = typeof value === "string" ? value.replace(/^(?=[=+@-].)/, "'") : String(value ?? ""); // no formula of a spreadsheet
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const saveCsv = (name, rows) => save(`${name}.csv`, "text/csv", rows.map((row) => `${row.map(field).join(",")}\n`).join(""));

  // The address of a page with choices ends as in "#?off=dtype:fp16&find=16k&sort=-tflops".
  const keep = (choices) => {
    const now = location.hash, text = choices.size ? `#?${choices}` : now.startsWith("#?") ? "#" : now;
    if (text !== now && (text !== "#" || now)) history.replaceState(null, "", text);
  };
  const kept = () => new URLSearchParams(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
  return { saveSvg, saveCsv, keep, kept };
})();
