// Options such as --time-limit, and mine.py:attention, are looked for as words: a dash before a word would exclude it from
// the results, and a colon would name a field of the index.
for (const event of ["input", "focus"]) {
  addEventListener(event, ({ target }) => {
    if (!target.matches?.(".md-search__input")) return;
    const words = target.value.replace(/(^|\s)-+(?=\w)/g, "$1").replace(/[:^~]/g, " ");
    if (words !== target.value) target.value = words;
  }, true);
}
