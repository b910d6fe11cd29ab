/* One figure of a live explorable: draws the widget's state and, when it changes, only what is new.

   plotly.js is asked of the kernel once a page and shared by all figures. */
function library(model) {
  globalThis.labkitPlotly ??= new Promise((resolve) => {
    const take = (message, buffers) => {
      if (message.kind !== "plotly.js") return;
      model.off("msg:custom", take);
      const module = { exports: {} };
      const text = new TextDecoder().decode(buffers[0]);
      new Function("module", "exports", "define", text)(module, module.exports, undefined);
      resolve(module.exports);
    };
    model.on("msg:custom", take);
    model.send({ kind: "plotly.js" });
  });
  return globalThis.labkitPlotly;
}

async function render({ model, el }) {
  const canvas = document.createElement("div");
  el.append(canvas);
  const Plotly = await library(model);
  const draw = () => {
    const { data, layout } = structuredClone(model.get("state"));
    /* a view that a reader zoomed stays */
    const shown = { ...layout, autosize: true, uirevision: "same" };
    return Plotly.react(canvas, data, shown, { responsive: true, displaylogo: false });
  };
  await draw();
  model.on("change:state", draw);
  return () => {
    model.off("change:state", draw);
    Plotly.purge(canvas);
  };
}

export default { render };
