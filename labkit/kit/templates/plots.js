/* Draws the figures of a page from the data beside them. Each is drawn once, when it is first seen. */
const Plots = {
  config: { displaylogo: false, responsive: false, showTips: false },

  read(figure) {
    return JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  },

  /* Draw `figure` in its canvas. `zoom` enlarges lettering and lines together with the plot;
     `style` has properties of the layout that the place asks for. */
  draw(figure, { width, height, zoom = 1, modebar = false, style = {} }) {
    const canvas = figure.querySelector(".canvas");
    const { data, layout, frames } = Plots.read(figure);
    const size = { width: Math.round(width / zoom), height: Math.round(height / zoom) };
    if (zoom !== 1) {
      canvas.style.cssText = `width:${size.width}px;height:${size.height}px;` +
        `transform:scale(${zoom});transform-origin:0 0;`;
    }
    figure.dataset.drawn = "1";
    Plotly.setPlotConfig({ logging: 0 }); /* else some figures warn thousands of times */
    return Plotly.newPlot(canvas, {
      data,
      layout: { ...layout, ...style, ...size, autosize: false },
      frames: frames || [],
      config: { ...Plots.config, displayModeBar: modebar },
    });
  },

  resize(figure, { width, height, zoom = 1 }) {
    const canvas = figure.querySelector(".canvas");
    const size = { width: Math.round(width / zoom), height: Math.round(height / zoom) };
    if (zoom !== 1) Object.assign(canvas.style, { width: `${size.width}px`, height: `${size.height}px` });
    return Plotly.relayout(canvas, size);
  },
};
