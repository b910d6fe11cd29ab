/* Real controls for figures with stored states, in place of the slider and the menu that Plotly
   draws: with a label, a role and the keyboard, at true distances, and the menu keeps the slider.
   Stands between plots.js and the script of the page or the deck. */
(() => {
  const LENGTH = 1000;

  const read = Plots.read;
  /* what workbook.explore adds below a figure for Plotly's own slider, 6 px under what stands there */
  const added = ({ margin, sliders: [{ pad }] }) => (pad ? margin.b - pad.t + 6 : 0);
  const bare = (figure) => {
    const content = read(figure);
    const { sliders, updatemenus, ...layout } = content.layout;
    const below = added(content.layout);
    layout.height -= below;
    layout.margin = { ...layout.margin, b: layout.margin.b - below };
    return { ...content, layout };
  };

  /* What all of `texts` begin with, up to the last ": ". */
  function prefix(texts) {
    let text = texts[0];
    while (!texts.every((other) => other.startsWith(text))) text = text.slice(0, -1);
    return text.slice(0, text.lastIndexOf(": ") + 1 && text.lastIndexOf(": ") + 2);
  }

  /* Where each value stands on the slider: by its number, or by its logarithm where that leaves the
     nearest two further apart; evenly where values are no numbers that rise or fall. */
  function places(labels) {
    const numbers = labels.map(Number);
    const even = labels.map((_, i) => (LENGTH * i) / (labels.length - 1));
    const along = (values) => values.map((v) => (LENGTH * (v - values[0])) / (values.at(-1) - values[0]));
    const gap = (at) => Math.min(...at.slice(1).map((p, i) => p - at[i]));
    const scales = [along(numbers)];
    if (numbers.every((n) => n > 0)) scales.push(along(numbers.map(Math.log)));
    const usable = scales.filter((at) => gap(at) > 0).sort((a, b) => gap(b) - gap(a));
    return (usable[0] || even).map(Math.round);
  }

  function add(parent, tag, properties = {}, attributes = {}) {
    const element = Object.assign(document.createElement(tag), properties);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    parent.append(element);
    return element;
  }

  function build(figure, number) {
    const { sliders: [slider], updatemenus: [menu] = [] } = read(figure).layout;
    const rows = menu ? menu.buttons.map((b) => b.args[1]["sliders[0].steps"]) : [slider.steps];
    const labels = slider.steps.map((step) => step.label.replaceAll("<br>", " "));
    const at = places(labels);
    const now = { row: menu?.active || 0, column: slider.active || 0 };

    const knobs = document.createElement("div");
    knobs.className = "knobs";
    knobs.setAttribute("role", "group");
    knobs.setAttribute("aria-label", "Controls of the figure below");
    const label = add(knobs, "label", { textContent: slider.currentvalue.prefix });
    const output = add(label, "b", {}, { "aria-hidden": "true" });
    const list = `values-${number}`;
    /* names, such as a paper's rivals, are chosen from a menu: nothing lies between them */
    const named = labels.some((text) => Number.isNaN(Number(text)));
    const range = named ? add(label, "select")
      : add(label, "input", { type: "range", min: 0, max: LENGTH, step: 1 }, { list });
    if (named) {
      output.remove();
      labels.forEach((text) => add(range, "option", { textContent: text }));
    } else {
      const ticks = add(knobs, "datalist", { id: list });
      at.forEach((place) => add(ticks, "option", { value: place }));
    }

    const show = () => {
      if (named) range.selectedIndex = now.column;
      else {
        range.value = at[now.column];
        output.textContent = labels[now.column];
        range.setAttribute("aria-valuetext", labels[now.column]);
      }
      const [data, { title, ...layout }] = rows[now.row][now.column].args;
      const canvas = figure.querySelector(".canvas");
      /* the title's words alone: its place was fitted to the canvas */
      if (title) layout["title.text"] = figure.dataset.narrow ? Plots.lines(title.text, canvas.offsetWidth).join("<br>") : title.text;
      if (figure.dataset.narrow && layout.margin) {
        /* a state has the places of a wide figure */
        const whole = { ...bare(figure).layout, ...layout, ...(title && { title }) };
        const size = { width: canvas.offsetWidth, height: whole.height };
        const { margin, legend } = Plots.narrowed({ data: read(figure).data, layout: whole }, size);
        Object.assign(layout, { margin, legend, height: size.height });
      }
      if (figure.dataset.drawn) Plotly.update(canvas, data, layout);
    };
    const move = (column) => {
      now.column = Math.min(Math.max(column, 0), labels.length - 1);
      show();
    };
    const keys = {
      ArrowRight: () => now.column + 1, ArrowUp: () => now.column + 1, PageUp: () => now.column + 1,
      ArrowLeft: () => now.column - 1, ArrowDown: () => now.column - 1, PageDown: () => now.column - 1,
      Home: () => 0, End: () => labels.length - 1,
    };
    if (named) range.addEventListener("change", () => move(range.selectedIndex));
    else range.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      move(keys[event.key]());
    });
    if (!named) range.addEventListener("input", () => {
      const far = at.map((place) => Math.abs(place - range.value));
      move(far.indexOf(Math.min(...far)));
    });
    if (menu) {
      const names = menu.buttons.map((button) => button.label), common = prefix(names);
      const choice = add(knobs, "label", { textContent: common });
      const select = add(choice, "select");
      names.forEach((name) => add(select, "option", { textContent: name.slice(common.length) }));
      select.selectedIndex = now.row;
      select.addEventListener("change", () => { now.row = select.selectedIndex; show(); });
    }
    /* keys that move a control do not turn the deck's page */
    knobs.addEventListener("keydown", (event) => {
      if (event.key !== "Tab" && event.key !== "Escape") event.stopPropagation();
    });
    figure.prepend(knobs);
    figure.style.setProperty("--height", `${Plots.read(figure).layout.height}px`);
    show();
    figure.showState = show;
  }

  const moves = (figure) => figure.querySelector(".knobs") !== null;
  /* on a slide the canvas fills its figure, so the controls take of its height */
  const room = (figure, size) => {
    if (!moves(figure)) return size;
    const taken = figure.querySelector(".knobs").offsetHeight;
    figure.style.setProperty("--knobs", `${taken}px`);
    const fills = getComputedStyle(figure.querySelector(".canvas")).position === "absolute";
    return fills ? { ...size, height: size.height - taken } : size;
  };

  Plots.read = (figure) => (moves(figure) ? bare(figure) : read(figure));
  const { draw, resize } = Plots;
  Plots.draw = (figure, size) => {
    const drawn = draw(figure, room(figure, size));
    return moves(figure) ? drawn.then(() => figure.showState()) : drawn;
  };
  Plots.resize = (figure, size) => resize(figure, room(figure, size));

  document.querySelectorAll('.plot[data-controls="1"]').forEach(build);
})();
