// The topology under construction; the builder and the optimizer share it.

const EXAMPLE = `tspec: 1
topology: trips
operators:
  trips: {source: simulated, rate_per_s: 20000, rows: 400000, row_bytes: 40, dop: 1}
  fares:
    process: simulated
    inputs: [{from: trips, grouping: shuffle}]
    ppt_us: 30
    row_bytes: 24
  out: {sink: simulated, inputs: [{from: fares}], ppt_us: 1}
`;

export const draft = $state({ text: EXAMPLE });
