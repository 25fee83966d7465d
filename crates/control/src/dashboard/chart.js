// A chart over time on a canvas: stacked areas or lines, axes, and a reading under the pointer.
// Knows figures, colours and nothing of links.

const LEFT = 80;
const BOTTOM = 20;
const TOP = 8;

export class Chart {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.pointer = null;
    canvas.onpointermove = (event) => {
      this.pointer = event.offsetX;
      this.#paint();
    };
    canvas.onpointerleave = () => {
      this.pointer = null;
      this.#paint();
    };
  }

  // at: times in ms; series: [{ name, colour, values }] with a value or null per time;
  // span: ms shown; format: value to text; stacked: areas on one another, or lines.
  draw(data) {
    this.data = data;
    this.#paint();
  }

  #paint() {
    const { canvas, data } = this;
    if (!data) return;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const bands = data.stacked ? stack(data.series) : data.series.map(({ values }) => ({ tops: values }));
    const most = niceCeiling(Math.max(1e-9, ...bands.flatMap(({ tops }) => tops.map((v) => v ?? 0))));
    const end = data.at.at(-1) ?? 0;
    const x = (at) => LEFT + ((at - end + data.span) / data.span) * (width - LEFT - 4);
    const y = (value) => TOP + (1 - value / most) * (height - TOP - BOTTOM);
    this.#axes(context, width, height, most, y);
    for (let i = data.series.length - 1; i >= 0; i -= 1) {
      this.#band(context, bands[i], data.series[i].colour, x, y);
    }
    this.#reading(context, height, x);
  }

  #axes(context, width, height, most, y) {
    const style = getComputedStyle(this.canvas);
    context.strokeStyle = style.getPropertyValue('--line');
    context.fillStyle = style.getPropertyValue('--muted');
    context.font = '12px system-ui, sans-serif';
    context.lineWidth = 1;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (let i = 0; i <= 4; i += 1) {
      const value = (most * i) / 4;
      const at = Math.round(y(value)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, at);
      context.lineTo(width, at);
      context.stroke();
      if (i % 2 === 0) context.fillText(this.data.format(value), LEFT - 6, at);
    }
    context.textBaseline = 'alphabetic';
    const seconds = this.data.span / 1000;
    const marks = width < 500 ? 2 : 4;
    for (let i = 0; i <= marks; i += 1) {
      const ago = Math.round((seconds * (marks - i)) / marks);
      context.textAlign = i === marks ? 'right' : i === 0 ? 'left' : 'center';
      const at = LEFT + ((width - LEFT - 4) * i) / marks;
      context.fillText(ago ? `−${ago} s` : 'now', at, height - 4);
    }
  }

  #band(context, { tops, bottoms }, colour, x, y) {
    const { at } = this.data;
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.lineWidth = 1.8;
    context.lineJoin = 'round';
    for (const [from, to] of runs(tops)) {
      context.beginPath();
      for (let i = from; i < to; i += 1) context.lineTo(x(at[i]), y(tops[i]));
      context.stroke();
      if (!bottoms) continue;
      for (let i = to - 1; i >= from; i -= 1) context.lineTo(x(at[i]), y(bottoms[i]));
      context.closePath();
      context.globalAlpha = 0.35;
      context.fill();
      context.globalAlpha = 1;
    }
  }

  #reading(context, height, x) {
    const { at, series, format } = this.data;
    this.tip.hidden = this.pointer === null || at.length === 0;
    if (this.tip.hidden) return;
    let nearest = 0;
    at.forEach((time, i) => {
      if (Math.abs(x(time) - this.pointer) < Math.abs(x(at[nearest]) - this.pointer)) nearest = i;
    });
    const line = Math.round(x(at[nearest])) + 0.5;
    context.strokeStyle = getComputedStyle(this.canvas).getPropertyValue('--muted');
    context.beginPath();
    context.moveTo(line, TOP);
    context.lineTo(line, height - BOTTOM);
    context.stroke();
    const rows = series.map(({ name, colour, values }) => {
      const row = document.createElement('div');
      const swatch = document.createElement('i');
      swatch.className = 'swatch';
      swatch.style.background = colour;
      const value = values[nearest];
      row.append(swatch, `${name} ${value == null ? '–' : format(value)}`);
      return row;
    });
    this.tip.replaceChildren(...rows);
    const isRight = line > this.canvas.clientWidth / 2;
    this.tip.style.left = isRight ? 'auto' : `${line + 10}px`;
    this.tip.style.right = isRight ? `${this.canvas.clientWidth - line + 10}px` : 'auto';
  }
}

function stack(series) {
  let below = [];
  return series.map(({ values }) => {
    const bottoms = values.map((_, i) => below[i] ?? 0);
    const tops = values.map((value, i) => bottoms[i] + (value ?? 0));
    below = tops;
    return { tops, bottoms };
  });
}

// The stretches without a gap: [from, to) pairs.
function runs(values) {
  const found = [];
  let from = null;
  values.forEach((value, i) => {
    if (value == null && from !== null) {
      found.push([from, i]);
      from = null;
    } else if (value != null && from === null) {
      from = i;
    }
  });
  if (from !== null) found.push([from, values.length]);
  return found;
}

function niceCeiling(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [1, 2, 4, 5, 8, 10].find((factor) => factor * power >= most);
  return step * power;
}
