/* What every page can do: change its theme, and let the keyboard reach what scrolls sideways. */
(() => {
  const button = document.querySelector("button.theme");
  const name = () => document.documentElement.dataset.theme;
  const label = () => { button.textContent = name() === "dark" ? "Light theme" : "Dark theme"; };
  button.addEventListener("click", () => {
    Theme.use(name() === "dark" ? "light" : "dark");
    try { localStorage.setItem("labkit-theme", name()); } catch { /* kept for this page only */ }
    label();
    document.dispatchEvent(new Event("theme"));
  });
  label();
  button.hidden = false;

  const reach = () => {
    for (const part of document.querySelectorAll(".table, .formula, pre, .scrolls")) {
      if (part.scrollWidth <= part.clientWidth) { part.removeAttribute("tabindex"); continue; }
      const heading = part.closest(".block, section, article")?.querySelector("h1, h2, h3, summary");
      part.tabIndex = 0;
      if (!part.hasAttribute("role")) part.setAttribute("role", "region");
      if (!part.ariaLabel) part.ariaLabel = `${heading?.textContent.trim() || "Table or code"}, scrolls sideways`;
    }
  };
  addEventListener("load", reach);
  addEventListener("resize", reach);
  addEventListener("toggle", reach, true); /* details that open */
})();
