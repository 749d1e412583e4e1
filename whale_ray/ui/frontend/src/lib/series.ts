// Histories of one or two runs as series over one axis: the seconds since each of them began.

import type { Series } from "../components/Chart.svelte";
import type { HistoryLine, Run } from "./types";

export interface Shown {
  run: Run;
  place: number;
}

const FIELDS = { rate: [0], busy: [1], back_pressured: [2], lag: [3], latency: [4, 5], cores: [] } as const;
const NAMES = ["", "", "", "", " p50", " p99"];

export type Measure = keyof typeof FIELDS;

type Chosen = (run: Run) => (operator: string) => boolean;

export function aligned(shown: Shown[], measure: Measure, chosen: Chosen) {
  const seconds = [...new Set(shown.flatMap(({ run }) => run.history.map((line) => line.s)))].sort(
    (a, b) => a - b,
  );
  const at = new Map(seconds.map((second, place) => [second, place]));
  const series: Series[] = [];
  for (const { run, place: which } of shown) {
    const suffix = shown.length > 1 ? ` (${run.job.id})` : "";
    const spread = (value: (line: HistoryLine) => number | null) => {
      const values: (number | null)[] = new Array<number | null>(seconds.length).fill(null);
      for (const line of run.history) values[at.get(line.s) ?? 0] = value(line);
      return values;
    };
    if (measure === "cores") {
      series.push({ label: `cores${suffix}`, run: which, place: 0, values: spread((line) => line.cores) });
      continue;
    }
    const wanted = chosen(run);
    run.job.operators.forEach((operator, index) => {
      if (!wanted(operator.id)) return;
      for (const field of FIELDS[measure]) {
        series.push({
          label: `${operator.id}${NAMES[field]}${suffix}`,
          run: which,
          place: index + (field === 5 ? 3 : 0),
          values: spread((line) => line.operators[index]?.[field] ?? null),
        });
      }
    });
  }
  return { seconds, series };
}
