// Draws a chart once it comes near the window; until then, on paper and if anything fails, its SVG stands there.
"use strict";
{
  Bokeh.logger.set_level("warn");
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const isFine = matchMedia("(pointer: fine)").matches;
  const draw = async (place) => {
    const made = charts[place.id];
    const root = made.roots[0].id;
    const [view] = await Bokeh.embed.embed_items({[place.id]: made}, [
      {docid: place.id, root_ids: [root], roots: {[root]: place.id}},
    ]);
    place.parentElement.classList.add("drawn");
    // A drag zooms with a mouse; with a finger it scrolls the page.
    if (isFine && view) for (const tool of view.roots[0].model.toolbar.tools) if (tool.type === "BoxZoomTool") tool.active = true;
  };
  const watcher = new IntersectionObserver((seen) => {
    for (const each of seen) {
      if (!each.isIntersecting) continue;
      watcher.unobserve(each.target);
      draw(each.target.querySelector(".live"));
    }
  }, {rootMargin: "400px"});
  for (const figure of document.querySelectorAll("figure")) watcher.observe(figure);
  // Paper has what is folded, where a style sheet alone cannot unfold it, too.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of folded) each.open = false; });
}
