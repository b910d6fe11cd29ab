/* Fits each page to the screen's 1280 x 720 units, then draws its figures in the room they have. */
(() => {
  if (!window.Reveal) return; /* the page says how to get it */
  const GROW = [1.45, 1.35, 1.25, 1.15, 1.05], SHRINK = [1, 0.95, 0.9, 0.85, 0.8, 0.74, 0.68, 0.62, 0.56];
  const LEAST_ZOOM = 1.02, MOST_ZOOM = 1.35, LEAST_DIGIT = 16, LEAST_LINE = 0.6;

  const overflows = (sheet) => [sheet, ...sheet.querySelectorAll(".body, .table, .formula, pre")].some(
    (part) => part.scrollHeight > part.clientHeight + 1 || part.scrollWidth > part.clientWidth + 1);

  /* A heading on one line, as small as the fonts of this machine ask; below that, on two. */
  function headline(heading) {
    heading.style.setProperty("--line", 1);
    const line = (heading.clientWidth - 1) / heading.scrollWidth;
    heading.style.setProperty("--line", Math.min(1, Math.max(line, LEAST_LINE)));
    heading.style.whiteSpace = line < LEAST_LINE ? "normal" : "";
  }

  /* The largest lettering with which the page fits; what never does may be scrolled. */
  function fit(section) {
    const sheet = section.querySelector(":scope > .sheet");
    sheet.querySelectorAll(":scope > h2").forEach(headline);
    const grows = !section.matches(".title, .figure, .code");
    sheet.classList.remove("scrolls");
    for (const scale of grows ? [...GROW, ...SHRINK] : SHRINK) {
      sheet.style.setProperty("--scale", scale);
      if (!overflows(sheet)) return;
    }
    sheet.classList.add("scrolls");
  }

  const drawn = (figure, zoom) => Plots.draw(figure, {
    width: figure.clientWidth, height: figure.clientHeight, zoom,
    style: { uniformtext: { mode: "hide", minsize: LEAST_DIGIT / zoom } }, /* numbers inside bars */
  });

  /* A figure keeps the proportions it was made for, as far as its smallest digits stay large. */
  async function draw(figure) {
    const made = parseFloat(getComputedStyle(figure).getPropertyValue("--height"));
    const zoom = Math.min(Math.max(figure.clientHeight / made, LEAST_ZOOM), MOST_ZOOM);
    await drawn(figure, zoom);
    const texts = [...figure.querySelectorAll("svg text:not(.bartext)")].filter((t) => t.textContent.trim());
    const least = Math.min(...texts.map((text) => parseFloat(getComputedStyle(text).fontSize)));
    if (least * zoom < LEAST_DIGIT) await drawn(figure, Math.min(LEAST_DIGIT / least + 0.01, 1.6));
    figure.dataset.large = "1";
  }

  function show(section) {
    fit(section);
    for (const figure of section.querySelectorAll(".plot")) {
      if (!figure.dataset.drawn) draw(figure);
    }
  }

  /* Keys pressed in an input, a menu or a figure's control are its own and turn no page. */
  const turns = () => !document.activeElement?.closest("input, select, textarea, button, summary, [contenteditable]");

  Reveal.initialize({
    width: 1280, height: 720, margin: 0, minScale: 0.1, maxScale: 8, center: false,
    hash: true, slideNumber: "c/t", transition: "none", navigationMode: "linear",
    pdfSeparateFragments: false, pdfMaxPagesPerSlide: 1,
    keyboardCondition: turns, plugins: [RevealNotes],
  }).then(() => {
    const all = () => document.querySelectorAll(".slides section").forEach(show);
    if (Reveal.isPrintView()) {
      all();
      Reveal.on("pdf-ready", all);
      return;
    }
    show(Reveal.getCurrentSlide());
    Reveal.on("slidechanged", (event) => show(event.currentSlide));
    Reveal.on("overviewshown", all);
  });
})();
