(() => {
  "use strict";
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();

  // What is folded away on the screen is still part of the printed page.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));

  for (const chart of document.querySelectorAll(".chart")) {
    const tip = chart.querySelector(".tip");
    const points = [...chart.querySelectorAll(".point")];
    const place = (point) => ({ x: Number(point.dataset.x), y: Number(point.dataset.y) });

    const svg = chart.querySelector("svg");
    let shown = null;

    const show = (point) => {
      if (shown) shown.classList.remove("on");
      shown = point;
      point.classList.add("on");
      const name = document.createElement("b");
      name.textContent = point.dataset.name;
      tip.replaceChildren(name, point.dataset.value);
      tip.hidden = false;
      const mark = point.querySelector(".marker").getBoundingClientRect();
      const frame = chart.getBoundingClientRect();
      const left = mark.left + mark.width / 2 - frame.left - tip.offsetWidth / 2;
      const above = mark.top - frame.top - tip.offsetHeight - 10;
      tip.style.left = `${Math.max(0, Math.min(left, frame.width - tip.offsetWidth))}px`;
      tip.style.top = `${above < 0 ? mark.bottom - frame.top + 10 : above}px`;
    };
    const hide = () => {
      tip.hidden = true;
      if (shown) shown.classList.remove("on");
      shown = null;
    };

    // The nearest value answers, so that crowded places can be read and small markers hit.
    const nearest = (event) => {
      const frame = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / frame.width;
      const x = (event.clientX - frame.left) * scale;
      const y = (event.clientY - frame.top) * scale;
      const far = (point) => Math.hypot(place(point).x - x, place(point).y - y);
      const best = points.reduce((a, b) => (far(b) < far(a) ? b : a));
      return far(best) < 32 ? best : null;
    };
    const follow = (event) => {
      const point = nearest(event);
      if (point === null) hide();
      else if (point !== shown) show(point);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", hide);
    const focus = (point) => {
      points.forEach((one) => one.setAttribute("tabindex", one === point ? "0" : "-1"));
      point.focus();
    };

    // Left and right along a line, up and down to the next line at the nearest place.
    const next = (point, key) => {
      const curve = points.filter((one) => one.dataset.curve === point.dataset.curve);
      const index = curve.indexOf(point);
      if (key === "ArrowLeft") return curve[index - 1];
      if (key === "ArrowRight") return curve[index + 1];
      if (key === "Home") return curve[0];
      if (key === "End") return curve[curve.length - 1];
      const here = place(point);
      const side = key === "ArrowUp" ? -1 : 1;
      const others = points
        .filter((one) => one.dataset.curve !== point.dataset.curve)
        .filter((one) => Math.abs(place(one).x - here.x) < 1)
        .filter((one) => side * (place(one).y - here.y) > 0);
      return others.sort((a, b) => side * (place(a).y - place(b).y))[0];
    };

    for (const point of points) {
      point.addEventListener("focus", () => show(point));
      point.addEventListener("blur", hide);
      point.addEventListener("keydown", (event) => {
        if (event.key === "Escape") hide();
        if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
        event.preventDefault();
        const target = next(point, event.key);
        if (target) focus(target);
      });
    }
  }
})();
