// What the server sends; made by whale_ray/records/ and whale_ray/ui/.

export interface JobSummary {
  id: string;
  name: string;
  began_s: number;
  state: string;
  alive: boolean;
  seconds: number;
  silent_s: number;
  workers: number;
  instances: number;
  rows_in: number;
  rate_per_s: number;
  error: string;
}

export interface OperatorDescription {
  id: string;
  kind: string;
  verb: string;
  stage: number;
  parallelism: number;
  location: string;
  state: string[];
}

export interface EdgeDescription {
  id: number | null;
  source: string;
  target: string;
  grouping: string;
  carried_by: string;
  reason: string;
}

export interface JobDescription {
  id: string;
  name: string;
  began_s: number;
  bounded: boolean;
  checkpoints: string;
  ray_dashboard_url: string;
  operators: OperatorDescription[];
  stages: { id: number; operators: string[]; parallelism: number; instance_worker: number[] }[];
  edges: EdgeDescription[];
  hosts: string[];
  worker_host: number[];
  rings: {
    id: number;
    edge: number;
    producer: number;
    consumers: number[];
    capacity_bytes: number;
    multicast: boolean;
  }[];
}

export interface OperatorSample {
  operator_id: string;
  instances: number;
  rows_in: number;
  rows_out: number;
  rate_per_s: number;
  lag_ms: number | null;
  busy: number;
  busiest_instance: number;
  back_pressured: number;
  rows_dropped: Record<string, number>;
  rows_late: number;
  buffered_rows: number;
  spilled_bytes: number;
  latency_p50_ms: number | null;
  latency_p99_ms: number | null;
  waits_for_table: boolean;
  watermark_s: number | null;
}

/** operator's place, instance, worker, rows per s, busy, back-pressured, buffered rows */
export type InstanceSample = [number, number, number, number, number, number, number];

export interface TreeLoad {
  rate_slices_per_s: number | null;
  wanted_degree: number;
  queue_slices: number;
  capacity_slices: number;
  send_s: number | null;
  reason: string;
}

/** Hosts by number; an edge is parent and child. */
export interface TreeShape {
  root: number;
  edges: [number, number][];
}

export interface TreeSample extends TreeShape {
  stream: number;
  degree: number;
  load: TreeLoad | null;
}

export interface SwitchSample {
  stream: number;
  why: string;
  before: TreeShape;
  after: TreeShape;
  degree_before: number;
  degree_after: number;
  moves: number;
  epoch: number;
  decided_ns: number;
  committed_ns: number | null;
  ended_ns: number | null;
  aborted: string;
  load: TreeLoad | null;
}

export interface CheckpointSample {
  count: number;
  failures: number;
  epoch: number;
  nbytes: number;
  new_nbytes: number;
  duration_ms: number;
  age_ms: number | null;
  aligned_p99_ms: number | null;
  restored: number;
  failure: string;
}

export interface LinkSample {
  peer: string;
  up: boolean;
  way: string;
  sent_bytes: number;
  received_bytes: number;
  waited: number;
  rtt_ms: number;
  last_failure: string;
}

export interface JobEnd {
  state: string;
  seconds: number;
  restarts: number;
  checkpoint: string;
  error: string;
  kind: string;
  operator: string;
  instance: number | null;
  traceback: string;
  row: string;
}

export interface Sample {
  at_s: number;
  state: string;
  silent_s: number;
  attempt: number;
  cpu_s: number;
  operators: OperatorSample[];
  instances: InstanceSample[];
  members: { member: number; host: string; cores: number; silent_s: number }[];
  rings: { id: number; fill: number; bytes_per_s: number; messages_per_s: number }[];
  relays: { host: string; sent_bytes_per_s: number; waits_for: string[]; links: LinkSample[] }[];
  trees: TreeSample[];
  switches: SwitchSample[];
  throttled: Record<string, number>;
  checkpoints: CheckpointSample | null;
  decisions: { earlier: number; steps: DecisionSample[] };
  end: JobEnd | null;
}

/** One decision on a job; without `at_s` it was made before the job began. */
export interface DecisionSample {
  operator: string;
  decides: string;
  value: number;
  formula: string;
  numbers: Record<string, number | null>;
  reason: string;
  at_s?: number;
}

/** rows per s, busy, back-pressured, lag ms, median latency ms, 99th percentile ms */
export type HistoryPoint = (number | null)[];

export interface HistoryLine {
  s: number;
  attempt: number;
  cores: number | null;
  operators: (HistoryPoint | null)[];
}

export interface Run {
  job: JobDescription;
  now: Sample | null;
  history: HistoryLine[];
}

export interface Choice {
  dop: number | null;
  batch_rows: number | null;
  rate_out_per_s: number | null;
}

export interface OptimizerStep {
  operator: string;
  decides: string;
  value: number;
  formula: string;
  numbers: Record<string, number | null>;
  reason: string;
  choices: Record<string, Choice>;
}

export interface DrawnTopology {
  name: string;
  operators: { id: string; kind: string; what: string; dop: number | null }[];
  edges: { source: string; target: string; grouping: string }[];
}

export interface Optimization {
  topology: string;
  steps: OptimizerStep[];
  throughput: number;
  limited_by: string;
  text: string;
  log: string;
  drawn: DrawnTopology;
}
