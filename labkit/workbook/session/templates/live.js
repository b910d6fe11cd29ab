/* Lays Voilà's page of the live figure over the stored one, once it shows something.

   The frame stays outside the slides: they are scaled, and a frame that moves in the page loads
   again. PageUp, PageDown (a presenter's remote) and Escape work from within it too. */
(() => {
  const place = document.querySelector('[data-tag="explorable"] .plot');
  if (!place) return;

  const PLOT = ".widget-vbox .js-plotly-plot";
  const say = document.createElement("p");
  say.setAttribute("role", "status");
  say.style.cssText = "position:fixed;z-index:40;margin:0;padding:0 .3em;font:13px sans-serif;color:#555;background:#fff";
  const frame = document.createElement("iframe");
  frame.title = "The live figure";
  frame.style.cssText = "position:fixed;z-index:30;border:0;background:#fff;transform-origin:0 0;" +
    "visibility:hidden;width:1000px;height:500px";
  document.body.append(frame, say);
  document.querySelector(".reveal .controls").style.zIndex = 35; /* the arrows lie over the frame */

  let state = "the kernel is starting; the figure shows stored states";
  let live = false;

  const isOn = () => place.getClientRects().length > 0 && place.closest("section.present") &&
    !Reveal.isOverview() && !Reveal.isPaused() && !Reveal.isPrintView();

  function lay() {
    const shows = Boolean(isOn());
    say.textContent = shows ? state : "";
    frame.style.visibility = shows && live ? "visible" : "hidden";
    place.style.visibility = live ? "hidden" : "";
    if (!shows) return;
    const { left, top, right, bottom, width } = place.getBoundingClientRect();
    const height = bottom - top;
    Object.assign(say.style, { right: `${innerWidth - right}px`, top: `${top}px` });
    /* In the stored figure's place and lettering; controls with no figure of ours shrink to fit. */
    const zoom = Reveal.getScale() * Deck.zoomOf(place);
    const plots = frame.contentDocument?.querySelectorAll(PLOT) ?? [];
    const cells = frame.contentDocument?.querySelector("#rendered_cells > div");
    const content = cells ? cells.getBoundingClientRect().bottom + frame.contentWindow.scrollY : 0;
    const scale = plots.length ? zoom : Math.max(0.4, Math.min(zoom, height / (content || 1)));
    Object.assign(frame.style, {
      left: `${left + (width - (width / zoom) * scale) / 2}px`,
      top: `${top}px`,
      width: `${width / zoom}px`,
      height: `${height / scale}px`,
      transform: `scale(${scale})`,
    });
    const page = frame.contentDocument?.documentElement;
    page?.style.setProperty("--lettering", `${(20 * Reveal.getScale()) / scale}px`);
    fill(plots, height / scale);
  }

  /* Tell the live figures to share what the controls leave of `height`, where that has changed. */
  let filled = 0;
  function fill(plots, height) {
    if (!live || !plots.length) return;
    const taken = plots[0].getBoundingClientRect().top + 4;
    const each = Math.floor((height - taken) / plots.length);
    if (Math.abs(each - filled) < 2) return;
    filled = each;
    frame.contentWindow.labkitRoom = { height: each };
    frame.contentWindow.dispatchEvent(new Event("labkit:room"));
  }

  /* The deck's keys are its own from within the frame too. */
  function keys(event) {
    const page = frame.contentDocument;
    if (Deck.turn(event, page)) window.focus();
  }

  /* Voilà draws outputs after its page has loaded, so look again until there is one. */
  function look() {
    const page = frame.contentDocument;
    const failed = page?.querySelector("[data-failed]");
    if (failed) state = `stored states, since the kernel failed: ${failed.textContent.slice(0, 150)}`;
    else if (!page?.querySelector(".js-plotly-plot .main-svg, .jupyter-widgets")) setTimeout(look, 400);
    else if (!live) {
      [live, state] = [true, "live"];
      page.addEventListener("keydown", keys, true);
      page.documentElement.classList.add("in-deck");
      setInterval(lay, 500); /* its height changes with what it shows */
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
