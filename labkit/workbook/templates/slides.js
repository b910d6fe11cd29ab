/* Fits each slide to the screen's 1280 x 720 units, then draws its figures in the room they have. */
(() => {
  const ZOOM = 1.2;
  /* lettering, and the least height of a figure: shrunk in turns until the slide fits */
  const GROW = [1.3, 1.2, 1.1];
  const STEPS = [[1, 420], [0.95, 380], [0.9, 350], [0.85, 330], [0.8, 310], [0.74, 290], [0.68, 270], [0.62, 250]];

  const overflows = (sheet) => sheet.scrollHeight > sheet.clientHeight + 1;

  const tooWide = (sheet) => [...sheet.querySelectorAll(".table, .formula, pre")].some(
    (part) => part.scrollWidth > part.clientWidth + 1 || part.style.getPropertyValue("--shrink"));

  function fitTables(sheet) {
    for (const table of sheet.querySelectorAll(".table")) {
      table.style.removeProperty("--shrink");
      for (let size = 0.95; table.scrollWidth > table.clientWidth + 1 && size > 0.6; size -= 0.05) {
        table.style.setProperty("--shrink", size.toFixed(2));
      }
    }
  }

  function fit(section) {
    const sheet = section.querySelector(":scope > .sheet");
    if (!sheet) return;
    sheet.classList.remove("scrolls");
    const grows = !sheet.querySelector(".plot") && !section.classList.contains("title");
    const steps = [...(grows ? GROW.map((scale) => [scale, 0]) : []), ...STEPS];
    for (const [scale, least] of steps) {
      sheet.style.setProperty("--scale", scale);
      sheet.style.setProperty("--plot-least", `${least}px`);
      fitTables(sheet);
      if (!overflows(sheet) && (scale <= 1 || !tooWide(sheet))) break;
    }
    sheet.classList.toggle("scrolls", overflows(sheet));
  }

  const room = (figure) => ({ width: figure.clientWidth, height: figure.clientHeight, zoom: ZOOM });

  function show(section) {
    if (!section) return;
    fit(section);
    for (const figure of section.querySelectorAll(".plot")) {
      if (!figure.clientWidth) continue; /* in a closed answer */
      if (figure.dataset.drawn) Plots.resize(figure, room(figure));
      else Plots.draw(figure, room(figure));
    }
  }

  Reveal.initialize({
    width: 1280, height: 720, margin: 0, minScale: 0.1, maxScale: 8, center: false,
    hash: true, slideNumber: "c/t", transition: "none", navigationMode: "linear",
    pdfSeparateFragments: false, pdfMaxPagesPerSlide: 1,
    plugins: typeof RevealNotes === "undefined" ? [] : [RevealNotes],
  }).then(() => {
    const all = () => document.querySelectorAll(".slides section:not(.stack)").forEach(show);
    if (Reveal.isPrintView()) { all(); return; }
    show(Reveal.getCurrentSlide());
    Reveal.on("slidechanged", (event) => show(event.currentSlide));
    Reveal.on("overviewshown", all);
    document.addEventListener("toggle", (event) => show(event.target.closest("section")), true);
    document.querySelectorAll("summary").forEach((summary) =>
      summary.addEventListener("keydown", (event) => {
        if (event.key === " " || event.key === "Enter") event.stopPropagation();
      }));
  });
})();
