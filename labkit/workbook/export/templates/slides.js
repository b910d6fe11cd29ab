/* Fits each page to the screen's 1280 x 720 units, then draws its figures in the room they have. */
const Deck = (() => {
  if (!window.Reveal) return null; /* the page says how to get it */
  const GROW = [1.45, 1.35, 1.25, 1.15, 1.05], SHRINK = [1, 0.95, 0.9, 0.85, 0.8, 0.74, 0.68, 0.62, 0.56];
  const LEAST_ZOOM = 1.02, MOST_ZOOM = 1.35, LEAST_DIGIT = 16, LEAST_LINE = 0.78;

  const overflows = (sheet) => [sheet, ...sheet.querySelectorAll(".body, .table, .formula, pre")].some(
    (part) => part.scrollHeight > part.clientHeight + 1 || part.scrollWidth > part.clientWidth + 1);

  /* A heading on one line, a little smaller where that is what it takes; else on two. */
  function headline(heading) {
    heading.style.setProperty("--line", 1);
    heading.style.whiteSpace = "";
    const line = (heading.clientWidth - 1) / heading.scrollWidth;
    const wraps = line < LEAST_LINE;
    heading.style.setProperty("--line", wraps ? 0.87 : Math.min(1, line));
    heading.style.whiteSpace = wraps ? "normal" : "";
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

  function drawn(figure, zoom) {
    figure.dataset.zoom = zoom;
    return Plots.draw(figure, {
      width: figure.clientWidth, height: figure.clientHeight, zoom,
      style: { uniformtext: { mode: "hide", minsize: LEAST_DIGIT / zoom } }, /* numbers inside bars */
    });
  }

  /* A figure keeps the proportions it was made for, as far as its smallest digits stay large. */
  function zoomOf(figure) {
    if (figure.dataset.zoom) return parseFloat(figure.dataset.zoom);
    const made = parseFloat(getComputedStyle(figure).getPropertyValue("--height"));
    return Math.min(Math.max(figure.clientHeight / made, LEAST_ZOOM), MOST_ZOOM);
  }

  async function draw(figure) {
    const zoom = zoomOf(figure);
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

  const CONTROLS = "input, select, textarea, button, summary, [contenteditable]";
  const TYPED = "textarea, [contenteditable], input:not([type=range], [type=checkbox], [type=radio])";
  const control = (root = document) => root.activeElement?.closest(CONTROLS);

  /* A presenter's remote sends PageUp and PageDown: with Space and N they turn the page wherever the
     focus is, but that Space presses a button and both are letters where text is typed. Escape gives
     the keys back to the deck. Tells whether the key was the deck's. `root` may be the document of
     a frame, whose every key comes by here. */
  function turn(event, root = document) {
    const inside = control(root) ?? (root === document ? null : root.activeElement ?? root.body);
    if (!inside || event.ctrlKey || event.altKey || event.metaKey) return false;
    const letters = inside.matches(TYPED), presses = inside.matches("button, summary");
    const key = event.key === " " && event.shiftKey ? "PageUp" : event.key;
    const forwards = key === "PageDown" || (!letters && (/^n$/i.test(key) || (key === " " && !presses)));
    if (!forwards && key !== "PageUp" && key !== "Escape") return false;
    inside.blur();
    if (forwards) Reveal.next();
    else if (key === "PageUp") Reveal.prev();
    event.preventDefault();
    event.stopImmediatePropagation();
    return true;
  }
  document.addEventListener("keydown", (event) => turn(event), true);

  /* After the pointer moved a slider or chose from a menu the arrows are the deck's again; who came
     to a control by the keyboard goes on with it. */
  let pointed = false;
  document.addEventListener("pointerdown", () => { pointed = true; }, true);
  document.addEventListener("keydown", () => { pointed = false; }, true);
  const release = (event) => {
    if (pointed && event.target.matches?.("input[type=range], select")) event.target.blur();
  };
  document.addEventListener("change", release);
  document.addEventListener("pointerup", (event) => {
    if (event.target.matches?.("input[type=range]")) release(event);
  });

  /* All other keys pressed in an input, a menu or a figure's control are its own. */
  const turns = () => !control();

  Reveal.initialize({
    width: 1280, height: 720, margin: 0, minScale: 0.1, maxScale: 8, center: false,
    hash: true, slideNumber: "c/t", transition: "none", navigationMode: "linear", defaultTiming: 120,
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
  return { turn, zoomOf };
})();
