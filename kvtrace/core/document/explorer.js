// Chooses among simulated options by the sliders: the cheapest that reaches the target, drawn in a
// map and against its cost. All text enters the page as text, never as HTML.
"use strict";
{
  const root = document.getElementById("explorer");
  const data = JSON.parse(document.getElementById("choices").textContent);
  const {choices, prices} = data;
  const sliders = [...root.querySelectorAll("input[type=range]")];
  const initial = sliders.map((slider) => slider.value);
  const named = (name) => sliders.find((slider) => slider.name === name);
  const hasTimes = named("ttft") !== undefined;
  let measure = "hit_ratio";

  const element = (parent, tag, properties = {}, text = "") => {
    const child = parent.appendChild(document.createElement(tag));
    Object.assign(child, properties);
    child.textContent = text;
    return child;
  };
  const drawn = (parent, tag, attributes, text = "") => {
    const child = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
    for (const [name, value] of Object.entries(attributes)) child.setAttribute(name, value);
    child.textContent = text;
    return child;
  };

  // --- numbers

  const digits = (value) => {
    const places = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en", {maximumFractionDigits: Math.min(6, places)});
  };
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const duration = (ns) => {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (ns >= size) return `${digits(ns / size)} ${unit}`;
    }
    return `${digits(ns)} ns`;
  };
  const shown = (choice, name) =>
    choice[name] === null ? "-" : name === "hit_ratio" ? percent(choice[name]) : duration(choice[name]);

  // --- what the sliders say

  const times = choices.map((choice) => choice.first_token_p99_ns).filter((ns) => ns !== null && ns > 0);
  const [quickest, slowest] = [Math.min(...times), Math.max(...times)];
  const onSlider = (ns) => Math.round(1000 * Math.log(ns / quickest) / Math.log(slowest / quickest));
  if (hasTimes && data.target_first_token_p99_ns !== null && slowest > quickest) {
    const place = Math.min(1000, Math.max(0, onSlider(data.target_first_token_p99_ns)));
    named("ttft").value = place;
    initial[sliders.indexOf(named("ttft"))] = named("ttft").value;
  }
  const isUntouched = () => sliders.every((slider, index) => slider.value === initial[index]);
  const targetHit = () => isUntouched() ? data.target_hit ?? 0 : Number(named("hit").value) / 1000;
  const limitNs = () => {
    if (!hasTimes) return null;
    if (isUntouched()) return data.target_first_token_p99_ns;
    const place = Number(named("ttft").value);
    return place === 1000 ? null : quickest * (slowest / quickest) ** (place / 1000);
  };
  const factor = (index) => {
    const [least, greatest] = data.factors;
    const place = Number(named(`price${index}`).value) / 100;
    return place < 0 ? least ** -place : greatest ** place;
  };
  const costOf = (choice) => choice.costs.reduce((sum, cost, index) => sum + cost * factor(index), 0);
  const isEnough = (choice) => {
    const limit = limitNs();
    return choice.is_working && choice.hit_ratio >= targetHit() &&
      (limit === null || (choice.first_token_p99_ns !== null && choice.first_token_p99_ns <= limit));
  };
  const cheapest = () => {
    if (isUntouched()) return data.answer;
    let best = null;
    choices.forEach((choice, index) => {
      if (isEnough(choice) && (best === null || costOf(choice) < costOf(choices[best]))) best = index;
    });
    return best;
  };

  // --- what is drawn

  const describe = (best) => {
    const answer = root.querySelector(".answer");
    const limit = limitNs();
    const target = `hit rate ${percent(targetHit())}` + (limit === null ? "" : `, TTFT p99 ${duration(limit)}`);
    if (best === null) {
      answer.textContent = `None of these ${choices.length} options reaches the target (${target}).`;
    } else {
      const choice = choices[best];
      const ttft = choice.first_token_p99_ns === null ? "" : `, TTFT p99 ${duration(choice.first_token_p99_ns)}`;
      answer.textContent = `${choice.name}: ${digits(costOf(choice))} ${data.cost}, hit rate ` +
        `${percent(choice.hit_ratio)}${ttft} (target ${target}).`;
    }
    answer.dataset.best = best === null ? "" : String(best);
    for (const slider of sliders) {
      const output = slider.parentElement.querySelector("output");
      if (slider.name === "hit") output.textContent = percent(targetHit());
      else if (slider.name === "ttft") output.textContent = limit === null ? data.none : duration(limit);
      else {
        const index = Number(slider.name.slice("price".length));
        output.textContent = `${digits(prices[index].value * factor(index))} ${prices[index].unit}`;
      }
    }
  };

  const [rows, columns] = [data.row_labels, data.column_labels];
  const drawMap = (best) => {
    const place = root.querySelector(".map");
    place.replaceChildren();
    const values = choices.map((choice) => choice[measure]).filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const table = element(place, "table");
    const head = element(element(table, "thead"), "tr");
    element(head, "th", {scope: "col"}, `${data.rows} \\ ${data.columns}`);
    for (const column of columns) element(head, "th", {scope: "col"}, column);
    const body = element(table, "tbody");
    for (const row of rows) {
      const line = element(body, "tr");
      element(line, "th", {scope: "row"}, row);
      for (const column of columns) {
        // Several options may share a cell, such as those of two routers: the cheapest is shown.
        const here = choices.map((choice, index) => [choice, index])
          .filter(([choice]) => choice.row === row && choice.column === column)
          .sort(([a, i], [b, j]) => (j === best) - (i === best) || costOf(a) - costOf(b));
        const cell = element(line, "td");
        if (here.length === 0) continue;
        const [choice, index] = here[0];
        cell.textContent = shown(choice, measure);
        cell.title = `${choice.name}: ${digits(costOf(choice))} ${data.cost}`;
        const share = choice[measure] === null || high === low ? 0 : (choice[measure] - low) / (high - low);
        const good = measure === "hit_ratio" ? share : 1 - share;
        cell.style.background = `color-mix(in srgb, var(--read) ${Math.round(45 * good)}%, var(--paper))`;
        cell.classList.toggle("missed", !isEnough(choice));
        cell.classList.toggle("best", index === best);
      }
    }
  };

  const [width, height, left, bottom, top] = [640, 300, 60, 42, 12];
  const drawFrontier = (best) => {
    const place = root.querySelector(".frontier");
    place.replaceChildren();
    const costs = choices.map(costOf);
    const maxCost = Math.max(...costs) || 1;
    const maxHit = Math.max(...choices.map((choice) => choice.hit_ratio), targetHit()) || 1;
    const x = (cost) => left + cost / maxCost * (width - left - 12);
    const y = (hit) => height - bottom - hit / maxHit * (height - bottom - top);
    const svg = drawn(place, "svg", {
      viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "hit rate against cost",
    });
    for (let step = 0; step <= 4; step++) {
      const [cost, hit] = [maxCost * step / 4, maxHit * step / 4];
      drawn(svg, "line", {x1: left, x2: width - 12, y1: y(hit), y2: y(hit), class: "grid"});
      drawn(svg, "text", {x: left - 6, y: y(hit) + 4, "text-anchor": "end"}, percent(hit));
      const anchor = step === 4 ? "end" : "middle";
      drawn(svg, "text", {x: x(cost), y: height - bottom + 18, "text-anchor": anchor}, digits(cost));
    }
    drawn(svg, "text", {x: width - 12, y: height - 6, "text-anchor": "end"}, data.cost);
    drawn(svg, "line", {x1: left, x2: width - 12, y1: y(targetHit()), y2: y(targetHit()), class: "target"});
    const order = costs.map((cost, index) => index).filter((index) => choices[index].is_working)
      .sort((a, b) => costs[a] - costs[b] || choices[b].hit_ratio - choices[a].hit_ratio);
    const front = [];
    for (const index of order) {
      const last = front.at(-1);
      if (last === undefined || choices[index].hit_ratio > choices[last].hit_ratio) front.push(index);
    }
    root.dataset.front = front.join(" ");
    const path = front.map((index) => `${x(costs[index])},${y(choices[index].hit_ratio)}`).join(" ");
    drawn(svg, "polyline", {points: path, class: "front"});
    choices.forEach((choice, index) => {
      const kind = index === best ? "best" : isEnough(choice) ? "enough" : "missed";
      const dot = drawn(svg, "circle", {
        cx: x(costs[index]), cy: y(choice.hit_ratio), r: index === best ? 7 : 4, class: kind,
      });
      drawn(dot, "title", {}, `${choice.name}: ${digits(costs[index])} ${data.cost}, ${percent(choice.hit_ratio)}`);
    });
  };

  const draw = () => {
    const best = cheapest();
    describe(best);
    drawMap(best);
    drawFrontier(best);
  };
  if (hasTimes) {
    const labels = {hit_ratio: "hit rate", first_token_p50_ns: "TTFT p50", first_token_p99_ns: "TTFT p99"};
    for (const [name, text] of Object.entries(labels)) {
      const label = element(root.querySelector(".measures"), "label");
      const radio = element(label, "input", {type: "radio", name: "measure", value: name});
      radio.checked = name === measure;
      radio.addEventListener("change", () => {
        measure = name;
        draw();
      });
      label.append(` ${text}`);
    }
  }
  for (const slider of sliders) slider.addEventListener("input", draw);
  draw();
}
