// Numbers as people read them.

const STEPS: [number, string][] = [
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  for (const [limit, suffix] of STEPS) {
    if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(3))} ${suffix}`;
  }
  return String(Number(value.toPrecision(3)));
}

export const rate = (value: number | null | undefined) => `${short(value)}/s`;

export const whole = (value: number) => value.toLocaleString("en");

export const percent = (value: number | null | undefined) =>
  value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;

export function bytes(value: number): string {
  for (const [limit, suffix] of [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ] as const) {
    if (value >= limit) return `${Number((value / limit).toPrecision(3))} ${suffix}`;
  }
  return `${Math.round(value)} B`;
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${Number(value.toPrecision(3))} ms` : duration(value / 1000);
}

export function duration(seconds: number): string {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function moment(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString("sv"); // 2026-01-31 12:00:00, local time
}

/** An event time; the engine's have no zone, so they are shown as they are. */
export function eventTime(seconds: number | null): string {
  if (seconds === null) return "–";
  const found = new Date(seconds * 1000);
  return Number.isNaN(found.getTime()) ? "–" : found.toISOString().slice(0, 23).replace("T", " ");
}
