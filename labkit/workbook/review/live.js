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
    /* a view that a reader zoomed stays; a slide says how much room it has (`labkitRoom`) */
    const shown = { ...layout, ...globalThis.labkitRoom, autosize: true, uirevision: "same" };
    const look = { responsive: true, displaylogo: false, displayModeBar: globalThis.labkitRoom ? false : "hover" };
    return Plotly.react(canvas, data, shown, look);
  };
  await draw();
  model.on("change:state", draw);
  globalThis.addEventListener("labkit:room", draw);
  return () => {
    model.off("change:state", draw);
    globalThis.removeEventListener("labkit:room", draw);
    Plotly.purge(canvas);
  };
}

export default { render };
