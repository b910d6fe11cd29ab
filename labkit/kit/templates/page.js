/* A notebook's page: figures drawn when they come near, anew for another width, theme or paper. */
(() => {
  const figures = [...document.querySelectorAll(".plot")];
  const paper = matchMedia("print");
  const fingers = matchMedia("(pointer: coarse)"); /* which the tool bar would keep from the title */
  let printing = false;
  const room = (figure) => ({
    width: printing ? 640 : figure.querySelector(".canvas").clientWidth,
    height: parseFloat(getComputedStyle(figure).getPropertyValue("--height")),
    fit: true,
    modebar: printing || fingers.matches ? false : "hover",
    dark: !printing && document.documentElement.dataset.theme === "dark",
  });
  const draw = (figure) => { if (figure.clientWidth) Plots.draw(figure, room(figure)); };
  const redraw = () => figures.filter((figure) => figure.dataset.drawn).forEach(draw);

  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting && !target.dataset.drawn) draw(target);
  }, { rootMargin: "600px" });
  figures.forEach((figure) => near.observe(figure));

  let pending, width = innerWidth;
  addEventListener("resize", () => {
    clearTimeout(pending);
    pending = setTimeout(() => { if (width !== innerWidth && !printing) { width = innerWidth; redraw(); } }, 150);
  });
  document.addEventListener("theme", redraw);
  const print = (on) => {
    if (printing === on) return;
    printing = on;
    if (on) figures.forEach(draw); else redraw();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  paper.addEventListener("change", () => print(paper.matches));

  const contents = document.querySelector(".notebook > nav details");
  if (contents && matchMedia("(max-width: 60rem)").matches) contents.open = false;

  const button = document.querySelector("[data-all-code]");
  button?.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", open);
    button.textContent = open ? "Hide all code" : "Show all code";
    document.querySelectorAll("details.code").forEach((code) => {
      code.open = open;
      /* Code inside a fold is shown only when that is open too; closing leaves the fold as it is. */
      const fold = code.parentElement.closest("details");
      if (open && fold) fold.open = true;
    });
  });

  /* a way through: cells that are not on it are hidden, and their headings in the contents too */
  const ways = document.querySelector(".ways");
  const follow = (way) => {
    for (const block of document.querySelectorAll("article .block")) {
      block.hidden = Boolean(way) && !block.dataset.ways.split(" ").includes(way);
    }
    for (const link of document.querySelectorAll(".notebook > nav a")) {
      const heading = document.getElementById(decodeURIComponent(link.hash.slice(1)));
      link.parentElement.hidden = Boolean(heading?.closest("[hidden]"));
    }
    for (const button of ways.children) button.setAttribute("aria-pressed", button.dataset.way === way);
  };
  const lead = () => { /* a link into what is hidden shows everything */
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target?.closest("[hidden]")) return;
    follow("");
    target.scrollIntoView();
  };
  if (ways) {
    ways.hidden = false;
    ways.addEventListener("click", ({ target }) => { if (target.dataset.way !== undefined) follow(target.dataset.way); });
    addEventListener("hashchange", lead);
  }

  const links = new Map([...document.querySelectorAll(".notebook > nav a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
  const headings = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const mark = () => {
    let now = headings[0];
    for (const heading of headings) if (heading.getBoundingClientRect().top < 120) now = heading;
    links.forEach((link, id) => link.classList.toggle("now", id === now?.id));
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
})();
