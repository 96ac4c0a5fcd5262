// Draws the Bokeh figure of a chart when the chart comes near the window. The chart's SVG stands in
// its place until then, on paper, and if anything fails.
"use strict";
{
  Bokeh.logger.set_level("warn");
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const hasMouse = matchMedia("(pointer: fine)").matches;
  const draw = async (element) => {
    const chart = charts[element.id];
    const root = chart.roots[0].id;
    const [view] = await Bokeh.embed.embed_items({[element.id]: chart}, [
      {docid: element.id, root_ids: [root], roots: {[root]: element.id}},
    ]);
    element.parentElement.classList.add("drawn");
    // A drag zooms with a mouse; with a finger it scrolls the page.
    if (hasMouse && view) {
      for (const tool of view.roots[0].model.toolbar.tools) {
        if (tool.type === "BoxZoomTool") tool.active = true;
      }
    }
  };
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      draw(entry.target.querySelector(".live"));
    }
  }, {rootMargin: "400px"});
  for (const figure of document.querySelectorAll("figure")) observer.observe(figure);
  // Folded parts are printed, too; a style sheet alone cannot unfold them in every browser.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });
}
