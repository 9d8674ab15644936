// Small drawings on canvases. Colours come from the page's style, so light and dark need nothing here.

function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height, colour };
}

// trips: [planned, completed, kind, rows, [[begin, end], …]], seconds before now.
export function drawTimeline(canvas, trips, stages, seconds) {
  const row = 34;
  canvas.style.height = `${Math.max(2, stages) * row + 22}px`;
  const { pen, width, height, colour } = prepared(canvas);
  const left = 64, place = (at) => left + (width - left) * (1 + at / seconds);
  pen.fillStyle = colour("muted");
  for (let stage = 0; stage < stages; stage++) pen.fillText(`stage ${stage}`, 0, stage * row + 21);
  for (let second = 0; second <= seconds; second++) {
    const x = place(-second);
    pen.fillStyle = colour("line");
    pen.fillRect(x, 0, 1, height - 18);
    if (second < seconds && second > 0) {
      pen.fillStyle = colour("muted");
      pen.fillText(`-${second} s`, x - 12, height - 4);
    }
  }
  for (const [, , kind, , work] of trips) {
    work.forEach(([begin, end], stage) => {
      if (end < -seconds) return;
      const x = Math.max(left, place(begin));
      pen.fillStyle = colour(kind);
      pen.fillRect(x, stage * row + 4, Math.max(1, place(Math.min(0, end)) - x), row - 10);
    });
  }
}

// series: [{name: colour name, values}], newest last; stacked when asked.
export function drawLines(canvas, series, count) {
  const { pen, width, height, colour } = prepared(canvas);
  const most = Math.max(1, ...series.flatMap((line) => line.values)) * 1.1;
  const base = height - 4;
  pen.strokeStyle = colour("line");
  pen.lineWidth = 1;
  for (const share of [0, 0.5, 1]) {
    const y = base - (base - 14) * share;
    pen.beginPath();
    pen.moveTo(0, y);
    pen.lineTo(width, y);
    pen.stroke();
  }
  for (const line of series) {
    pen.strokeStyle = colour(line.name);
    pen.lineWidth = 2;
    pen.setLineDash(line.dashed ? [5, 4] : []);
    pen.beginPath();
    line.values.forEach((value, index) => {
      const x = width * (index + count - line.values.length) / Math.max(1, count - 1);
      const y = base - (base - 14) * value / most;
      if (index) pen.lineTo(x, y); else pen.moveTo(x, y);
    });
    pen.stroke();
  }
  pen.setLineDash([]);
  pen.fillStyle = colour("muted");
  pen.fillText(most < 10 ? most.toFixed(1) : most.toFixed(0), 2, 11);
}
