/* Lays Voilà's page of the live figure over the stored one, once it shows something.

   The frame stays outside the slides: they are scaled, and a frame that moves in the page loads
   again. PageUp, PageDown (a presenter's remote) and Escape work from within it too. */
(() => {
  const blocks = LIVE.cells.map((id) => document.querySelector(`[data-cell="${CSS.escape(id)}"]`));
  const place = blocks.map((block) => block?.querySelector(".plot")).find(Boolean);
  if (!place) return;

  const say = document.createElement("p");
  say.setAttribute("role", "status");
  say.style.cssText = "position:fixed;z-index:40;right:1rem;bottom:.4rem;margin:0;font:12px sans-serif;color:#555";
  const frame = document.createElement("iframe");
  frame.title = "The live figure";
  frame.style.cssText = "position:fixed;z-index:30;border:0;background:#fff;visibility:hidden;width:900px;height:500px";
  document.body.append(frame, say);

  let state = "the kernel is starting; the figure shows stored states";
  let live = false;

  const isHere = () => place.getClientRects().length > 0 && place.closest("section.present") &&
    !Reveal.isOverview() && !Reveal.isPaused() && !Reveal.isPrintView();

  function lay() {
    const shown = Boolean(isHere());
    say.textContent = shown ? state : "";
    if (shown) {
      const { left, top, width, height } = place.getBoundingClientRect();
      Object.assign(frame.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    }
    frame.style.visibility = shown && live ? "visible" : "hidden";
  }

  function keys(event) {
    if (event.key === "PageDown") Reveal.next();
    else if (event.key === "PageUp") Reveal.prev();
    else if (event.key === "Escape") { window.focus(); frame.blur(); } else return;
    event.preventDefault();
  }

  /* Voilà renders outputs after its page has loaded, so look again until there is one. */
  function look() {
    const page = frame.contentDocument;
    const failed = page?.querySelector('[data-mime-type="application/vnd.jupyter.error"], .jp-RenderedText[data-mime-type*="stderr"]');
    if (failed) state = `stored states: the kernel failed (${failed.textContent.trim().split("\n").at(-1).slice(0, 120)})`;
    else if (page?.querySelector(".js-plotly-plot .main-svg, .jupyter-widgets")) {
      live = true;
      state = "live";
      page.addEventListener("keydown", keys);
      page.body.style.overflow = "auto";
    } else { setTimeout(look, 400); return lay(); }
    return lay();
  }

  Reveal.on("ready", lay);
  for (const name of ["slidechanged", "slidetransitionend", "overviewshown", "overviewhidden", "paused", "resumed", "resize"]) Reveal.on(name, () => requestAnimationFrame(lay));
  window.addEventListener("resize", () => requestAnimationFrame(lay));
  window.addEventListener("load", () => { frame.src = LIVE.url; look(); });  // the deck first
})();
