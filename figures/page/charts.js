// Draws the page's charts with Vega, tells each point's values on hover and on focus, and turns rules on and off.
for (const figure of document.querySelectorAll('figure.charted')) {
  const panels = JSON.parse(figure.querySelector('script').textContent), views = [], hidden = new Set();
  const charts = figure.querySelector('.charts');
  const points = (box) => [...box.querySelectorAll('.points_marks path')];
  const reachable = (box) => points(box).forEach((p, i) => p.setAttribute('tabindex', i ? -1 : 0));
  const redraw = () => views.forEach(({ view, box }) =>
    view.signal('hidden', [...hidden]).runAsync().then(() => reachable(box)));
  figure.classList.add('live'); // Vega fits a chart to the width of its box, which it has once it is shown
  for (const { title, spec } of panels) {
    const panel = charts.appendChild(document.createElement('div'));
    panel.className = 'panel';
    panel.appendChild(document.createElement('p')).textContent = title;
    const box = panel.appendChild(document.createElement('div'));
    const told = panel.appendChild(document.createElement('output'));
    box.className = 'chart';
    const tell = (event) => {
      const mark = event.target.closest('.points_marks path');
      if (mark) told.textContent = mark.getAttribute('aria-label');
    };
    box.addEventListener('pointerover', tell);
    box.addEventListener('focusin', tell);
    box.addEventListener('keydown', (event) => {
      const all = points(box), at = all.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
      if (at < 0 || to === undefined) return;
      event.preventDefault();
      all[Math.max(0, Math.min(all.length - 1, to))].focus();
    });
    vegaEmbed(box, spec, { mode: 'vega-lite', renderer: 'svg', actions: false, tooltip: false }).then(({ view }) => {
      views.push({ view, box });
      reachable(box);
      if (views.length === panels.length) figure.dataset.drawn = views.length;
    }, (error) => { figure.classList.remove('live'); throw error; });
  }
  for (const button of figure.querySelectorAll('.rules button'))
    button.addEventListener('click', () => {
      const shown = button.getAttribute('aria-pressed') !== 'true';
      button.setAttribute('aria-pressed', shown);
      hidden[shown ? 'delete' : 'add'](button.value);
      redraw();
    });
}
