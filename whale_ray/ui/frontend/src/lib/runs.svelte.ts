// Runs as the server tells of them, kept up to date while a view shows them.

import { follow, loadRun } from "./api";
import type { HistoryLine, JobSummary, Run, Sample } from "./types";

const LINES_MAX = 20_000;

export class JobList {
  jobs: JobSummary[] = $state.raw([]);
  loaded = $state(false);
  connected = $state(true);

  follow(): () => void {
    const take = (jobs: JobSummary[]) => {
      this.jobs = jobs;
      this.loaded = true;
    };
    return follow("/api/events", { jobs: take as (content: never) => void }, (is) => {
      this.connected = is;
    });
  }
}

export class FollowedRun {
  run: Run | null = $state.raw(null);
  error = $state("");
  connected = $state(true);

  /** Load a run and follow it; call what is returned to stop. */
  follow(id: string): () => void {
    let stopped = false;
    let stop = () => {};
    loadRun(id)
      .then((run) => {
        if (stopped) return;
        this.run = run;
        const path = `/api/jobs/${encodeURIComponent(id)}/events`;
        const handlers = { now: this.#takeSample, history: this.#takeLines };
        stop = follow(path, handlers as never, (is) => {
          this.connected = is;
        });
      })
      .catch((error: Error) => {
        this.error = error.message;
      });
    return () => {
      stopped = true;
      stop();
    };
  }

  #takeSample = (now: Sample) => {
    if (this.run) this.run = { ...this.run, now };
  };

  #takeLines = (found: { anew: boolean; lines: HistoryLine[] }) => {
    if (!this.run) return;
    const before = found.anew ? [] : this.run.history;
    this.run = { ...this.run, history: [...before, ...found.lines].slice(-LINES_MAX) };
  };
}
