/* Narrows the list of claims, the papers' table away; without scripts both stand there. */
(() => {
  const form = document.querySelector(".filters");
  if (!form) return;
  const claims = [...document.querySelectorAll("tr.claim")].map((row) => ({ row, words: wordsOf(row.dataset.text) }));
  const count = document.querySelector(".found");
  const overview = document.querySelector(".overview");
  bindToAddress(form, ({ text, verdict, kind }) => {
    const wanted = wordsOf(text);
    for (const { row, words } of claims) {
      row.hidden = !(wanted.every((word) => words.some((w) => w.startsWith(word))) && (!verdict || row.dataset.verdict === verdict) && (!kind || row.dataset.kind === kind));
    }
    for (const paper of document.querySelectorAll(".board tbody")) {
      paper.hidden = !paper.querySelector("tr.claim:not([hidden])");
    }
    const shown = claims.filter(({ row }) => !row.hidden).length;
    overview.hidden = shown < claims.length;
    count.textContent = shown === claims.length ? "" : `${shown} of ${claims.length} claims`;
  });
})();

/* Sorts a table by the column whose heading is pressed; claims stay with their paper. */
(() => {
  const value = (cell) => {
    const text = cell?.textContent.trim().replace(/,/g, "") ?? "";
    const ratio = /^(\d+) of (\d+)/.exec(text);
    const number = ratio ? ratio[1] / ratio[2] : parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  for (const table of document.querySelectorAll("table.summary, table.board")) {
    table.querySelectorAll("thead th").forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        for (const body of table.tBodies) {
          const fixed = (row) => row.matches(".total, .paper, .aside");
          const rows = [...body.rows].filter((row) => !fixed(row));
          rows.sort((a, b) => order(value(a.cells[column]), value(b.cells[column])) * (down ? -1 : 1));
          const after = [...body.rows].filter((row) => row.matches(".total, .aside"));
          body.append(...rows, ...after);
        }
      });
    });
  }
})();
