/* The theme before anything is drawn: what was chosen here, else what the reader's system asks for. */
const Theme = {
  kept() { try { return localStorage.getItem("labkit-theme"); } catch { return null; } },
  use(name) { document.documentElement.dataset.theme = name; },
};
Theme.use(Theme.kept() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
