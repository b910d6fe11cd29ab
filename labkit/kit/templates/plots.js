/* Draws the figures of a page from the data beside them. Each is drawn once, when it is first seen. */
const Plots = {
  config: { displaylogo: false, responsive: false, showTips: false },
  narrow: 700, /* pixels, below which titles wrap and legends go below the plot */

  read(figure) {
    return JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  },

  /* Draw `figure` in its canvas. `zoom` enlarges lettering and lines together with the plot; `fit`
     lays it out anew where it is narrow; `dark` gives it the dark theme's colours; `style` has
     properties of the layout that the place asks for. */
  draw(figure, { width, height, zoom = 1, modebar = false, fit = false, dark = false, style = {} }) {
    const canvas = figure.querySelector(".canvas");
    const content = dark ? Plots.darkened(Plots.read(figure)) : Plots.read(figure);
    const size = { width: Math.round(width / zoom), height: Math.round(height / zoom) };
    const { data, frames } = content;
    const narrow = fit && size.width < Plots.narrow;
    const layout = narrow ? Plots.narrowed(content, size) : content.layout;
    if (zoom !== 1) {
      canvas.style.cssText = `width:${size.width}px;height:${size.height}px;` +
        `transform:scale(${zoom});transform-origin:0 0;`;
    }
    Object.assign(figure.dataset, { drawn: "1", narrow: narrow ? "1" : "" });
    Plotly.setPlotConfig({ logging: 0 }); /* else some figures warn thousands of times */
    const drawn = Plotly.newPlot(canvas, {
      data,
      layout: { ...layout, ...style, ...size, autosize: false },
      frames: frames || [],
      config: { ...Plots.config, displayModeBar: modebar },
    });
    if (modebar && canvas.getAttribute("role") === "img") Plots.regroup(canvas, drawn);
    const first = { pad: layout.title?.pad?.b || 0, top: layout.margin?.t, height: fit && size.height, attempts: 0 };
    return drawn.then(() => {
      canvas.on("plotly_afterplot", () => Plots.lift(canvas, first));
      return Plots.lift(canvas, first);
    });
  },

  /* A picture may hold no buttons: what is drawn becomes one part of a group, its tool bar another. */
  regroup(canvas, drawn) {
    canvas.setAttribute("role", "group");
    drawn.then(() => { for (const svg of canvas.querySelectorAll(".main-svg")) svg.setAttribute("aria-hidden", "true"); });
  },

  /* Move the title off a legend that takes more rows than were reckoned with, or down to one above the
     plot that takes fewer, from where it was at `first`; a figure that has a height there grows by as
     much as its title rises. What is wider than its card gets smaller letters. What three attempts do
     not make fit is left as it is. */
  lift(canvas, first) {
    const card = canvas.getBoundingClientRect(), changes = {};
    const [title, legend] = [["title", ".gtitle"], ["legend", ".legend"]].map(([part, name]) => {
      const box = canvas.querySelector(name)?.getBoundingClientRect();
      const share = (card.right - box?.left) / box?.width;
      if (box?.right > card.right + 1) changes[`${part}.font.size`] = Math.max(8, Math.floor(canvas._fullLayout[part].font.size * share));
      return box;
    });
    const units = canvas.offsetWidth / card.width;
    let over = title && legend?.bottom > title.top ? Math.ceil((title.bottom - legend.top) * units) : 0;
    const above = legend && (legend.bottom - card.top) * units <= canvas._fullLayout._size.t + 2; /* the plot */
    if (over < -20 && above) over += 8;
    else if (over <= 5) over = 0;
    if (over) {
      const by = (canvas.layout.title.pad?.b || 0) - first.pad + over;
      Object.assign(changes, { "title.pad.b": first.pad + by, "margin.t": first.top + by }, first.height && { height: first.height + Math.max(by, 0) });
    }
    if (!Object.keys(changes).length) first.attempts = 0;
    else if (first.attempts++ < 3) return Plotly.relayout(canvas, changes);
  },

  resize(figure, { width, height, zoom = 1 }) {
    const canvas = figure.querySelector(".canvas");
    const size = { width: Math.round(width / zoom), height: Math.round(height / zoom) };
    if (zoom !== 1) Object.assign(canvas.style, { width: `${size.width}px`, height: `${size.height}px` });
    return Plotly.relayout(canvas, size);
  },

  /* `text` in lines for a narrow canvas. */
  lines(text, width) {
    return text.replace(/<br>/g, " ").split(" ").reduce((all, word) => {
      const last = all.at(-1);
      return last && (last + word).length < width / 8.5 ? [...all.slice(0, -1), `${last} ${word}`] : [...all, word];
    }, []);
  },

  /* The layout for a narrow canvas: smaller type, the title in short lines over the plot, and the
     legend below it; `size.height` grows by what they need. Names at the ends of lines keep their room. */
  narrowed({ data, layout }, size) {
    const lines = Plots.lines(layout.title?.text || "", size.width);
    const named = data.filter((t) => t.name && t.visible !== false && t.showlegend !== false);
    const shown = layout.showlegend ?? named.length > 1;
    const widest = Math.max(0, ...named.map((t) => t.name.length)) * 6.6 + 56;
    const rows = shown ? Math.ceil(named.length / Math.max(1, Math.floor(size.width / widest))) : 0;
    /* The outcomes of rivals stand under the axis, down to the edge: the legend gets room below them. */
    const written = (layout.annotations || []).some((a) => a.yref === "paper" && a.y === 0 && a.yanchor === "top" && a.yshift < 0);
    const below = written && rows ? 20 * rows + 10 : 0;
    const subtitles = (layout.annotations || []).some((a) => a.yref === "paper" && a.y >= 1);
    size.height += Math.max(0, 22 * lines.length + 20 * rows - 60) + below;
    return {
      ...layout,
      font: { ...layout.font, size: 12 },
      title: { ...layout.title, text: lines.join("<br>"), font: { ...layout.title?.font, size: 15 }, x: 0.02, xref: "container", y: 1 - 14 / size.height, yref: "container", yanchor: "top", automargin: false },
      legend: { ...layout.legend, orientation: "h", x: 0, xref: "container", xanchor: "left", y: 0, yref: "container", yanchor: "bottom", font: { size: 12 } },
      margin: { ...layout.margin, l: 30, r: Math.max(12, Math.min(layout.margin?.r ?? 12, 0.26 * size.width)), t: 20 * lines.length + 22 + 22 * subtitles, ...(below && { b: layout.margin.b + below }) },
    };
  },

  /* `content` on a dark card: the card's own colours, and each colour that would vanish lifted. */
  darkened(content) {
    const card = [16, 21, 28], ink = "#e7ebf2";
    const level = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
      .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
    const contrast = (rgb) => (level(rgb) + 0.05) / (level(card) + 0.05);
    const parse = (text) => {
      const hex = /^#([0-9a-f]{6})$/i.exec(text)?.[1];
      if (hex) return [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16));
      const rgb = /^rgba?\(\s*([\d.]+)\s*,\s*([\d.]+)\s*,\s*([\d.]+)/.exec(text);
      return rgb ? rgb.slice(1, 4).map(Number) : { black: [0, 0, 0], white: [255, 255, 255] }[text];
    };
    const colour = (text, key, font) => {
      let rgb = parse(text);
      if (!rgb) return text;
      if (Math.max(...rgb) < 60 && !/bgcolor$/.test(key)) return ink; /* black lines and letters */
      if (/bgcolor$/.test(key)) return contrast(rgb) > 12 ? `rgba(${card}, ${/^rgba/.test(text) ? 0.8 : 1})` : text;
      if (key === "gridcolor") return "#2c3440";
      const alpha = /^rgba\(.*,\s*([\d.]+)\s*\)$/.exec(text)?.[1];
      if (alpha && alpha < 0.5) return text;
      while (contrast(rgb) < (font ? 4.5 : 3)) rgb = rgb.map((c) => Math.min(255, c + 0.12 * (260 - c)));
      return `rgba(${rgb.map(Math.round)}, ${alpha ?? 1})`;
    };
    const walk = (value, key, font) => {
      if (typeof value === "string") return /color(s|way)?$/i.test(key) ? colour(value, key, font) : value;
      if (Array.isArray(value)) return value.map((part) => walk(part, key, font));
      if (!value || typeof value !== "object") return value;
      const inner = font || /font$/.test(key);
      return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, name === "colorscale" ? part : walk(part, name, inner)]));
    };
    const dark = walk(content, "", false);
    const text = { color: ink, ...dark.layout.font };
    return { ...dark, layout: { ...dark.layout, font: text, hoverlabel: { bgcolor: "#2b333f", font: { color: ink }, ...dark.layout.hoverlabel } } };
  },
};
