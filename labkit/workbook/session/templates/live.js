/* Lays Voilà's page of the live figure over the stored one, once it shows something.

   The frame stays outside the slides: they are scaled, and a frame that moves in the page loads
   again. PageUp, PageDown (a presenter's remote) and Escape work from within it too. */
(() => {
  const place = document.querySelector('[data-tag="explorable"] .plot');
  if (!place) return;

  const say = document.createElement("p");
  say.setAttribute("role", "status");
  say.style.cssText = "position:fixed;z-index:40;margin:0;font:13px sans-serif;color:#555";
  const frame = document.createElement("iframe");
  frame.title = "The live figure";
  frame.style.cssText = "position:fixed;z-index:30;border:0;background:#fff;transform-origin:0 0;" +
    "visibility:hidden;width:1000px;height:500px";
  document.body.append(frame, say);

  let state = "the kernel is starting; the figure shows stored states";
  let live = false;

  const isOn = () => place.getClientRects().length > 0 && place.closest("section.present") &&
    !Reveal.isOverview() && !Reveal.isPaused() && !Reveal.isPrintView();

  function lay() {
    const shows = Boolean(isOn());
    say.textContent = shows ? state : "";
    frame.style.visibility = shows && live ? "visible" : "hidden";
    if (!shows) return;
    const { left, top, width, height } = place.getBoundingClientRect();
    const put = (part, rules) => Object.assign(part.style, rules);
    put(say, { left: `${left}px`, top: `${top + height + 2}px` });
    put(frame, { left: `${left}px`, top: `${top}px` });
    /* As large as the slide's lettering, and no larger than what all of it has room for. */
    let scale = Reveal.getScale();
    for (let pass = 0; pass < 2; pass += 1) {
      put(frame, { width: `${width / scale}px`, height: `${height / scale}px`, transform: `scale(${scale})` });
      const content = frame.contentDocument?.getElementById("rendered_cells")?.scrollHeight || 0;
      if (content * scale > height) scale = Math.max(0.4, height / content);
    }
  }

  function keys(event) {
    if (event.key === "PageDown") Reveal.next();
    else if (event.key === "PageUp") Reveal.prev();
    else if (event.key === "Escape") window.focus();
    else return;
    event.preventDefault();
  }

  /* Voilà draws outputs after its page has loaded, so look again until there is one. */
  function look() {
    const page = frame.contentDocument;
    const error = page?.querySelector('[data-mime-type="application/vnd.jupyter.error"], [data-mime-type$="stderr"]');
    if (error) state = `stored states, since the kernel failed: ${error.textContent.trim().split("\n").at(-1).slice(0, 120)}`;
    else if (!page?.querySelector(".js-plotly-plot .main-svg, .jupyter-widgets")) setTimeout(look, 400);
    else if (!live) {
      [live, state] = [true, "live"];
      page.addEventListener("keydown", keys);
      new ResizeObserver(lay).observe(page.getElementById("rendered_cells"));
    }
    lay();
  }

  Reveal.on("ready", lay);
  const moves = ["slidechanged", "overviewshown", "overviewhidden", "paused", "resumed", "resize"];
  for (const name of moves) Reveal.on(name, () => requestAnimationFrame(lay));
  window.addEventListener("load", () => { /* the deck first */
    frame.src = LIVE;
    look();
  });
})();
